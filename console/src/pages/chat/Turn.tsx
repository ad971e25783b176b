/** One turn: what the user said, what was done for it, the answer, and what became of it. */
import { Fragment } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Schemas } from "../../api";
import { post, Problem } from "../../api";
import { Button, CopyButton, useBusy } from "../../components/Button";
import { Icon } from "../../components/icons";
import { Markdown } from "../../components/Markdown";
import { DRAWN, Picture } from "../../components/Picture";
import { attempt, explained } from "../../components/Toast";
import { bytes, t, time } from "../../i18n";
import type { Source } from "../../markdown";
import { isOps } from "../../me";
import { go, href } from "../../router";
import { visible } from "../../text";
import { isComposing, isSending, useFirstField } from "../../typing";
import { withoutCalls } from "./question";
import { type Conversation, filesOf, type Session } from "./conversation";
import { EMPTY } from "./drafts";
import type { Live, Message, Plan } from "./live";
import { PlanCard } from "./PlanCard";
import { Rating } from "./Rating";
import { ToolCall } from "./ToolCall";
import { TurnDetails } from "./TurnDetails";
import type { Block, Shown } from "./turns";
import { Waiting } from "./Unsent";
import { Versions } from "./Versions";

interface Given {
  turn: Shown;
  conversation: Conversation;
  /** The plan that is shown with this turn: the last one that names it. */
  plan: Plan | null;
  aimed: boolean;
}

export function Turn({ turn, conversation, plan, aimed }: Given) {
  const running = conversation.live.value?.turnId === turn.id;
  const free = conversation.live.value === null && conversation.branch.value === null;
  const session = conversation.session.value;
  const answer = turn.blocks.findLast((block) => block.kind === "text" && block.message !== null);
  const accepted = (conversation.live.value?.turnId ?? null) !== null;
  const asks = plan !== null && !accepted && conversation.branch.value === null && session?.pending_plan?.id === plan.id && turn.isLast;
  const asked = asks ? waitingSteps(plan) : [];
  return (
    <article class="turn" id={turn.id} data-aimed={aimed}>
      {turn.blocks.map((block, index) => (
        <Fragment key={block.id}>
          <BlockView block={block} conversation={conversation} free={free} asked={asked} />
          {index === 0 && turn.gap !== null && conversation.branch.value === null && <Versions conversation={conversation} {...turn.gap} />}
          {block.kind === "user" && turn.blocks[index + 1]?.kind !== "user" && index < 2 && !running && <Acknowledged report={turn.summary?.acknowledgement ?? null} />}
        </Fragment>
      ))}
      {!running && <Outcome turn={turn} conversation={conversation} free={free} />}
      {plan !== null && !running && <PlanCard plan={plan} conversation={conversation} open={asks} busy={!free} />}
      {!running && answer?.kind === "text" && answer.message !== null && <Effects message={answer.message} called={turn.blocks.some(({ kind }) => kind === "call")} />}
      {!running && answer?.kind === "text" && answer.message !== null && <Actions message={answer.message} turn={turn} conversation={conversation} free={free} />}
    </article>
  );
}

const waitingSteps = (plan: Plan | null): Plan["steps"] => (plan?.status === "waiting" ? plan.steps.filter(({ status }) => status === "waiting") : []);

interface BlockGiven {
  block: Block;
  conversation: Conversation;
  free: boolean;
  /** The steps that the card of the turn asks about. */
  asked: Plan["steps"];
}

export function BlockView({ block, conversation, free, asked }: BlockGiven) {
  if (block.kind === "user") return <UserMessage message={block.message} conversation={conversation} free={free} />;
  if (block.kind === "text") return <Answer text={withoutCalls(block.text, asked)} sources={(block.message as { sources?: Source[] } | null)?.sources} />;
  if (block.kind === "reasoning") return <Reasoning text={block.text} done={block.done} />;
  return <ToolCall session={conversation.id} call={block.call} />;
}

/** An answer, and what it rests on. A source without an address is the call that gave it. */
function Answer({ text, sources }: { text: string; sources?: Source[] | undefined }) {
  const show = ({ tool_call_id: id }: Source): void => {
    const call = id == null ? null : document.getElementById(id);
    call?.scrollIntoView({ block: "center" });
    call?.querySelector<HTMLElement>("button")?.focus();
  };
  return (
    <div class="answer">
      <Markdown text={text} sources={sources} onSource={show} />
      {sources !== undefined && sources.length > 0 && (
        <ol class="sources" aria-label={t("sources")}>
          {sources.map((source) => <li key={source.id}><SourceLink source={source} onShow={() => show(source)} /></li>)}
        </ol>
      )}
    </div>
  );
}

const OUTCOMES = ["done", "unknown", "failed", "denied"] as const;

