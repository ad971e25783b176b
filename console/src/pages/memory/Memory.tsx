/** What Segue knows about the caller: to read, correct and forget; all that is stored, to take along or to erase. */
import "./memory.css";
import { useEffect, useState } from "preact/hooks";
import { call, get, giveKey, type Listed, patch, post, remove, type Schemas } from "../../api";
import { Button, useBusy } from "../../components/Button";
import { Ask, Dialog } from "../../components/Dialog";
import { Icon } from "../../components/icons";
import { type Entry, Menu } from "../../components/Menu";
import { Badge, EmptyState, Failure, Spinner } from "../../components/parts";
import { attempt, toastAfterReload } from "../../components/Toast";
import { download } from "../../download";
import { onFeed } from "../../events";
import { Frame } from "../../Frame";
import { ago, money, number, t, time } from "../../i18n";
import { useLoad } from "../../load";
import { me } from "../../me";
import type { Command } from "../../palette";
import { go, href, type Route } from "../../router";
import { visible } from "../../text";
import { forgetKept } from "../chat/outbox";
import { Logins } from "./Logins";
import { Mandates } from "./Mandates";

type Fact = Schemas["Memory"];
type Kind = Fact["kind"];
type Asked = { kind: "edit"; fact: Fact | null } | { kind: "forget"; fact: Fact } | { kind: "erase" };

const KINDS: Kind[] = ["fact", "preference", "personal_info", "contact", "project"];
const PAGE = 50;
const LONGEST = 500;

const acts = (): Entry[] => [
  { label: t("export_all"), icon: "download", act: () => void download("/me/export", {}, "segue.ndjson") },
  { label: t("erase_me"), icon: "trash", danger: true, act: () => go("#/memory?do=erase") },
];

/** For every page: what is asked for first is asked for by the address. */
export const memoryCommands = (): Command[] =>
  [{ label: t("add_fact"), icon: "plus" as const, act: () => go("#/memory?do=add") }, ...acts()].map((each) => ({ icon: "brain" as const, ...each, hint: t("page_memory") }));

const askedBy = (query: URLSearchParams): Asked | null => ({ add: { kind: "edit" as const, fact: null }, erase: { kind: "erase" as const } })[query.get("do") ?? ""] ?? null;

export function Memory({ route }: { route: Route }) {
  const [typed, setTyped] = useState("");
  const [query, setQuery] = useState("");
  const [asked, setAsked] = useState<Asked | null>(null);
  const facts = useFacts(query);
  useEffect(() => {
    const timer = setTimeout(() => setQuery(typed.trim()), 200);
    return () => clearTimeout(timer);
  }, [typed]);
  useEffect(() => setAsked(askedBy(route.query)), [route]);
  const close = (): void => (route.query.has("do") ? go("#/memory", { replace: true }) : setAsked(null));
  const done = (act: () => Promise<unknown>) => async (): Promise<void> => {
    if (await attempt(act)) facts.reload();
  };
  return (
    <Frame title={t("page_memory")} actions={<Actions onAdd={() => setAsked({ kind: "edit", fact: null })} />}>
      <div class="page memory">
        <p class="muted">{t("memory_text")}</p>
        <div class="memory-search">
          <Icon name="search" size={16} />
          <input class="field" type="search" value={typed} placeholder={t("search_memory")} aria-label={t("search_memory")} dir="auto"
            onInput={(event) => setTyped(event.currentTarget.value)} />
        </div>
        {facts.problem !== null && <Failure problem={facts.problem} onRetry={facts.reload} />}
        {facts.items === null && facts.problem === null && <Spinner />}
        {facts.items?.length === 0 && <EmptyState icon="brain" title={t(query ? "nothing_found" : "no_memory")} />}
        <ul class="facts" aria-label={t("page_memory")}>
          {facts.items?.map((fact) => (
            <FactRow key={fact.id} fact={fact} onEdit={() => setAsked({ kind: "edit", fact })} onForget={() => setAsked({ kind: "forget", fact })} />
          ))}
        </ul>
        {facts.more !== null && <Button onClick={facts.more}>{t("show_more")}</Button>}
        <Mandates />
        <Logins />
        <Usage />
      </div>
      {asked?.kind === "edit" && <EditFact fact={asked.fact} onClose={close} onDone={facts.reload} />}
      {asked?.kind === "forget" && (
        <Ask title={t("forget_fact")} text={t("forget_fact_text", { fact: visible(asked.fact.content) })} action={t("forget")} danger onClose={close}
          onDone={done(() => remove(`/memories/${asked.fact.id}`))} />
      )}
      {asked?.kind === "erase" && <Erase onClose={close} />}
    </Frame>
  );
}

function Actions({ onAdd }: { onAdd: () => void }) {
  return (
    <>
      <Button icon="plus" onClick={onAdd}>{t("add_fact")}</Button>
      <Menu label={t("your_data")} icon="more" entries={acts()} />
    </>
  );
}

interface Facts {
  items: Fact[] | null;
  problem: ReturnType<typeof useLoad>["problem"];
  more: (() => void) | null;
  reload: () => void;
}

/** A page at a time; read again when a fact is noted. */
function useFacts(query: string): Facts {
  const [limit, setLimit] = useState(PAGE);
  useEffect(() => setLimit(PAGE), [query]);
  const found = useLoad((signal) => upTo(limit, query, signal), [query, limit]);
  useEffect(() => onFeed((event) => event.type === "fact_noted" && found.reload()), [found.reload]);
  const more = found.value?.next_cursor == null ? null : () => setLimit(limit + PAGE);
  return { items: found.value?.items ?? null, problem: found.problem, more, reload: found.reload };
}

