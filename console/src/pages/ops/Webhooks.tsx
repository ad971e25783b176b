import { get, post, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Card } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { number, t } from "../../i18n";
import { useLoad } from "../../load";
import { Facts, Foreign, Id, NONE, Rows, Shown, Tile, When } from "./parts";
import type { OpsView } from "./Ops";

/** What waits to be sent to WEBHOOK_URL, and why. */
export function Webhooks(_: OpsView) {
  const seen = useLoad((signal) => get<Schemas["OutboxState"]>("/ops/webhooks", {}, signal), [], 5000);
  const retry = async (): Promise<void> => {
    await attempt(async () => toast(t("ops_sent_again", { n: (await post<Schemas["Retried"]>("/ops/webhooks/retry")).events })));
    seen.reload();
  };
  return (
    <Shown of={seen}>
      {({ pending, oldest_at, by_type, failing, last_failure: last }) => (
        <>
          <div class="tiles">
            <Tile label={t("ops_events_waiting")} value={number(pending)} />
            <Tile label={t("ops_oldest_event")} value={<When at={oldest_at} />} />
            <Tile label={t("ops_events_failed")} value={number(Object.values(failing).reduce((sum, each) => sum + each, 0))} mood={Object.keys(failing).length > 0 ? "bad" : "neutral"} />
          </div>
          <div class="filters"><Button icon="redo" disabled={Object.keys(failing).length === 0} onClick={retry}>{t("ops_send_again")}</Button></div>
          <Counts title={t("ops_events_waiting")} name={t("ops_type")} of={by_type} />
          <Counts title={t("ops_events_failed")} name={t("ops_reason")} of={failing} />
          {last !== null && (
            <Card title={t("ops_last_failure")} mood="bad">
              <Facts facts={[
                [t("ops_reason"), <Foreign text={last.failure} />], [t("ops_type"), <Foreign text={last.type} />], [t("ops_when"), <When at={last.failed_at} />],
                [t("ops_tries"), number(last.tries)], [t("ops_next_try"), <When at={last.next_try_at} />], [t("ops_in_flight_until"), <When at={last.in_flight_until} />],
                [t("ops_session"), last.session_id === null ? NONE : <a href={`#/ops/sessions/${last.session_id}`}><Id id={last.session_id} /></a>],
              ]} />
            </Card>
          )}
        </>
      )}
    </Shown>
  );
}

const Counts = ({ title, name, of }: { title: string; name: string; of: Record<string, number> }) =>
  Object.keys(of).length === 0 ? null : (
    <Card title={title}>
      <Rows label={title} items={Object.entries(of)} keyOf={([each]) => each} columns={[
        { label: name, cell: ([each]) => <Foreign text={each} /> }, { label: t("ops_count"), end: true, cell: ([, count]) => number(count) },
      ]} />
    </Card>
  );
