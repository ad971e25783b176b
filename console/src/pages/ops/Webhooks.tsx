import { get, post, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Badge } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { number, t } from "../../i18n";
import { useLoad } from "../../load";
import { visible } from "../../text";
import { Foreign, Id, List, NONE, Shown, Tile, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

type Event = Schemas["WaitingEvent"];
const EVERY_MS = 5000;

/** What waits to be sent to WEBHOOK_URL, and why. What was delivered is gone. */
export function Webhooks(_: OpsView) {
  const seen = useLoad((signal) => get<Schemas["OutboxState"]>("/ops/webhooks", {}, signal), [], EVERY_MS);
  const events = usePaged<Event>("/ops/webhooks/events", {}, EVERY_MS);
  const retry = async (event_id?: string): Promise<void> => {
    const path = event_id === undefined ? "/ops/webhooks/retry" : `/ops/webhooks/retry?event_id=${encodeURIComponent(event_id)}`;
    await attempt(async () => toast(t("ops_sent_again", { n: (await post<Schemas["Retried"]>(path)).events })));
    seen.reload();
    events.list.reload();
  };
  return (
    <>
      <Shown of={seen}>{(found) => <Waiting found={found} onRetry={() => retry()} />}</Shown>
      <List of={events} label={t("ops_events_waiting")} icon="sends" empty={t("ops_no_events")} keyOf={({ event_id }) => event_id} columns={[
        { label: t("ops_event"), cell: ({ event_id, type, in_flight_until }) => <span class="stacked"><code>{visible(type)}</code><small><Id id={event_id} copies /></small>{in_flight_until !== null && <Badge mood="busy">{t("ops_in_flight")}</Badge>}</span> },
        { label: t("ops_session"), cell: ({ session_id }) => (session_id === null ? NONE : <a href={`#/ops/sessions/${session_id}`}><Id id={session_id} /></a>) },
        { label: t("ops_happened"), cell: ({ created_at }) => <When at={created_at} /> },
        { label: t("ops_tries"), end: true, cell: ({ tries }) => number(tries) },
        { label: t("ops_last_failure"), cell: ({ failure, failed_at }) => (failure === null ? NONE : <span class="stacked"><span class="failed"><Foreign text={failure} /></span><small><When at={failed_at} /></small></span>) },
        { label: t("ops_next_try"), cell: ({ next_try_at }) => <When at={next_try_at} /> },
        { label: t("ops_acts"), unsaid: true, end: true, cell: ({ event_id, failure }) => failure !== null && <Button class="small" icon="redo" onClick={() => retry(event_id)}>{t("ops_send_one")}</Button> },
      ]} />
    </>
  );
}

function Waiting({ found: { pending, oldest_at, by_type, failing }, onRetry }: { found: Schemas["OutboxState"]; onRetry: () => void }) {
  const failed = Object.values(failing).reduce((sum, each) => sum + each, 0);
  const told = (of: Record<string, number>): string => Object.entries(of).map(([name, n]) => `${visible(name)}: ${number(n)}`).join(", ");
  return (
    <>
      <div class="tiles">
        <Tile label={t("ops_events_waiting")} value={number(pending)} more={told(by_type)} />
        <Tile label={t("ops_oldest_event")} value={<When at={oldest_at} />} />
        <Tile label={t("ops_events_failed")} value={number(failed)} more={told(failing)} mood={failed > 0 ? "bad" : "neutral"} />
      </div>
      <div class="filters"><Button icon="redo" disabled={failed === 0} onClick={onRetry}>{t("ops_send_again")}</Button></div>
    </>
  );
}
