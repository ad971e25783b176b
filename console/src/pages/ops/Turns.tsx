import { useState } from "preact/hooks";
import { post, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Ask } from "../../components/Dialog";
import { Badge, type Mood } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { t } from "../../i18n";
import { go } from "../../router";
import { Choice, type Column, Filters, For, Foreign, Id, List, to, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

export type Turn = Schemas["OpsTurn"];
const EVERY_MS = 3000;
const STATUSES = ["queued", "running", "completed", "failed", "cancelled"] as const;
const MOODS: Record<Turn["status"], Mood> = { queued: "warn", running: "busy", completed: "good", failed: "bad", cancelled: "neutral" };

export const TurnStatus = ({ turn }: { turn: Turn }) => <Badge mood={MOODS[turn.status]}>{t(`ops_turn_${turn.status}`)}</Badge>;

export function Turns({ query }: OpsView) {
  const [asked, setAsked] = useState<Turn | null>(null);
  const [status, tool, owner, session_id] = ["status", "tool", "owner", "session_id"].map((name) => query.get(name)) as (string | null)[];
  const turns = usePaged<Turn>("/ops/turns", { status, tool, owner, session_id }, EVERY_MS);
  const choose = (value: string): void => go(to("ops/turns", { ...Object.fromEntries(query), status: value }), { replace: true });
  const among = { "": t("ops_open"), ...Object.fromEntries(STATUSES.map((each) => [each, t(`ops_turn_${each}`)])) };
  return (
    <>
      <Filters path="ops/turns" query={query} names={{ tool: t("ops_tool"), owner: t("ops_user"), session_id: t("ops_session") }}>
        <Choice label={t("ops_status")} value={status ?? ""} among={among} onChange={choose} />
      </Filters>
      <List of={turns} label={t("ops_turns")} icon="list" empty={t(query.size > 0 ? "nothing_found" : "ops_no_turns")} keyOf={({ turn_id }) => turn_id}
        columns={turnColumns(setAsked)} />
      {asked !== null && <Cancel turn={asked} onClose={() => setAsked(null)} onDone={turns.list.reload} />}
    </>
  );
}

/** Of an open turn it says what it does and for how long, of one that ended when and how. */
export const turnColumns = (onCancel: (turn: Turn) => void): Column<Turn>[] => [
  { label: t("ops_turn"), cell: (turn) => <a href={`#/ops/turns/${turn.turn_id}`}><Id id={turn.turn_id} /></a> },
  { label: t("ops_status"), cell: (turn) => <TurnStatus turn={turn} /> },
  { label: t("ops_does"), cell: (turn) => <Doing turn={turn} /> },
  { label: t("ops_since"), cell: (turn) => (isOpen(turn) ? <For since={turn.started_at ?? turn.created_at} /> : <When at={turn.finished_at} />) },
  { label: t("ops_user_agent"), cell: (turn) => <span class="stacked"><a href={to("ops/turns", { owner: turn.owner })}><Foreign text={turn.owner} /></a>{turn.agent !== null && <small><Foreign text={turn.agent} /></small>}</span> },
  { label: t("ops_session"), cell: (turn) => <a href={`#/ops/sessions/${turn.session_id}`}><Id id={turn.session_id} /></a> },
  { label: t("ops_instance"), cell: (turn) => <Where turn={turn} /> },
  { label: t("ops_acts"), unsaid: true, end: true, cell: (turn) => isOpen(turn) && <Button class="small" kind="danger" icon="stop" label={t("ops_cancel_turn")} onClick={() => onCancel(turn)} /> },
];

export const isOpen = ({ status }: Turn): boolean => status === "queued" || status === "running";

export function Doing({ turn }: { turn: Turn }) {
  if (turn.error_code !== null) return <code>{turn.error_code}</code>;
  if (turn.cancel_requested_at !== null && isOpen(turn)) return <Badge mood="warn">{t("ops_cancelling")}</Badge>;
  if (!turn.running?.length) return <Foreign text={turn.status === "running" ? turn.node : null} />;
  return (
    <span class="doing">
      {turn.running.map(({ name, since }) => <span key={name + since}><Foreign text={name} /> <span class="muted"><For since={since} /></span></span>)}
    </span>
  );
}

/** The process, which take it is if not the first, and whether it is silent. */
export const Where = ({ turn }: { turn: Turn }) => (
  <span class="stacked">
    <Foreign text={turn.instance} />
    {turn.attempt > 1 && <small>{t("ops_attempt", { n: turn.attempt })}</small>}
    {isOpen(turn) && (turn.lease_left_s ?? 0) < 0 && <Badge mood="bad">{t("ops_silent")}</Badge>}
  </span>
);

export function Cancel({ turn, onClose, onDone }: { turn: Turn; onClose: () => void; onDone: () => void }) {
  const cancel = async (): Promise<void> => {
    if (await attempt(() => post(`/ops/turns/${turn.turn_id}/cancel`))) toast(t("ops_cancelled"));
    onDone();
  };
  return <Ask title={t("ops_cancel_title")} text={t("ops_cancel_text")} action={t("ops_cancel_turn")} danger onClose={onClose} onDone={cancel} />;
}
