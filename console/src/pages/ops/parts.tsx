/** What the pages for operators are made of: times, names that others gave, rows, and lists by pages. */
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, type Listed, type Query } from "../../api";
import { Button, CopyButton } from "../../components/Button";
import type { IconName } from "../../components/icons";
import { EmptyState, Failure, type Mood, Spinner } from "../../components/parts";
import { attempt } from "../../components/Toast";
import { ago, duration, exact, money, number, t } from "../../i18n";
import { type Loaded, useLoad } from "../../load";
import { go } from "../../router";
import { visible } from "../../text";
import { titleOf } from "../../tools";

export const NONE = "–";

export const count = (of: number | null): string => (of === null ? NONE : number(of));

/** What is known of a cost: a part has no price if it is not complete. */
export const dollars = (cost: number | null | undefined, complete: boolean | undefined): string =>
  cost == null ? NONE : `${complete === false ? "≥ " : ""}${money(cost)}`;
const PAGE = 50;

/** How long ago, or in how long; the second itself on hovering. */
export const When = ({ at }: { at: string | null | undefined }) =>
  at == null ? <span class="muted">{NONE}</span> : <time dateTime={at} title={exact(at)}>{ago(at)}</time>;

/** The same in a sentence: "Expires in 5 minutes". */
export const WhenSaid = ({ at, as }: { at: string; as: "ops_asked" | "ops_expires" }) => <time dateTime={at} title={exact(at)}>{t(as, { when: ago(at) })}</time>;

/** How long something lasts that has not ended. */
export const For = ({ since }: { since: string | null | undefined }) =>
  since == null ? <span class="muted">{NONE}</span> : (
    <time class="nums" dateTime={since} title={exact(since)}>{duration(Math.max(0, Date.now() - new Date(since).getTime()))}</time>
  );

/** A name or a reason that others wrote: text, in its own direction. */
export const Foreign = ({ text }: { text: string | null | undefined }) =>
  text == null || text === "" ? <span class="muted">{NONE}</span> : <bdi>{visible(text)}</bdi>;

/** The end of an id, which tells it from others; whole on hovering and for the clipboard. */
export const Id = ({ id, copies = false }: { id: string; copies?: boolean }) => (
  <span class="id"><code dir="ltr" title={id}>…{id.slice(-8)}</code>{copies && <CopyButton text={id} label={t("ops_copy_id")} />}</span>
);

/** A tool by the name that it has for people, with the one that the model calls it by. */
export const ToolName = ({ name, link = true }: { name: string; link?: boolean }) => {
  const title = titleOf(name);
  const shown = <><bdi>{title}</bdi>{title !== visible(name) && <code class="real" dir="ltr">{visible(name)}</code>}</>;
  return link ? <a class="tool-name" href={`#/tools/${encodeURIComponent(name)}`}>{shown}</a> : <span class="tool-name">{shown}</span>;
};

/** How much of the most it is. */
export const Bar = ({ part }: { part: number }) => (
  <div class="track" dir="ltr" aria-hidden="true"><div class="span model" style={{ left: "0%", width: `${Math.min(1, part) * 100}%` }} /></div>
);

/** An address of these pages with a filter: `#/ops/turns?status=failed`. */
export const to = (path: string, query: Record<string, string | null> = {}): string => {
  const asked = new URLSearchParams(Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1])));
  return `#/${path}${asked.size > 0 ? `?${asked}` : ""}`;
};

/** What a page shows of what it reads: waiting, what went wrong, or it. Old figures stay while new ones fail. */
export function Shown<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }) {
  return (
    <>
      {of.problem !== null && <Failure problem={of.problem} onRetry={of.reload} />}
      {of.value !== null ? children(of.value) : of.problem === null && <div class="waiting"><Spinner /></div>}
    </>
  );
}

export interface Paged<T> {
  list: Loaded<T[]>;
  more: (() => Promise<void>) | null;
}

/** A list by pages. The first is read again every so often, until another was asked for. */
export function usePaged<T>(path: string, query: Query = {}, everyMs?: number): Paged<T> {
  const asked = JSON.stringify([path, query]);
  const [rest, setRest] = useState<{ of: string; page: Listed<T> } | null>(null);
  const further = rest?.of === asked ? rest.page : null;
  const first = useLoad(
    async (signal) => ({ of: asked, page: await get<Listed<T>>(path, { ...query, limit: PAGE }, signal) }),
    [asked],
    further === null ? everyMs : undefined,
  );
  const page = first.value?.of === asked ? first.value.page : null;
  const cursor = (further ?? page)?.next_cursor ?? null;
  const more = async (): Promise<void> =>
    void (await attempt(async () => {
      const next = await get<Listed<T>>(path, { ...query, limit: PAGE, cursor });
      setRest({ of: asked, page: { ...next, items: [...(further?.items ?? []), ...next.items] } });
    }));
  const reload = (): void => {
    setRest(null);
    first.reload();
  };
  const value = page === null ? null : [...page.items, ...(further?.items ?? [])];
  return { list: { value, problem: first.problem, reload }, more: cursor === null ? null : more };
}

