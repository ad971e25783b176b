import type { Schemas } from "../../api";
import { t } from "../../i18n";
import { go } from "../../router";
import { visible } from "../../text";
import { Choice, Filters, Foreign, Id, List, NONE, to, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

type Act = Schemas["Act"];
/** All of them, or the page is not built. */
const ACTIONS: Record<Exclude<Act["action"], "unknown">, true> = {
  cancel_turn: true, set_tool_state: true, reset_tool_states: true, read_session: true, reload_agents: true, create_key: true,
  rotate_key: true, revoke_key: true, set_user_limits: true, adopt_user: true, retry_webhooks: true, reconnect_mcp_server: true,
  export_user: true, erase_user: true, back_up: true, restore: true, give_mandate: true, revoke_mandate: true,
};

export function Audit({ query }: OpsView) {
  const [action, actor] = [query.get("action"), query.get("actor")];
  const acts = usePaged<Act>("/ops/audit", { action, actor }, 10_000);
  const among = { "": t("ops_all"), ...Object.fromEntries(Object.keys(ACTIONS).map((each) => [each, each])) };
  return (
    <>
      <Filters path="ops/audit" query={query} names={{ actor: t("ops_actor") }}>
        <Choice label={t("ops_action")} value={action ?? ""} among={among} onChange={(value) => go(to("ops/audit", { ...Object.fromEntries(query), action: value }), { replace: true })} />
      </Filters>
      <List of={acts} label={t("ops_audit")} icon="file" empty={t("ops_no_acts")} keyOf={({ seq }) => String(seq)} columns={[
        { label: t("ops_when"), cell: ({ at }) => <When at={at} /> },
        { label: t("ops_actor"), cell: ({ actor: who }) => <Foreign text={who} /> },
        { label: t("ops_action"), cell: (act) => <code>{act.action}</code> },
        { label: t("ops_what"), cell: (act) => <What act={act} /> },
        { label: t("ops_details"), cell: ({ details }) => <Details of={details} /> },
        { label: t("ops_request"), cell: ({ request_id }) => request_id === null ? <span class="muted">{NONE}</span> : <Id id={request_id} copies /> },
      ]} />
    </>
  );
}

const What = ({ act }: { act: Act }) => (
  <span class="stacked">
    {act.tool !== null && <a href={`#/tools/${encodeURIComponent(act.tool)}`}><Foreign text={act.tool} /></a>}
    {act.session_id !== null && <a href={`#/ops/sessions/${act.session_id}`}><Id id={act.session_id} /></a>}
    {act.turn_id !== null && <a href={`#/ops/turns/${act.turn_id}`}><Id id={act.turn_id} /></a>}
  </span>
);

/** Only what was said, as `reason: broken`. */
function Details({ of }: { of: Record<string, unknown> }) {
  const said = Object.entries(of).filter(([, value]) => value !== null);
  if (said.length === 0) return <span class="muted">{NONE}</span>;
  return <span class="stacked">{said.map(([name, value]) => <small key={name}><span class="muted">{visible(name)}:</span> <Foreign text={typeof value === "string" ? value : JSON.stringify(value)} /></small>)}</span>;
}
