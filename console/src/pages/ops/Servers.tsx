import { useState } from "preact/hooks";
import { get, post, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { JsonView } from "../../components/JsonView";
import { Badge, Card, EmptyState, type Mood } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { number, t } from "../../i18n";
import { useLoad } from "../../load";
import { visible } from "../../text";
import { titleOf } from "../../tools";
import { Facts, Foreign, Shown, ToolName, When } from "./parts";
import type { OpsView } from "./Ops";

type Server = Schemas["McpServerStatus"];

const moodOf = (state: string): Mood => (state === "ready" ? "good" : state === "connecting" ? "busy" : "bad");

/** The state without its reason, which stands below. */
export const serverState = (state: string): string =>
  state === "ready" ? t("ops_server_ready") : state === "connecting" ? t("ops_server_connecting") : t("ops_server_failed");

/** Without the colours of terminals, whose beginnings the service has written out. */
const plain = (line: string): string => visible(line).replace(/‹U\+001B›\[[0-?]*[ -/]*[@-~]/g, "");

export function Servers(_: OpsView) {
  const seen = useLoad((signal) => get<Schemas["McpServerList"]>("/mcp/servers", {}, signal), [], 3000);
  return (
    <>
      <Shown of={seen}>
        {({ items, refused, ignored }) => (
          <>
            {refused !== null && <Card title={t("ops_config_refused")} icon="alert" mood="bad"><p><Foreign text={refused} /></p></Card>}
            {ignored.length > 0 && <Card title={t("ops_config_ignored")} icon="alert" mood="warn"><Reasons of={ignored} /></Card>}
            {items.length === 0 && <EmptyState icon="plug" title={t("ops_no_servers")} />}
            {items.map((server) => <One key={server.name} server={server} onDone={seen.reload} />)}
          </>
        )}
      </Shown>
    </>
  );
}

const Reasons = ({ of }: { of: string[] }) => <ul class="reasons">{of.map((each) => <li key={each}><Foreign text={each} /></li>)}</ul>;

function One({ server, onDone }: { server: Server; onDone: () => void }) {
  const [busy, setBusy] = useState(false);
  const { changes = [] } = server;
  const reconnect = async (): Promise<void> => {
    setBusy(true);
    if (await attempt(() => post(`/mcp/servers/${encodeURIComponent(server.name)}/reconnect`))) toast(t("ops_reconnecting"));
    setBusy(false);
    onDone();
  };
  return (
    <Card title={<Foreign text={server.name} />} icon="plug" mood={moodOf(server.state) === "bad" ? "bad" : "neutral"}
      aside={<><Badge mood={moodOf(server.state)}>{serverState(server.state)}</Badge><Button class="small" icon="redo" disabled={busy} onClick={reconnect}>{t("ops_reconnect")}</Button></>}>
      <Facts facts={[
        [t("ops_since"), <When at={server.since} />],
        [t("ops_last_failure"), server.last_error === null ? <Foreign text={null} /> : <><Foreign text={server.last_error} /> <small class="muted">(<When at={server.last_error_at} />)</small></>],
      ]} />
      {server.tools.length > 0 && <ToolsOf names={server.tools} />}
      {server.left_out.length > 0 && <><h2>{t("ops_tools_left_out")}</h2><Reasons of={server.left_out.map(({ name, reason }) => `${name}: ${reason}`)} /></>}
      {changes.length > 0 && <><h2>{t("ops_redefined")}</h2>{changes.map((change) => <Change key={change.tool} change={change} />)}</>}
      {server.stderr.length > 0 && (
        <>
          <h2>{t("ops_stderr")}</h2>
          <pre class="stderr" dir="ltr" tabIndex={0} aria-label={t("ops_stderr")}>{server.stderr.map(plain).join("\n")}</pre>
        </>
      )}
    </Card>
  );
}

const FEW = 12;

/** A few stand there at once; many are folded, and searched. */
function ToolsOf({ names }: { names: string[] }) {
  const [open, setOpen] = useState(names.length <= FEW);
  const [searched, setSearched] = useState("");
  const matching = names.filter((name) => `${name} ${titleOf(name)}`.toLowerCase().includes(searched.trim().toLowerCase()));
  return (
    <details class="tools-of" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary><h2>{t("ops_tools")} ({number(names.length)})</h2></summary>
      {open && names.length > FEW && <input class="field" type="search" aria-label={t("ops_search_tools")} placeholder={t("ops_search_tools")} value={searched} dir="auto" onInput={(event) => setSearched(event.currentTarget.value)} />}
      {open && <ul tabIndex={0} aria-label={t("ops_tools")}>{matching.map((name) => <li key={name}><ToolName name={name} /></li>)}</ul>}
      {open && matching.length === 0 && <p class="muted">{t("nothing_found")}</p>}
    </details>
  );
}

function Change({ change }: { change: Schemas["DefinitionChange"] }) {
  const { tool, changed, changed_at, before, now } = change;
  return (
    <>
      <p><ToolName name={tool} /> <code>{changed.join(", ")}</code> <small class="muted">(<When at={changed_at} />)</small></p>
      <details>
        <summary>{t("ops_before_and_after")}</summary>
        <Facts facts={[[t("ops_before"), <JsonView value={before} />], [t("ops_after"), <JsonView value={now} />]]} />
      </details>
    </>
  );
}