export interface Column<T> {
  label: string;
  cell: (item: T) => ComponentChildren;
  /** Numbers, and what is done to a row. */
  end?: boolean;
  /** The name is only read aloud. */
  unsaid?: boolean;
}

interface RowsGiven<T> {
  label: string;
  columns: Column<T>[];
  items: T[];
  keyOf: (item: T) => string;
}

/** A table; on a phone a card for each row. The roles are said, since a table that is laid out otherwise loses them. */
export function Rows<T>({ label, columns, items, keyOf }: RowsGiven<T>) {
  const side = (end: boolean | undefined): string => (end ? "end" : "");
  return (
    <div class="scrolls"><table class="rows" role="table" aria-label={label}>
      <thead role="rowgroup">
        <tr role="row">{columns.map((each) => <th key={each.label} role="columnheader" scope="col" class={side(each.end)}>{each.unsaid ? <span class="unsaid">{each.label}</span> : each.label}</th>)}</tr>
      </thead>
      <tbody role="rowgroup">
        {items.map((item) => (
          <tr key={keyOf(item)} role="row">
            {columns.map((each) => <td key={each.label} role="cell" class={side(each.end)} data-label={each.unsaid ? "" : each.label}><div>{each.cell(item)}</div></td>)}
          </tr>
        ))}
      </tbody>
    </table></div>
  );
}

interface ListGiven<T> extends Omit<RowsGiven<T>, "items"> {
  of: Paged<T>;
  empty: string;
  icon: IconName;
}

export function List<T>({ of, empty, icon, ...rows }: ListGiven<T>) {
  const { problem } = of.list;
  if (problem?.status === 404) return <EmptyState icon={icon} title={t("nothing_found")}><p dir="auto">{visible(problem.detail)}</p></EmptyState>; // what a filter names is not there
  return (
    <Shown of={of.list}>
      {(items) => items.length === 0 ? <EmptyState icon={icon} title={empty} /> : (
        <>
          <Rows {...rows} items={items} />
          {of.more !== null && <div class="more"><Button onClick={of.more}>{t("ops_more")}</Button></div>}
        </>
      )}
    </Shown>
  );
}

/** Filters that live in the address, so that a link keeps them and Back undoes them. */
export function Filters({ path, query, names, children }: { path: string; query: URLSearchParams; names: Record<string, string>; children?: ComponentChildren }) {
  const set = (name: string, value: string): void => go(to(path, { ...Object.fromEntries(query), [name]: value.trim() }), { replace: true });
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      {children}
      {Object.entries(names).map(([name, label]) => <TextFilter key={name} label={label} value={query.get(name) ?? ""} onSet={(value) => set(name, value)} />)}
      {query.size > 0 && <Button kind="quiet" icon="cross" onClick={() => go(to(path), { replace: true })}>{t("ops_clear")}</Button>}
    </form>
  );
}

/** Takes effect on Enter, and on leaving the field. */
function TextFilter({ label, value, onSet }: { label: string; value: string; onSet: (value: string) => void }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const done = (): void => {
    if (typed.trim() !== value) onSet(typed);
  };
  return (
    <input class="field" type="search" placeholder={label} aria-label={label} value={typed} dir="auto" maxLength={200}
      onInput={(event) => setTyped(event.currentTarget.value)} onBlur={done} onKeyDown={(event) => event.key === "Enter" && done()}
      onSearch={done} />
  );
}

interface ChoiceGiven {
  label: string;
  value: string;
  among: Record<string, string>;
  onChange: (value: string) => void;
}

export const Choice = ({ label, value, among, onChange }: ChoiceGiven) => (
  <select class="field" aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
    {Object.entries(among).map(([each, name]) => <option key={each} value={each}>{name}</option>)}
  </select>
);

/** A figure and what it is of. */
export const Tile = ({ label, value, more, href, mood = "neutral" }: { label: string; value: ComponentChildren; more?: ComponentChildren; href?: string; mood?: Mood }) => {
  const inside = <><span class="of">{label}</span><strong class="nums">{value}</strong><span class="about">{more}</span></>;
  return href === undefined ? <div class={`tile ${mood}`}>{inside}</div> : <a class={`tile ${mood}`} href={href}>{inside}</a>;
};

/** What is known of one thing. */
export const Facts = ({ facts }: { facts: [string, ComponentChildren][] }) => (
  <dl class="known">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
);