/** What the turn changed; of one that called tools and changed nothing, that. What waits has a card of its own. */
function Effects({ message, called }: { message: Message; called: boolean }) {
  const effects = (message as { effects?: Schemas["TurnEffect"][] }).effects ?? [];
  if (effects.length === 0) return called ? <p class="effects muted small-note">{t("effect_none")}</p> : null;
  const told = (outcome: (typeof OUTCOMES)[number]): string => effects.filter((each) => each.outcome === outcome).map(({ title }) => visible(title)).join(", ");
  const shown = OUTCOMES.filter(told);
  return shown.length > 0 && (
    <ul class="effects muted small-note">
      {shown.map((outcome) => <li key={outcome} data-outcome={outcome} dir="auto">{t(`effect_${outcome}`, { what: told(outcome) })}</li>)}
    </ul>
  );
}

function SourceLink({ source: { title, url }, onShow }: { source: Source; onShow: () => void }) {
  if (url == null || !/^https?:\/\//i.test(url)) return <button type="button" dir="auto" onClick={onShow}>{visible(title)}</button>;
  return <a href={url} target="_blank" rel="noopener noreferrer nofollow" title={url} dir="auto">{visible(title || url)}</a>;
}

function Reasoning({ text, done }: { text: string; done: boolean }) {
  return (
    <details class="reasoning">
      <summary>{t(done ? "thought" : "thinking")}</summary>
      <div dir="auto">{visible(text)}</div>
    </details>
  );
}

function UserMessage({ message, conversation, free }: { message: Message; conversation: Conversation; free: boolean }) {
  const [editing, setEditing] = useState(false);
  const opener = useRef<HTMLDivElement>(null);
  const edited = useRef(false);
  useLayoutEffect(() => {
    if (edited.current && !editing) opener.current?.querySelector<HTMLElement>(".button:last-child")?.focus();
    edited.current = editing;
  }, [editing]);
  const text = typeof message.content === "string" ? message.content : "";
  const meta = (message.metadata ?? {}) as { attachments?: Schemas["Attachment"][]; steered?: boolean; note?: string };
  if (editing) return <EditForm text={text} onDone={(typed) => { setEditing(false); conversation.edit(message.id, typed, meta.attachments?.map(({ id }) => id)); }} onCancel={() => setEditing(false)} />;
  return (
    <div class="mine">
      {meta.note && <details class="reasoning"><summary>{t("note_of_change")}</summary><div dir="auto">{visible(meta.note)}</div></details>}
      <Said text={visible(text)} at={time(message.created_at)} />
      {meta.attachments?.map((file) => DRAWN.test(file.media_type)
        ? <Picture key={file.id} path={`${conversation.path}/attachments/${file.id}`} name={visible(file.name)} />
        : <FileChip key={file.id} name={file.name} size={file.size_bytes} />)}
      {meta.steered && <span class="muted small-note">{t("was_steered")}</span>}
      <div class="tools" ref={opener}>
        <CopyButton text={text} />
        {free && !meta.steered && <Button kind="quiet" class="small" icon="edit" label={t("edit")} onClick={() => setEditing(true)} />}
      </div>
    </div>
  );
}

const FOLDED_LINES = 12;
const FOLDED_CHARACTERS = 1000;

/** What the user said; of something long the beginning, until the rest is asked for. */
export function Said({ text, at }: { text: string; at?: string }) {
  const [whole, setWhole] = useState(false);
  const lines = text.split("\n");
  const isLong = lines.length > FOLDED_LINES + 4 || text.length > FOLDED_CHARACTERS + 300;
  const beginning = `${lines.slice(0, FOLDED_LINES).join("\n").slice(0, FOLDED_CHARACTERS)} …`;
  return (
    <div class="bubble" title={at}>
      <div dir="auto">{isLong && !whole ? beginning : text}</div>
      {isLong && <button type="button" class="more" aria-expanded={whole} onClick={() => setWhole(!whole)}>{whole ? t("show_less") : t("show_all_of", { lines: lines.length, characters: text.length })}</button>}
    </div>
  );
}

interface ChipGiven {
  name: string;
  size: number;
  busy?: boolean;
  /** Why it is not taken. */
  problem?: string | null;
  onDrop?: (() => void) | undefined;
}

export const FileChip = ({ name, size, onDrop, busy = false, problem = null }: ChipGiven) => (
  <span class="chip" data-busy={busy && problem === null} data-bad={problem !== null}>
    <Icon name={problem === null ? "file" : "alert"} size={15} /><bdi>{visible(name)}</bdi>
    {problem === null ? <span class="muted">{bytes(size)}</span> : <span class="why" role="alert" dir="auto">{problem}</span>}
    {onDrop && <Button kind="quiet" class="small" icon="cross" label={t("remove_file", { name: visible(name) })} onClick={onDrop} />}
  </span>
);

function EditForm({ text, onDone, onCancel }: { text: string; onDone: (text: string) => void; onCancel: () => void }) {
  const form = useFirstField<HTMLDivElement>();
  const [typed, setTyped] = useState(text);
  const onKey = (event: KeyboardEvent): void => {
    if (isComposing(event)) return;
    if (event.key === "Escape") onCancel();
    if (isSending(event) && typed.trim()) {
      event.preventDefault();
      onDone(typed);
    }
  };
  return (
    <div class="editing" ref={form}>
      <textarea class="field" rows={Math.min(12, typed.split("\n").length + 1)} value={typed} dir="auto" aria-label={t("edit")}
        onInput={(event) => setTyped(event.currentTarget.value)} onKeyDown={onKey} />
      <p class="muted">{t("edit_hint")}</p>
      <div class="buttons">
        <Button kind="primary" disabled={!typed.trim()} onClick={() => onDone(typed)}>{t("send")}</Button>
        <Button onClick={onCancel}>{t("cancel")}</Button>
      </div>
    </div>
  );
}

/** What is to be known of a turn beside its words, and what to do about it. */
function Outcome({ turn, conversation, free }: { turn: Shown; conversation: Conversation; free: boolean }) {
  const { summary, blocks: [said] } = turn;
  if (summary === null) return null;
  const attempts = conversation.attempts.value.get(turn.id) ?? 1;
  const cut = turn.blocks.some((block) => block.kind === "text" && block.message?.cut_off);
  const bad = summary.status === "failed" || (summary.status === "cancelled" && summary.error?.code !== "turn_cancelled");
  const retry = free && turn.isLast && (summary.status === "failed" || summary.status === "cancelled") && (
    <Button class="small" icon="redo" onClick={() => void conversation.retry(turn.id)}>{t("retry")}</Button>
  );
  return (
    <>
      {attempts > 1 && <p class="note"><Icon name="redo" size={15} />{t("taken_over", { n: attempts })}</p>}
      {bad && (
        <div class="note bad" role={conversation.ended.has(turn.id) ? "alert" : undefined}>
          <Icon name="alert" size={15} />
          <span dir="auto">{summary.error ? explained(new Problem(summary.error.code, 0, "", summary.error.detail ?? "")) : t("turn_failed")} {summary.error && isOps() && <code>{summary.error.code}</code>}</span>
          {retry}
        </div>
      )}
      {summary.status === "cancelled" && !bad && <div class="note"><Icon name="stop" size={15} /><span>{t(cut ? "stopped_kept" : "stopped")}</span>{retry}</div>}
      {summary.status === "completed" && cut && <p class="note warn"><Icon name="alert" size={15} />{t("cut_off")}</p>}
      {summary.status === "queued" && said?.kind === "user" && <Waiting conversation={conversation} turnId={turn.id} draft={{ ...EMPTY, text: String(said.message.content), files: filesOf(said.message) }} />}
    </>
  );
}

export function Acknowledged({ report }: { report: Schemas["AcknowledgementReport"] | null }) {
  if (report === null || report.verdict === undefined || report.verdict === "none") return null;
  // a button has no language: how it was read is no news
  const rule = report.language == null ? undefined : t("ack_rule", { rule: report.rule ?? "", language: report.language });
  return (
    <p class="note" title={rule}>
      <Icon name={report.verdict === "reject" ? "cross" : "check"} size={15} />
      <span>{t(`ack_${report.verdict}` as const)} {rule !== undefined && <span class="muted">· {rule}</span>}</span>
    </p>
  );
}

function Actions({ message, turn, conversation, free }: { message: Message; turn: Shown; conversation: Conversation; free: boolean }) {
  const [details, setDetails] = useState(false);
  const [forking, once] = useBusy();
  const fork = (): Promise<boolean> =>
    attempt(async () => {
      const made = await post<Session>(`${conversation.path}/fork`, { message_id: message.id });
      go(href("sessions", made.id));
    });
  return (
    <div class="tools under">
      <CopyButton text={typeof message.content === "string" ? message.content : ""} />
      {free && turn.isLast && <Button kind="quiet" class="small" icon="redo" label={t("regenerate")} onClick={() => void conversation.regenerate(message.id)} />}
      {conversation.branch.value === null && <Button kind="quiet" class="small" icon="branch" label={t("fork")} disabled={forking} onClick={() => void once(fork)} />}
      <Rating message={message} conversation={conversation} />
      <Button kind="quiet" class="small" icon="info" label={t("turn_details")} onClick={() => setDetails(true)} />
      <span class="muted when">{time(message.created_at)}</span>
      {details && <TurnDetails conversation={conversation} id={turn.id} onClose={() => setDetails(false)} />}
    </div>
  );
}

/** What the turn that runs has brought so far. */
export function LiveTurn({ live, blocks, conversation }: { live: Live; blocks: Block[]; conversation: Conversation }) {
  const waits = blocks.length === 0 || blocks.at(-1)?.kind !== "text";
  const calling = blocks.some((block) => block.kind === "call" && block.call.status === "running");
  return (
    <article class="turn live" aria-busy="true">
      <Acknowledged report={live.acknowledgement} />
      {live.attempt > 1 && <p class="note"><Icon name="redo" size={15} />{t("taken_over", { n: live.attempt })}</p>}
      {blocks.map((block) => <BlockView key={block.id} block={block} conversation={conversation} free={false} asked={waitingSteps(live.plan)} />)}
      {live.plan !== null && live.plan.status !== "completed" && <PlanCard plan={live.plan} conversation={conversation} open={false} />}
      {waits && !live.ended && (
        <p class="working"><span class="spinner" /> {t(live.stopping ? "stopping" : calling ? "calling" : live.turnId === null ? "sending" : "working")}</p>
      )}
    </article>
  );
}
