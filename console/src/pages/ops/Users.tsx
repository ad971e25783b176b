import { useState } from "preact/hooks";
import { call, put, remove, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Ask, Dialog } from "../../components/Dialog";
import { type Entry, Menu } from "../../components/Menu";
import { attempt, toast } from "../../components/Toast";
import { download } from "../../download";
import { number, t } from "../../i18n";
import { me } from "../../me";
import { go } from "../../router";
import { visible } from "../../text";
import { dollars, Foreign, List, to, usePaged } from "./parts";
import type { OpsView } from "./Ops";

type User = Schemas["OpsUser"];
type Limits = Schemas["LimitsToSet"];
const LIMITS = ["requests_per_minute", "turns_per_minute", "concurrent_turns", "tokens_per_day", "cost_per_day"] as const;
const EVERY_MS = 10_000;
const COUNTED = 1000;

/** The service counts no further. */
const counted = (rows: number): string => `${number(rows)}${rows === COUNTED ? "+" : ""}`;

export function Users(_: OpsView) {
  const users = usePaged<User>("/ops/users", {}, EVERY_MS);
  const [asked, setAsked] = useState<User | null>(null);
  const [erased, setErased] = useState<string | null>(null);
  return (
    <>
      <List of={users} label={t("ops_users")} icon="users" empty={t("ops_no_users")} keyOf={({ overview }) => overview.user} columns={[
        { label: t("user"), cell: ({ overview }) => <a href={to("ops/usage", { user: overview.user })}><Foreign text={overview.user} /></a> },
        { label: t("ops_keys_that_work"), end: true, cell: ({ overview }) => <a href={to("ops/keys", { user: overview.user })}>{number(overview.keys)}</a> },
        { label: t("ops_sessions"), end: true, cell: ({ overview }) => counted(overview.sessions) },
        { label: t("ops_turns_today"), end: true, cell: ({ overview }) => <a href={to("ops/turns", { owner: overview.user })}>{counted(overview.turns_today)}</a> },
        { label: t("ops_tokens_today"), end: true, cell: ({ overview }) => number(overview.tokens_today) },
        { label: t("ops_cost_today"), end: true, cell: ({ overview }) => dollars(overview.cost_today, overview.cost_complete) },
        { label: t("ops_limits"), cell: ({ limits }) => <Told limits={limits} /> },
        { label: t("ops_acts"), unsaid: true, end: true, cell: (user) => (
          <span class="acts">
            <Button class="small" icon="edit" label={t("ops_limits_of", { user: visible(user.overview.user) })} onClick={() => setAsked(user)} />
            <Menu class="small" label={t("more_of", { title: visible(user.overview.user) })} entries={acts(user.overview.user, setErased)} />
          </span>
        ) },
      ]} />
      {erased !== null && <Erase user={erased} onClose={() => setErased(null)} onDone={users.list.reload} />}
      {asked !== null && <LimitsDialog user={asked} onClose={() => setAsked(null)} onDone={users.list.reload} />}
    </>
  );
}

const acts = (user: string, erase: (user: string) => void): Entry[] => [
  { label: t("ops_turns"), icon: "list", act: () => go(to("ops/turns", { owner: user })) },
  { label: t("ops_usage"), icon: "bars", act: () => go(to("ops/usage", { user })) },
  { label: t("ops_keys"), icon: "key", act: () => go(to("ops/keys", { user })) },
  ...(me.value?.scopes.includes("ops:content") ? [{ label: t("ops_export"), icon: "download" as const, act: () => void download(`/ops/users/${encodeURIComponent(user)}/export`, {}, "segue-user.ndjson") }] : []),
  { label: t("ops_erase"), icon: "trash", danger: true, act: () => erase(user) },
];

/** The name has to be typed: it cannot be undone. */
function Erase({ user, onClose, onDone }: { user: string; onClose: () => void; onDone: () => void }) {
  const erase = async (typed: string): Promise<void> => {
    if (await attempt(() => call("DELETE", `/ops/users/${encodeURIComponent(user)}`, { query: { confirm: typed } }))) toast(t("ops_erased", { user: visible(user) }));
    onDone();
  };
  return <Ask title={t("ops_erase_title", { user: visible(user) })} text={t("ops_erase_text")} action={t("ops_erase")} danger value="" label={t("ops_erase_type")} onClose={onClose} onDone={erase} />;
}

/** Those in force; what operators set for this user stands out. */
function Told({ limits: { own, in_force } }: { limits: User["limits"] }) {
  const held = LIMITS.filter((name) => (in_force[name] ?? 0) > 0 || own[name] != null);
  if (held.length === 0) return <span class="muted">{t("ops_no_limits")}</span>;
  return <span class="stacked">{held.map((name) => <small key={name} class={own[name] != null ? "own" : ""}>{t(`ops_limit_${name}`)}: {in_force[name] ? number(in_force[name]) : "∞"}</small>)}</span>;
}

function LimitsDialog({ user: { overview, limits }, onClose, onDone }: { user: User; onClose: () => void; onDone: () => void }) {
  const [typed, setTyped] = useState<Record<string, string>>(Object.fromEntries(LIMITS.map((name) => [name, limits.own[name]?.toString() ?? ""])));
  const path = `/ops/users/${encodeURIComponent(overview.user)}/limits`;
  const done = async (act: () => Promise<unknown>): Promise<void> => {
    if (!(await attempt(act))) return;
    toast(t("ops_limits_set"));
    onDone();
    onClose();
  };
  const submit = (event: Event): void => {
    event.preventDefault();
    const body: Limits = Object.fromEntries(LIMITS.map((name) => [name, typed[name]?.trim() ? Number(typed[name]) : null]));
    void done(() => put(path, body));
  };
  return (
    <Dialog title={t("ops_limits_of", { user: visible(overview.user) })} onClose={onClose}>
      <form onSubmit={submit}>
        <p class="muted">{t("ops_limits_text")}</p>
        {LIMITS.map((name) => (
          <label key={name} class="named">{t(`ops_limit_${name}`)}
            <input class="field" type="number" min="0" step={name === "cost_per_day" ? "any" : "1"} value={typed[name]} placeholder={String(limits.in_force[name] ?? 0)}
              onInput={(event) => setTyped({ ...typed, [name]: event.currentTarget.value })} />
          </label>
        ))}
        <footer>
          <Button onClick={() => void done(() => remove(path))}>{t("ops_limits_lift")}</Button>
          <Button kind="primary" type="submit">{t("ops_set")}</Button>
        </footer>
      </form>
    </Dialog>
  );
}
