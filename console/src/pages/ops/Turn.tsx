import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { get, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Badge, Card, type Mood } from "../../components/parts";
import { duration, exact, money, number, share, t } from "../../i18n";
import { useLoad } from "../../load";
import { me } from "../../me";
import { Bar, Facts, Foreign, Id, NONE, Rows, Shown, ToolName, When } from "./parts";
import type { OpsView } from "./Ops";
import { Cancel, isOpen, TurnStatus } from "./Turns";

type Found = Schemas["TurnTimeline"];
type Kind = "queued" | "approval" | "attempt" | "node" | "model" | "tool";

/** A row of the timeline. `ms` is null while it lasts, and where its end is not known. */
interface Span {
  kind: Kind;
  name: ComponentChildren;
  at: number;
  ms: number | null;
  bad: boolean;
  about: ComponentChildren;
}

const EVERY_MS = 2000;
const CALLS: Record<string, Mood> = { running: "busy", succeeded: "good", failed: "bad", unknown: "warn" };
const ms = (at: string): number => new Date(at).getTime();

/** `#/ops/turns/{turn_id}` */
export function Turn({ id }: OpsView) {
  const [ended, setEnded] = useState(false);
  const [asks, setAsks] = useState(false);
  const read = async (signal: AbortSignal): Promise<Found> => {
    const found = await get<Found>(`/ops/turns/${encodeURIComponent(id)}/timeline`, {}, signal);
    setEnded(!isOpen(found.turn));
    return found;
  };
  const seen = useLoad(read, [id], ended ? undefined : EVERY_MS);
  return (
    <Shown of={seen}>
      {(found) => (
        <>
          <header class="lead">
            <h2><Id id={found.turn.turn_id} copies /></h2><TurnStatus turn={found.turn} /><span class="grow" />
            {me.value?.user === found.turn.owner && <a class="button" href={`#/sessions/${found.turn.session_id}/turns/${found.turn.turn_id}`}>{t("ops_open_chat")}</a>}
            {isOpen(found.turn) && <Button kind="danger" icon="stop" onClick={() => setAsks(true)}>{t("ops_cancel_turn")}</Button>}
          </header>
          <Card title={t("ops_turn")}><Summary found={found} /></Card>
          <Timeline found={found} />
          {found.prompt !== null && <Prompt of={found.prompt} />}
          {asks && <Cancel turn={found.turn} onClose={() => setAsks(false)} onDone={seen.reload} />}
        </>
      )}
    </Shown>
  );
}

function Summary({ found: { turn, model, usage } }: { found: Found }) {
  return (
    <Facts facts={[
      [t("user"), <Foreign text={turn.owner} />],
      [t("ops_session"), <a href={`#/ops/sessions/${turn.session_id}`}><Id id={turn.session_id} /></a>],
      [t("agent"), <Foreign text={turn.agent} />],
      [t("model"), <Foreign text={model} />],
      [t("ops_accepted"), <When at={turn.created_at} />],
      [t("ops_ended"), <When at={turn.finished_at} />],
      [t("ops_instance"), <Foreign text={turn.instance} />],
      [t("ops_errors"), turn.error_code === null ? NONE : <code>{turn.error_code}</code>],
      [t("ops_tokens_in_out"), usage === null ? NONE : `${number(usage.input_tokens ?? 0)} / ${number(usage.output_tokens ?? 0)}`],
      [t("ops_cached"), usage === null ? NONE : share(usage.cached_tokens ?? 0, usage.input_tokens ?? 0)],
      [t("cost"), usage?.cost == null ? NONE : money(usage.cost)],
    ]} />
  );
}

function spansOf({ turn, attempts, waits, nodes, model_calls, tool_calls }: Found): Span[] {
  const between = (from: string, until: string | null): number | null => (until === null ? null : ms(until) - ms(from));
  const found: Span[] = [
    ...waits.map(({ kind, since, until }): Span => ({ kind, name: t(`ops_span_${kind}`), at: ms(since), ms: between(since, until), bad: false, about: null })),
    ...attempts.filter(({ started_at }) => started_at !== null).map(({ instance, started_at, ended_at, why, epoch }): Span => ({
      kind: "attempt", name: t("ops_attempt_of", { n: epoch }), at: ms(started_at ?? turn.created_at), ms: between(started_at ?? turn.created_at, ended_at), bad: why !== null,
      about: <><Foreign text={instance} />{why !== null && <> <code>{why}</code></>}</>,
    })),
    ...nodes.map(({ node, at, duration_ms }): Span => ({ kind: "node", name: <Foreign text={node} />, at: ms(at), ms: duration_ms, bad: false, about: null })),
    ...model_calls.map((call): Span => ({ kind: "model", name: <Foreign text={call.model} />, at: ms(call.at), ms: call.duration_ms, bad: call.outcome !== "answered", about: <ModelCall call={call} /> })),
    ...tool_calls.map((call): Span => ({
      kind: "tool", name: <ToolName name={call.tool} />, at: ms(call.at), ms: call.duration_ms, bad: call.status === "failed",
      about: <><Badge mood={CALLS[call.status] ?? "neutral"}>{t(`ops_call_${call.status}`)}</Badge>{call.step_id !== null && <small> {t("ops_step", { n: call.step_id })}</small>}{(call.granted || call.mandate_id !== null) && <small> {t("by_grant")}</small>}{call.settled_by !== null && <small> {t("ops_settled")}</small>}</>,
    })),
  ];
  return found.sort((one, other) => one.at - other.at || ORDER.indexOf(one.kind) - ORDER.indexOf(other.kind));
}

