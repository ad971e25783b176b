import { useState } from "preact/hooks";
import { post, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Ask } from "../../components/Dialog";
import { Badge, type Mood } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { compact, duration, t, time } from "../../i18n";
import { me } from "../../me";
import { go } from "../../router";
import { visible } from "../../text";
import { Choice, type Column, dollars, Filters, For, Foreign, Id, List, NONE, to, ToolName, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

export type Turn = Schemas["OpsTurn"];
const EVERY_MS = 3000;
const STATUSES = ["queued", "running", "completed", "failed", "cancelled"] as const;
const MOODS: Record<Turn["status"], Mood> = { queued: "warn", running: "busy", completed: "good", failed: "bad", cancelled: "neutral" };
const RANGES = { hour: 3600, day: 86_400, week: 604_800 } as const;
const ASKED = ["tool", "owner", "session_id", "code", "since", "until"] as const;

export const TurnStatus = ({ turn }: { turn: Turn }) => <Badge mood={MOODS[turn.status]}>{t(`ops_turn_${turn.status}`)}</Badge>;

/** The newest of all users. What was said is read once and not again and again: each reading is in the audit. */
export function Turns({ query }: OpsView) {
  const [asked, setAsked] = useState<Turn | null>(null);
  const status = query.get("status") ?? "any";
  const words = query.get("words") === "1";
  const wanted = Object.fromEntries(ASKED.map((name) => [name, query.get(name)]));
  const turns = usePaged<Turn>("/ops/turns", { ...wanted, status: status === "open" ? null : status, include: words ? "words" : null }, words ? undefined : EVERY_MS);
  const set = (changes: Record<string, string | null>): void => go(to("ops/turns", { ...Object.fromEntries(query), ...changes }), { replace: true });
  const among = { any: t("ops_any_status"), open: t("ops_open"), ...Object.fromEntries(STATUSES.map((each) => [each, t(`ops_turn_${each}`)])) };
  return (
    <>
      <Filters path="ops/turns" query={query} names={{ tool: t("ops_tool"), owner: t("user"), session_id: t("ops_session"), code: t("ops_code") }}>
        <Choice label={t("status")} value={status} among={among} onChange={(value) => set({ status: value === "any" ? null : value })} />
        <Range since={query.get("since")} until={query.get("until")} onChange={(since) => set({ since, until: null })} />
        {me.value?.scopes.includes("ops:content") && <Button icon="eye" aria-pressed={words} title={t("ops_words_hint")} onClick={() => set({ words: words ? null : "1" })}>{t("ops_words")}</Button>}
      </Filters>
      <List of={turns} label={t("ops_turns")} icon="list" empty={t(query.size > 0 ? "nothing_found" : "ops_no_turns")} keyOf={({ turn_id }) => turn_id}
        columns={turnColumns(setAsked)} />
      {asked !== null && <Cancel turn={asked} onClose={() => setAsked(null)} onDone={turns.list.reload} />}
    </>
  );
}

/** Since when; a chart leads here with an end as well. */
function Range({ since, until, onChange }: { since: string | null; until: string | null; onChange: (since: string | null) => void }) {
  const ago = (name: string): string | null => (name in RANGES ? new Date(Date.now() - 1000 * RANGES[name as keyof typeof RANGES]).toISOString() : null);
  const given: Record<string, string> = since === null ? {} : { given: until === null ? t("ops_since_when", { when: time(since) }) : `${time(since)} – ${time(until)}` };
  const among = { "": t("ops_any_time"), ...given, ...Object.fromEntries(Object.keys(RANGES).map((name) => [name, t(`ops_last_${name as keyof typeof RANGES}`)])) };
  return <Choice label={t("ops_range")} value={since === null ? "" : "given"} among={among} onChange={(name) => onChange(ago(name))} />;
}

/** Of an open turn it says what it does and for how long, of one that ended when, how and what it took. */
export const turnColumns = (onCancel: (turn: Turn) => void): Column<Turn>[] => [
  { label: t("ops_turn"), cell: (turn) => <a class="said" href={`#/ops/turns/${turn.turn_id}`}>{turn.said ? <bdi>{visible(turn.said)}</bdi> : <Id id={turn.turn_id} />}</a> },
  { label: t("status"), cell: (turn) => <span class="stacked"><TurnStatus turn={turn} /><Doing turn={turn} /></span> },
  { label: t("ops_accepted"), cell: (turn) => <When at={turn.created_at} /> },
  { label: t("took"), end: true, cell: (turn) => <Took turn={turn} /> },
  { label: t("ops_tokens_in_out"), end: true, cell: ({ usage }) => (usage ? `${compact(usage.input_tokens ?? 0)} / ${compact(usage.output_tokens ?? 0)}` : NONE) },
  { label: t("cost"), end: true, cell: ({ usage }) => dollars(usage?.cost, true) },
  { label: t("ops_user_agent"), cell: (turn) => <span class="stacked"><a href={to("ops/turns", { owner: turn.owner })}><Foreign text={turn.owner} /></a>{turn.agent !== null && <small><Foreign text={turn.agent} /></small>}</span> },
  { label: t("ops_session"), cell: (turn) => <a href={`#/ops/sessions/${turn.session_id}`}><Id id={turn.session_id} /></a> },
  { label: t("ops_acts"), unsaid: true, end: true, cell: (turn) => isOpen(turn) && <Button class="small" kind="danger" icon="stop" label={t("ops_cancel_turn")} onClick={() => onCancel(turn)} /> },
];

export const isOpen = ({ status }: Turn): boolean => status === "queued" || status === "running";

const Took = ({ turn }: { turn: Turn }) =>
  turn.finished_at === null ? <For since={turn.created_at} /> : <>{duration(Math.max(0, Date.parse(turn.finished_at) - Date.parse(turn.created_at)))}</>;

/** What an open turn waits for and where it runs, whether that is silent, and why one has failed. */
function Doing({ turn }: { turn: Turn }) {
  if (turn.error_code !== null) return <a href={to("ops/turns", { code: turn.error_code })}><code>{visible(turn.error_code)}</code></a>;
  if (!isOpen(turn)) return null;
  return (
    <span class="doing">
      {turn.cancel_requested_at !== null && <Badge mood="warn">{t("ops_cancelling")}</Badge>}
      {turn.running?.length ? turn.running.map(({ kind, name, since }) => <span key={name + since}>{kind === "tool" ? <ToolName name={name} /> : <Foreign text={name} />} <span class="muted"><For since={since} /></span></span>) : turn.node != null && <Foreign text={turn.node} />}
      {turn.instance !== null && <small><Foreign text={turn.instance} /></small>}
      {turn.attempt > 1 && <small>{t("ops_attempt", { n: turn.attempt })}</small>}
      {(turn.lease_left_s ?? 0) < 0 && <Badge mood="bad">{t("ops_silent")}</Badge>}
    </span>
  );
}

export function Cancel({ turn, onClose, onDone }: { turn: Turn; onClose: () => void; onDone: () => void }) {
  const cancel = async (): Promise<void> => {
    if (await attempt(() => post(`/ops/turns/${turn.turn_id}/cancel`))) toast(t("ops_cancelled"));
    onDone();
  };
  return <Ask title={t("ops_cancel_title")} text={t("ops_cancel_text")} action={t("ops_cancel_turn")} danger onClose={onClose} onDone={cancel} />;
}
