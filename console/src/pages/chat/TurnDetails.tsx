/** What a turn took: times, attempts, models, tokens, memory, and what its last request was made of. */
import type { ComponentChildren } from "preact";
import { get } from "../../api";
import { Button } from "../../components/Button";
import { Dialog } from "../../components/Dialog";
import { Failure, Spinner } from "../../components/parts";
import { toast } from "../../components/Toast";
import { duration, money, number, t, type Text, time } from "../../i18n";
import { useLoad } from "../../load";
import { isOps } from "../../me";
import { href } from "../../router";
import { copy, visible } from "../../text";
import type { Conversation, Turn } from "./conversation";

export function TurnDetails({ conversation, id, onClose }: { conversation: Conversation; id: string; onClose: () => void }) {
  const { value: turn, problem, reload } = useLoad(() => get<Turn>(`${conversation.path}/turns/${id}`), [id]);
  const share = async (): Promise<void> => {
    const address = new URL(href("sessions", conversation.id, "turns", id), location.href).href;
    const did = await copy(address);
    toast(t(did ? "link_copied" : "copy_failed"), !did);
  };
  return (
    <Dialog title={t("turn_details")} onClose={onClose} wide>
      {problem && <Failure problem={problem} onRetry={reload} />}
      {!turn && !problem && <Spinner />}
      {turn && <Facts turn={turn} />}
      <div class="buttons"><Button icon="copy" onClick={() => void share()}>{t("copy_link")}</Button></div>
    </Dialog>
  );
}

const PARTS: Record<string, Text | undefined> = { instructions: "instructions", tools: "ops_tools", history: "messages", notes: "part_notes", message: "part_message", turn: "ops_turn" };
const verdictOf = (verdict: string | undefined): string => (verdict === "confirm" || verdict === "amend" || verdict === "reject" ? t(`ack_${verdict}`) : "–");

function Facts({ turn }: { turn: Turn }) {
  const { answer, prompt } = turn;
  const usage = answer?.usage;
  const rows: [string, ComponentChildren][] = [
    [t("status"), `${t(`turn_${turn.status}` as const)}${turn.attempts > 1 ? ` · ${t("attempts", { n: turn.attempts })}` : ""}`],
    [t("begun"), time(turn.started_at ?? turn.created_at)],
  ];
  if (answer != null) rows.push([t("model"), <bdi class="mono">{visible(answer.model)}</bdi>]);
  if (usage) {
    rows.push([t("took"), duration(usage.duration_ms ?? 0)]);
    rows.push([t("tokens"), t("tokens_text", { input: usage.input_tokens ?? 0, cached: usage.cached_tokens ?? 0, output: usage.output_tokens ?? 0, calls: usage.llm_calls ?? 0 })]);
    if (usage.cost != null) rows.push([t("cost"), money(usage.cost)]);
  }
  if (answer != null) {
    const { memory_used: memory, web_search: web, acknowledgement: read } = answer;
    rows.push([t("memory_used"), t("memory_used_text", { messages: memory.history_messages ?? 0, results: memory.tool_results ?? 0, facts: memory.long_term ?? 0 })]);
    rows.push([t("web_search"), <>{t(web.performed ? "searched" : "not_searched")}{isOps() && <> <code>{web.reason}</code></>}</>]);
    rows.push([t("read_as"), `${verdictOf(read.verdict)} · ${t("ack_rule", { rule: read.rule ?? "", language: read.language ?? "–" })}`]);
  }
  return (
    <>
      <dl class="facts">{rows.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
      {prompt != null && prompt.tokens > 0 && (
        <>
          <h3>{t("prompt")} <span class="muted">{t("tokens_n", { n: prompt.tokens })}</span></h3>
          <ul class="prompt">
            {prompt.parts.map(({ part, tokens, cacheable }, index) => (
              <li key={index}>
                <span>{PARTS[part] === undefined ? part : t(PARTS[part])}{cacheable && <span class="muted"> · {t("cacheable")}</span>}</span>
                <span class="bar-of"><span style={{ inlineSize: `${(100 * tokens) / prompt.tokens}%` }} /></span>
                <span class="nums">{number(tokens)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