async function upTo(limit: number, query: string, signal: AbortSignal): Promise<Listed<Fact>> {
  const items: Fact[] = [];
  let cursor: string | null = null;
  do {
    const page: Listed<Fact> = await get("/memories", { query, cursor, limit: Math.min(limit - items.length, 200) }, signal);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null && items.length < limit);
  return { items, next_cursor: cursor };
}

function FactRow({ fact, onEdit, onForget }: { fact: Fact; onEdit: () => void; onForget: () => void }) {
  const content = visible(fact.content);
  return (
    <li class="fact">
      <div class="grow">
        <p dir="auto">{content}</p>
        <p class="about">
          <Badge mood="neutral">{t(`kind_${fact.kind}`)}</Badge>
          <span title={time(fact.created_at)}>{t("noted", { when: ago(fact.created_at) })}</span>
          {fact.last_used_at != null && <span title={time(fact.last_used_at)}>{t("last_used", { when: ago(fact.last_used_at) })}</span>}
          {fact.session_id != null && <a href={href("sessions", fact.session_id)}>{t("where_told")}</a>}
        </p>
      </div>
      <Button kind="quiet" class="small" icon="edit" label={t("edit_fact", { fact: content })} onClick={onEdit} />
      <Button kind="quiet" class="small" icon="trash" label={t("forget_named", { fact: content })} onClick={onForget} />
    </li>
  );
}

/** Changes a fact, or adds one. */
function EditFact({ fact, onClose, onDone }: { fact: Fact | null; onClose: () => void; onDone: () => void }) {
  const [content, setContent] = useState(fact?.content ?? "");
  const [kind, setKind] = useState<Kind>(fact?.kind ?? "fact");
  const [busy, once] = useBusy();
  const save = async (): Promise<void> => {
    const body = { content: content.trim(), kind };
    const saved = await attempt(() => (fact === null ? post("/memories", body) : patch(`/memories/${fact.id}`, body)));
    if (!saved) return;
    onClose();
    onDone();
  };
  const title = t(fact === null ? "add_fact" : "edit");
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); void once(save); }}>
        <textarea class="field" rows={4} maxLength={LONGEST} value={content} aria-label={t("fact")} dir="auto" autoFocus
          onInput={(event) => setContent(event.currentTarget.value)} />
        <select class="field" value={kind} aria-label={t("kind")} onChange={(event) => setKind(event.currentTarget.value as Kind)}>
          {KINDS.map((each) => <option key={each} value={each}>{t(`kind_${each}`)}</option>)}
        </select>
        <footer>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button kind="primary" type="submit" disabled={busy || !content.trim()}>{t("save")}</Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** Takes the caller's own name: it cannot be undone. */
function Erase({ onClose }: { onClose: () => void }) {
  const [typed, setTyped] = useState("");
  const user = me.value?.user ?? "";
  const [busy, once] = useBusy();
  const erase = async (): Promise<void> => {
    if (!(await attempt(() => call("DELETE", "/me", { query: { confirm: typed } })))) return;
    await forgetKept();
    giveKey(null);
    toastAfterReload(t("erased"));
    location.hash = href();
    location.reload();
  };
  return (
    <Dialog title={t("erase_me")} onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); void once(erase); }}>
        <p>{t("erase_me_text")}</p>
        <p>{t("type_to_confirm", { user })}</p>
        <input class="field" value={typed} aria-label={t("type_to_confirm", { user })} autoComplete="off" dir="auto" autoFocus
          onInput={(event) => setTyped(event.currentTarget.value)} />
        <footer>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button kind="danger" type="submit" disabled={busy || user === "" || typed !== user}>{t("erase_me")}</Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** Who is calling, and what their model calls took in the last thirty days. */
function Usage() {
  const days = useLoad((signal) => get<Listed<Schemas["UsageTotal"]>>("/usage", { group: "day", limit: 30 }, signal), []);
  const items = days.value?.items ?? [];
  const sum = (of: (day: Schemas["UsageTotal"]) => number): string => (days.value === null ? "–" : number(items.reduce((total, day) => total + of(day), 0)));
  const costs = items.map(({ cost }) => cost).filter((cost) => cost != null);
  return (
    <section class="usage" aria-label={t("your_usage")}>
      <h2>{t("your_usage")}</h2>
      <dl>
        <div><dt>{t("user")}</dt><dd><bdi>{me.value?.user}</bdi></dd></div>
        {(me.value?.scopes.length ?? 0) > 0 && <div><dt>{t("scopes")}</dt><dd><bdi>{me.value?.scopes.join(", ")}</bdi></dd></div>}
        <div><dt>{t("model_calls")}</dt><dd>{sum((day) => day.llm_calls)}</dd></div>
        <div><dt>{t("tokens")}</dt><dd>{sum((day) => day.input_tokens + day.output_tokens)}</dd></div>
        {costs.length > 0 && <div><dt>{t("cost")}</dt><dd>{items.every((day) => day.cost_complete) ? "" : "≥ "}{money(costs.reduce((total, cost) => total + cost, 0))}</dd></div>}
      </dl>
    </section>
  );
}
