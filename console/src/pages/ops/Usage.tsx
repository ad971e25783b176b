import { useState } from "preact/hooks";
import { pages, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { attempt } from "../../components/Toast";
import { csv, save } from "../../download";
import { compact, day, money, number, share, t, units } from "../../i18n";
import { type Loaded, useLoad } from "../../load";
import { go } from "../../router";
import { Chart } from "./Chart";
import { Bar, Choice, type Column, dollars, Filters, Foreign, Rows, Shown, to } from "./parts";
import type { OpsView } from "./Ops";

type Total = Schemas["UsageTotal"];
const GROUPS = ["user", "agent", "model", "session", "day"] as const;
const RANGES = [7, 30, 90, 365];
const DAY_MS = 86_400_000;
const MOST = 2000;
const MOST_DAYS = 731;
const COLUMNS = ["key", "llm_calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "estimated", "cost", "cost_complete"] as const;

const dated = (at: number): string => new Date(at).toISOString().slice(0, 10);

async function all(query: Record<string, string | boolean | null>, signal?: AbortSignal): Promise<Total[]> {
  const found: Total[] = [];
  for await (const page of pages<Total>("/usage", { ...query, limit: 200 }, MOST, signal)) found.push(...page);
  return found;
}

const isDay = (text: string): boolean => /^2\d{3}-\d{2}-\d{2}$/.test(text) && !Number.isNaN(Date.parse(text));
const lengthOf = (from: string, until: string): number => (Date.parse(until) - Date.parse(from)) / DAY_MS + 1;
const isRange = (from: string, until: string): boolean => isDay(from) && isDay(until) && lengthOf(from, until) >= 1 && lengthOf(from, until) <= MOST_DAYS;

/** The range that the address asks for; the last thirty days if it names none, or one that is too long to draw. */
function rangeIn(query: URLSearchParams): { from: string; until: string } {
  const until = query.get("to") ?? dated(Date.now());
  const last = isDay(until) ? until : dated(Date.now());
  const from = query.get("from") ?? "";
  return { from: isRange(from, last) ? from : dated(Date.parse(last) - 29 * DAY_MS), until: last };
}

/** What was read for another question is not shown as the answer to this one. */
function useTotals(asked: Record<string, string | boolean | null>): Loaded<Total[]> {
  const of = JSON.stringify(asked);
  const read = useLoad(async (signal) => ({ of, found: await all(asked, signal) }), [of]);
  return { ...read, value: read.value?.of === of ? read.value.found : null };
}

/** What a range of days took, of all users or of one: a bar for each day, and a sum for each of a kind. */
export function Usage({ query }: OpsView) {
  const group = GROUPS.find((each) => each === query.get("group")) ?? "user";
  const user = query.get("user");
  const { from, until } = rangeIn(query);
  const asked = { from, to: until, ...(user === null ? { everyone: true } : { user }) };
  const days = useTotals({ ...asked, group: "day" });
  const totals = useTotals({ ...asked, group });
  const set = (changes: Record<string, string | null>): void => go(to("ops/usage", { ...Object.fromEntries(query), ...changes }), { replace: true });
  const saved = (): Promise<boolean> => attempt(async () => save(csv(COLUMNS, await all({ ...asked, group })), "text/csv", `usage-${group}-${from}-${until}.csv`));
  return (
    <>
      <Filters path="ops/usage" query={query} names={{ user: t("user") }}>
        <Choice label={t("ops_by")} value={group} among={Object.fromEntries(GROUPS.map((each) => [each, t(`ops_by_${each}`)]))} onChange={(value) => set({ group: value })} />
        <Days from={from} until={until} onChange={set} />
        <Button icon="download" onClick={saved}>CSV</Button>
      </Filters>
      <Shown of={days}>{(found) => <Bars found={found} from={from} until={until} user={user} />}</Shown>
      <Shown of={totals}>{(found) => <Totals found={found} group={group} linked={(key) => to("ops/usage", { ...Object.fromEntries(query), group: "day", user: key })} />}</Shown>
    </>
  );
}

function Days({ from, until, onChange }: { from: string; until: string; onChange: (changes: Record<string, string | null>) => void }) {
  const length = lengthOf(from, until);
  const among = Object.fromEntries([...new Set([...RANGES, length])].sort((one, other) => one - other).map((n) => [String(n), units(n, "day")]));
  return (
    <>
      <Choice label={t("ops_range")} value={String(length)} among={among} onChange={(n) => onChange({ from: dated(Date.now() - (Number(n) - 1) * DAY_MS), to: null })} />
      <Day label={t("ops_from_day")} value={from} max={until} allowed={(day) => isRange(day, until)} onSet={(day) => onChange({ from: day, to: until })} />
      <Day label={t("ops_to_day")} value={until} min={from} allowed={(day) => isRange(from, day)} onSet={(day) => onChange({ from, to: day })} />
    </>
  );
}

interface DayGiven {
  label: string;
  value: string;
  min?: string;
  max?: string;
  allowed: (day: string) => boolean;
  onSet: (day: string) => void;
}

/** Takes effect on Enter, and on leaving the field: while a year is typed it is 2, 20 and 202. */
function Day({ label, value, min, max, allowed, onSet }: DayGiven) {
  const done = ({ currentTarget: field }: { currentTarget: HTMLInputElement }): void => {
    if (field.value === value) return;
    if (allowed(field.value)) onSet(field.value);
    else field.value = value;
  };
  return <input class="field" type="date" aria-label={label} value={value} min={min} max={max} onBlur={done} onKeyDown={(event) => event.key === "Enter" && done(event)} />;
}

const NOTHING = { llm_calls: 0, input_tokens: 0, cached_tokens: 0, output_tokens: 0, cost: 0 };

/** Days without use are days as well. A bar leads to the turns of its day. */
function Bars({ found, from, until, user }: { found: Total[]; from: string; until: string; user: string | null }) {
  const known = new Map(found.map((each) => [each.key, each]));
  const points = Array.from({ length: lengthOf(from, until) }, (_, index) => {
    const key = dated(Date.parse(from) + index * DAY_MS);
    return { ...NOTHING, ...known.get(key), key };
  });
  const hrefOf = ({ key }: { key: string }): string => to("ops/turns", { owner: user, since: `${key}T00:00:00Z`, until: `${dated(Date.parse(key) + DAY_MS)}T00:00:00Z` });
  const given = { points, hrefOf, when: ({ key }: { key: string }) => day(key), kind: "bars" as const };
  return (
    <div class="charts">
      <Chart {...given} label={t("tokens")} say={compact} series={[
        { name: t("ops_cached"), colour: "soft", of: (each) => each.cached_tokens },
        { name: t("ops_sent"), colour: "accent", of: (each) => each.input_tokens - each.cached_tokens },
        { name: t("ops_received"), colour: "muted", of: (each) => each.output_tokens }]} />
      <Chart {...given} label={t("cost")} say={money} series={[{ name: "USD", colour: "accent", of: (each) => each.cost }]} />
    </div>
  );
}

function Totals({ found, group, linked }: { found: Total[]; group: (typeof GROUPS)[number]; linked: (user: string) => string }) {
  const [byCost, setByCost] = useState(false);
  const weight = ({ cost, input_tokens, output_tokens }: Total): number => (byCost ? (cost ?? 0) : input_tokens + output_tokens);
  const most = Math.max(...found.map(weight), Number.MIN_VALUE);
  const sorted = group === "day" ? found.toReversed() : found.toSorted((one, other) => weight(other) - weight(one) || other.llm_calls - one.llm_calls);
  const name = ({ key }: Total) => {
    if (key === null) return <span class="muted">{t("ops_deleted_sessions")}</span>;
    if (group === "user") return <a href={linked(key)}><Foreign text={key} /></a>;
    if (group === "day") return <time dateTime={key}>{day(key, "numeric")}</time>;
    return group === "session" ? <a href={`#/ops/sessions/${key}`}><code dir="ltr">{key}</code></a> : <Foreign text={key} />;
  };
  const columns: Column<Total>[] = [
    { label: t(`ops_by_${group}`), cell: name },
    { label: t("ops_share"), cell: (each) => <Bar part={weight(each) / most} /> },
    { label: t("model_calls"), end: true, cell: ({ llm_calls }) => number(llm_calls) },
    { label: t("ops_sent"), end: true, cell: ({ input_tokens }) => number(input_tokens) },
    { label: t("ops_cached"), end: true, cell: ({ cached_tokens, input_tokens }) => share(cached_tokens, input_tokens) },
    { label: t("ops_received"), end: true, cell: ({ output_tokens }) => number(output_tokens) },
    { label: t("cost"), end: true, cell: ({ cost, cost_complete }) => dollars(cost, cost_complete) },
  ];
  if (found.length === 0) return <p class="muted">{t("ops_nothing_used")}</p>;
  return (
    <section class="totals">
      <header class="lead">
        <h2>{t(`ops_by_${group}`)}</h2><span class="grow" />
        <Choice label={t("ops_share")} value={byCost ? "cost" : "tokens"} among={{ tokens: t("tokens"), cost: t("cost") }} onChange={(value) => setByCost(value === "cost")} />
      </header>
      <Rows label={t("ops_usage")} items={sorted} keyOf={({ key }) => key ?? ""} columns={columns} />
    </section>
  );
}
