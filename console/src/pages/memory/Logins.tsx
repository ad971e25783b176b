/** The caller's logins at MCP servers: begun with a link, which opens beside this page, and ended. */
import { useState } from "preact/hooks";
import { get, type Listed, post, remove, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { attempt } from "../../components/Toast";
import { ago, t } from "../../i18n";
import { useLoad } from "../../load";
import { visible } from "../../text";

type Login = Schemas["McpLogin"];

const path = (login: Login): string => `/mcp/servers/${encodeURIComponent(login.server)}/login`;

export function Logins() {
  const logins = useLoad(async (signal) => (await get<Listed<Login>>("/mcp/logins", {}, signal)).items, [], 5000);
  if (!logins.value?.length) return null;
  return (
    <section class="usage" aria-label={t("your_logins")}>
      <h2>{t("your_logins")}</h2>
      <dl>{logins.value.map((login) => <One key={`${login.server} ${login.since ?? ""}`} login={login} onDone={logins.reload} />)}</dl>
    </section>
  );
}

function One({ login, onDone }: { login: Login; onDone: () => void }) {
  const [link, setLink] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const act = (what: () => Promise<void>) => async (): Promise<void> => {
    setBusy(true);
    await attempt(what);
    setBusy(false);
    onDone();
  };
  const begin = act(async () => setLink((await post<Schemas["BegunLogin"]>(path(login))).url));
  const end = act(async () => void (await remove(path(login))));
  return (
    <div>
      <dt dir="auto">{visible(login.server)}</dt>
      <dd>
        {login.since !== null && <span class="muted">{ago(login.since)} </span>}
        {login.state === "logged_in" && <Button class="small" disabled={busy} onClick={end}>{t("log_out")}</Button>}
        {login.state === "logged_out" && link === null && <Button class="small" disabled={busy} onClick={begin}>{t("log_in")}</Button>}
        {login.state === "logged_out" && link !== null && <a href={link} target="_blank" rel="noopener noreferrer">{t("open_to_log_in", { host: new URL(link).host })}</a>}
      </dd>
    </div>
  );
}
