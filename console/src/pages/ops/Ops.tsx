import "./ops.css";
import type { ComponentType } from "preact";
import { EmptyState, Spinner } from "../../components/parts";
import { Icon, type IconName } from "../../components/icons";
import { Frame } from "../../Frame";
import { type Text, t } from "../../i18n";
import { isOps, me } from "../../me";
import type { Command } from "../../palette";
import { go, type Route } from "../../router";
import { Approvals } from "./Approvals";
import { Audit } from "./Audit";
import { Doctor } from "./Doctor";
import { Feedback } from "./Feedback";
import { Keys } from "./Keys";
import { Overview } from "./Overview";
import { Servers } from "./Servers";
import { Session } from "./Session";
import { Tool, Tools } from "./Tools";
import { Turn } from "./Turn";
import { Turns } from "./Turns";
import { Usage } from "./Usage";
import { Users } from "./Users";
import { Webhooks } from "./Webhooks";

export interface OpsView {
  /** What follows in the address after the name. */
  id: string;
  query: URLSearchParams;
}

interface OpsPage {
  path: string;
  label: Text;
  /** What it shows, at its head. */
  text?: Text;
  icon: IconName;
  view: ComponentType<OpsView>;
  /** Where a page belongs that is shown by links only. */
  within?: string;
  /** Of one of them; without it the page has no address below. */
  one?: { label: Text; view: ComponentType<OpsView> };
}

const PAGES: OpsPage[] = [
  { path: "ops", label: "ops_overview", icon: "gauge", view: Overview },
  { path: "ops/turns", label: "ops_turns", text: "ops_turns_text", icon: "list", view: Turns, one: { label: "ops_turn", view: Turn } },
  { path: "ops/approvals", label: "ops_approvals", text: "ops_approvals_text", icon: "shield", view: Approvals },
  { path: "tools", label: "ops_tools", text: "ops_tools_text", icon: "tool", view: Tools, one: { label: "ops_tool", view: Tool } },
  { path: "ops/mcp", label: "ops_servers", text: "ops_servers_text", icon: "plug", view: Servers },
  { path: "ops/webhooks", label: "ops_webhooks", text: "ops_webhooks_text", icon: "sends", view: Webhooks },
  { path: "ops/doctor", label: "ops_doctor", text: "ops_doctor_text", icon: "pulse", view: Doctor },
  { path: "ops/users", label: "ops_users", text: "ops_users_text", icon: "users", view: Users },
  { path: "ops/keys", label: "ops_keys", text: "ops_keys_text", icon: "key", view: Keys },
  { path: "ops/usage", label: "ops_usage", text: "ops_usage_text", icon: "bars", view: Usage },
  { path: "ops/feedback", label: "ops_feedback", text: "ops_feedback_text", icon: "star", view: Feedback },
  { path: "ops/audit", label: "ops_audit", text: "ops_audit_text", icon: "book", view: Audit },
];
/** Shown by links only. */
const HIDDEN: OpsPage[] = [{ path: "ops/sessions", label: "ops_session", icon: "chat", view: Session, within: "ops/turns", one: { label: "ops_session", view: Session } }];

export const opsCommands = (): Command[] => PAGES.map(({ path, label, icon }) => ({ label: t(label), icon, hint: t("page_ops"), act: () => go(`#/${path}`) }));

/** `#/ops/...`, and `#/tools/{name}`: for the scope `ops`. */
export function Ops({ route }: { route: Route }) {
  if (me.value === null) return <Frame title={t("page_ops")}><div class="waiting"><Spinner /></div></Frame>;
  if (!isOps()) return <Frame title={t("page_ops")}><EmptyState icon="key" title={t("ops_refused")}><p>{t("ops_refused_text")}</p></EmptyState></Frame>;
  const { page, id } = found(route);
  const shown = id === "" ? page : page.one;
  return (
    <Frame title={shown ? t(shown.label) : t("not_found")} side={<Side current={page.within ?? page.path} />}>
      <div class="page ops">
        {id === "" && page.text && <p class="muted">{t(page.text)}</p>}
        {shown ? <shown.view key={route.path.join("/")} id={id} query={route.query} /> : <EmptyState icon="search" title={t("not_found")} />}
      </div>
    </Frame>
  );
}

function found(route: Route): { page: OpsPage; id: string } {
  const words = [route.page, ...route.path];
  const page = [...PAGES, ...HIDDEN].sort((one, other) => other.path.length - one.path.length).find(({ path }) => words.join("/") === path || words.join("/").startsWith(`${path}/`));
  if (page === undefined || (page.path === "ops" && words.length > 1)) return { page: { path: "", label: "not_found", icon: "search", view: Nothing }, id: "" };
  return { page, id: words.slice(page.path.split("/").length).join("/") };
}

const Nothing = () => <EmptyState icon="search" title={t("not_found")} />;

function Side({ current }: { current: string }) {
  return (
    <nav class="places" aria-label={t("page_ops")}>
      {PAGES.map(({ path, label, icon }) => (
        <a key={path} href={`#/${path}`} aria-current={path === current ? "page" : undefined}><Icon name={icon} size={17} />{t(label)}</a>
      ))}
    </nav>
  );
}
