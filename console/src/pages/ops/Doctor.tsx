import { get } from "../../api";
import { Button } from "../../components/Button";
import { JsonView } from "../../components/JsonView";
import { Badge, Card } from "../../components/parts";
import { t } from "../../i18n";
import { useLoad } from "../../load";
import { visible } from "../../text";
import { Filters, Foreign, Shown, When } from "./parts";
import type { OpsView } from "./Ops";

interface Finding {
  area: string;
  what: string;
  do: string | null;
}
interface Found extends Record<string, unknown> {
  at: string;
  healthy: boolean;
  problems: Finding[];
  notes: Finding[];
}

/** What `segue doctor` says, of the service or with `?session_id=` of a session. It asks the model, so only when it is wanted. */
export function Doctor({ query }: OpsView) {
  const session_id = query.get("session_id");
  const seen = useLoad((signal) => get<Found>("/ops/doctor", { session_id }, signal), [session_id]);
  return (
    <>
      <Filters path="ops/doctor" query={query} names={{ session_id: t("ops_session") }}><Button icon="redo" onClick={seen.reload}>{t("ops_examine")}</Button></Filters>
      <Shown of={seen}>
        {({ at, healthy, problems, notes, ...rest }) => (
          <>
            <header class="lead"><h2><Badge mood={healthy ? "good" : "bad"}>{t(healthy ? "ops_healthy" : "ops_not_healthy")}</Badge></h2><span class="muted"><When at={at} /></span></header>
            <Findings found={problems} bad />
            <Findings found={notes} />
            {Object.entries(rest).map(([name, value]) => <Card key={name} title={<code>{visible(name)}</code>} folded><JsonView value={value} /></Card>)}
          </>
        )}
      </Shown>
    </>
  );
}

const Findings = ({ found, bad = false }: { found: Finding[]; bad?: boolean }) => (
  <>
    {found.map(({ area, what, do: helps }) => (
      <Card key={area + what} title={<code>{visible(area)}</code>} icon={bad ? "alert" : "eye"} mood={bad ? "bad" : "neutral"}>
        <p dir="auto">{visible(what)}</p>
        {helps !== null && <p class="muted">{t("ops_what_helps")} <Foreign text={helps} /></p>}
      </Card>
    ))}
  </>
);
