import { useState } from "preact/hooks";
import { get, type Schemas } from "../../api";
import { JsonView } from "../../components/JsonView";
import { Badge, Card, type Mood } from "../../components/parts";
import { number, roleOf, t } from "../../i18n";
import { useLoad } from "../../load";
import { me } from "../../me";
import { Facts, Foreign, Id, Rows, Shown, ToolName, When, WhenSaid } from "./parts";
import type { OpsView } from "./Ops";
import { ToolStatus } from "./Tools";
import { Cancel, type Turn, turnColumns } from "./Turns";

type Found = Schemas["OpsSession"];
type Said = NonNullable<Found["content"]>["messages"][number];
const STEPS: Record<string, Mood> = { running: "busy", waiting: "warn", complete: "good", failed: "bad", unknown: "warn" };

/** `#/ops/sessions/{id}`. Read once, not again and again: with `ops:content` each reading is in the audit. */
export function Session({ id }: OpsView) {
  const seen = useLoad((signal) => get<Found>(`/ops/sessions/${id}`, {}, signal), [id]);
  const [asked, setAsked] = useState<Turn | null>(null);
  return (
    <>
      <Shown of={seen}>{(found) => <Whole found={found} onCancel={setAsked} />}</Shown>
      {asked !== null && <Cancel turn={asked} onClose={() => setAsked(null)} onDone={seen.reload} />}
    </>
  );
}

function Whole({ found, onCancel }: { found: Found; onCancel: (turn: Turn) => void }) {
  const turns = [...found.open_turns, ...found.failed_turns];
  return (
    <>
      <Card title={<Foreign text={found.content?.title ?? found.id} />} aside={<><a href={`#/ops/doctor?session_id=${found.id}`}>{t("ops_examine")}</a>{me.value?.user === found.owner && <a href={`#/sessions/${found.id}`}>{t("ops_open_chat")}</a>}</>}>
        <Facts facts={[
          [t("ops_session"), <Id id={found.id} copies />], [t("user"), <Foreign text={found.owner} />], [t("agent"), <Foreign text={found.agent} />],
          [t("messages"), number(found.message_count)], [t("ops_made"), <When at={found.created_at} />], [t("ops_changed"), <When at={found.updated_at} />],
        ]} />
      </Card>
      {turns.length > 0 && <><h2>{t("ops_open_and_failed")}</h2><Rows label={t("ops_open_and_failed")} items={turns} keyOf={({ turn_id }) => turn_id} columns={turnColumns(onCancel)} /></>}
      {found.plan !== null && <Plan plan={found.plan} />}
      {Object.keys(found.tools).length > 0 && (
        <>
          <h2>{t("ops_not_available")}</h2>
          <Rows label={t("ops_not_available")} items={Object.entries(found.tools)} keyOf={([name]) => name} columns={[
            { label: t("ops_tool"), cell: ([name]) => <ToolName name={name} /> },
            { label: t("status"), cell: ([, { status }]) => (status === "available" ? <Badge mood="neutral">{t("ops_locked")}</Badge> : <ToolStatus status={status} />) },
            { label: t("ops_reason"), cell: ([, state]) => <Foreign text={state.reason ?? state.reason_code} /> },
          ]} />
        </>
      )}
      {found.content !== null ? <Messages said={found.content.messages} /> : <p class="muted">{t("ops_no_content")}</p>}
    </>
  );
}

const Plan = ({ plan }: { plan: NonNullable<Found["plan"]> }) => (
  <Card title={t("ops_plan")} aside={<WhenSaid at={plan.expires_at} as="ops_expires" />}>
    <ol class="plan-steps">
      {plan.steps.map(({ id, tool, status }) => (
        <li key={id}><span class="muted nums">{number(id)}</span> {tool === null ? <Foreign text={null} /> : <ToolName name={tool} />} <Badge mood={STEPS[status] ?? "neutral"}>{t(`ops_step_${status}`)}</Badge></li>
      ))}
    </ol>
  </Card>
);

const Messages = ({ said }: { said: Said[] }) => (
  <Card title={t("ops_said_newest")} folded aside={number(said.length)}>
    {said.map((message) => (
      <div key={message.id} class="quoted"><small class="muted">{roleOf(message.role)} · <When at={message.created_at} /></small><JsonView value={message.content} depth={1} /></div>
    ))}
  </Card>
);
