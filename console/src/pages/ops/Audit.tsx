import type { Schemas } from "../../api";
import { Button } from "../../components/Button";
import { download } from "../../download";
import { number, type Text, t } from "../../i18n";
import { go } from "../../router";
import { visible } from "../../text";
import { Choice, Filters, Foreign, Id, List, NONE, to, ToolName, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

type Act = Schemas["Act"];
/** All of them, or the page is not built. */
const ACTIONS = {
  cancel_turn: "ops_did_cancel_turn", set_tool_state: "ops_did_set_tool_state", reset_tool_states: "ops_did_reset_tool_states",
  read_session: "ops_did_read_session", reload_agents: "ops_did_reload_agents", create_key: "ops_did_create_key",
  rotate_key: "ops_did_rotate_key", revoke_key: "ops_did_revoke_key", set_user_limits: "ops_did_set_user_limits",
  adopt_user: "ops_did_adopt_user", retry_webhooks: "ops_did_retry_webhooks", reconnect_mcp_server: "ops_did_reconnect_mcp_server",
  export_user: "ops_did_export_user", erase_user: "ops_did_erase_user", back_up: "ops_did_back_up", restore: "ops_did_restore",
  give_mandate: "ops_did_give_mandate", revoke_mandate: "ops_did_revoke_mandate", decide_approval: "ops_did_decide_approval", unknown: "ops_did_unknown",
} as const satisfies Record<Act["action"], Text>;

export function Audit({ query }: OpsView) {
  const [action, actor] = [query.get("action"), query.get("actor")];
  const acts = usePaged<Act>("/ops/audit", { action, actor }, 10_000);
  const among = { "": t("ops_all"), ...Object.fromEntries(Object.entries(ACTIONS).filter(([each]) => each !== "unknown").map(([each, did]) => [each, t(did)])) };
  return (
    <>
      <Filters path="ops/audit" query={query} names={{ actor: t("ops_actor") }}>
        <Choice label={t("ops_action")} value={action ?? ""} among={among} onChange={(value) => go(to("ops/audit", { ...Object.fromEntries(query), action: value }), { replace: true })} />
        <Button icon="download" onClick={() => download("/ops/audit/export", { action, actor }, "segue-audit.ndjson")}>{t("ops_export")}</Button>
      </Filters>
      <List of={acts} label={t("ops_audit")} icon="book" empty={t("ops_no_acts")} keyOf={({ seq }) => String(seq)} columns={[
        { label: t("ops_when"), cell: ({ at }) => <When at={at} /> },
        { label: t("ops_actor"), cell: ({ actor: who }) => <a href={to("ops/audit", { actor: who })}><Foreign text={who} /></a> },
        { label: t("ops_action"), cell: (act) => t(ACTIONS[act.action]) },
        { label: t("ops_what"), cell: (act) => <What act={act} /> },
        { label: t("ops_details"), cell: ({ details }) => <Details of={details} /> },
        { label: t("ops_request"), cell: ({ request_id }) => request_id === null ? <span class="muted">{NONE}</span> : <Id id={request_id} copies /> },
      ]} />
    </>
  );
}

const What = ({ act }: { act: Act }) => (
  <span class="stacked">
    {act.tool !== null && <ToolName name={act.tool} />}
    {act.tool === null && act.session_id === null && act.turn_id === null && <span class="muted">{NONE}</span>}
    {act.session_id !== null && <a href={`#/ops/sessions/${act.session_id}`}><Id id={act.session_id} /></a>}
    {act.turn_id !== null && <a href={`#/ops/turns/${act.turn_id}`}><Id id={act.turn_id} /></a>}
  </span>
);

const FEW = 2;

/** Of a list how it begins, and how long it is. */
const told = (value: unknown): string => {
  if (!Array.isArray(value)) return typeof value === "string" ? value : JSON.stringify(value);
  return value.slice(0, FEW).join(", ") + (value.length > FEW ? `, … (${number(value.length)})` : "");
};

/** Only what was said, as `reason: broken`. */
function Details({ of }: { of: Record<string, unknown> }) {
  const said = Object.entries(of).filter(([, value]) => value !== null);
  if (said.length === 0) return <span class="muted">{NONE}</span>;
  return <span class="stacked">{said.map(([name, value]) => <small key={name} dir="auto"><span class="muted">{visible(name)}:</span> <Foreign text={told(value)} /></small>)}</span>;
}