const ORDER: Kind[] = ["queued", "attempt", "node", "model", "tool", "approval"];

const ModelCall = ({ call }: { call: Schemas["TimedModelCall"] }) => (
  <small class="nums">
    {[
      t("ops_tokens_of", { input: number(call.input_tokens), output: number(call.output_tokens) }),
      call.cached_tokens > 0 ? t("ops_cached_share", { share: share(call.cached_tokens, call.input_tokens) }) : "",
      call.first_token_ms !== null ? t("ops_first_token", { time: duration(call.first_token_ms) }) : "",
      call.retries > 0 ? t("ops_retries", { n: call.retries }) : "",
      call.cost !== null && call.cost > 0 ? money(call.cost) : "",
      call.outcome === "answered" ? "" : call.outcome,
    ].filter(Boolean).join(" · ")}
  </small>
);

/** What it did when, over the time from the message to its end, or till now. */
function Timeline({ found }: { found: Found }) {
  const spans = spansOf(found);
  const from = ms(found.turn.created_at);
  const until = Math.max(from + 1, found.turn.finished_at === null ? Date.now() : ms(found.turn.finished_at), ...spans.filter(({ kind }) => kind !== "approval").map(({ at, ms: lasts }) => at + (lasts ?? 0)));
  const bar = ({ at, ms: lasts, kind, bad }: Span): ComponentChildren => {
    const start = Math.min(0.995, Math.max(0, (at - from) / (until - from)));
    const long = Math.min(1 - start, Math.max(0.004, (lasts ?? until - at) / (until - from)));
    return <div class="track" dir="ltr" aria-hidden="true"><div class={`span ${bad ? "failed" : kind} ${lasts === null ? "open" : ""}`} style={{ left: `${start * 100}%`, width: `${long * 100}%` }} /></div>;
  };
  return (
    <section class="timeline">
      <h3>{t("ops_timeline")} <small class="muted nums">{duration(until - from)}</small></h3>
      <Rows label={t("ops_timeline")} items={spans.map((span, index) => ({ ...span, index }))} keyOf={({ index }) => String(index)} columns={[
        { label: t("ops_span"), cell: ({ kind, name }) => <span class={`spanned ${kind}`}>{kind !== "queued" && kind !== "approval" && <small class="muted">{t(`ops_span_${kind}`)} </small>}{name}</span> },
        { label: t("ops_at"), end: true, cell: ({ at }) => <time title={exact(new Date(at).toISOString())} dateTime={new Date(at).toISOString()}>{"\u200e"}+{duration(Math.max(0, at - from))}</time> },
        { label: t("took"), end: true, cell: ({ ms: lasts }) => (lasts === null ? NONE : duration(lasts)) },
        { label: t("ops_over_time"), cell: bar },
        { label: t("ops_details"), cell: ({ about }) => about ?? <span class="muted">{NONE}</span> },
      ]} />
      {found.model_calls_left_out > 0 && <p class="muted">{t("ops_left_out", { n: found.model_calls_left_out })}</p>}
    </section>
  );
}

const Prompt = ({ of }: { of: Schemas["PromptReport"] }) => (
  <section class="timeline">
    <h3>{t("ops_prompt")} <small class="muted nums">{t("ops_tokens_n", { n: of.tokens })}</small></h3>
    <Rows label={t("ops_prompt")} items={of.parts.map((part, index) => ({ ...part, index }))} keyOf={({ index }) => String(index)} columns={[
      { label: t("ops_part"), cell: ({ part }) => <Foreign text={part} /> },
      { label: t("tokens"), end: true, cell: ({ tokens }) => number(tokens) },
      { label: t("ops_share"), cell: ({ tokens }) => <Bar part={tokens / Math.max(1, of.tokens)} /> },
      { label: t("ops_cacheable"), cell: ({ cacheable }) => t(cacheable ? "ops_yes" : "ops_no") },
    ]} />
  </section>
);
