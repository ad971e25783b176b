import { get, Problem, type Schemas } from "../../api";
import { Icon, type IconName } from "../../components/icons";
import { Badge, Card, Failure } from "../../components/parts";
import { clock, compact, duration, money, number, share, t } from "../../i18n";
import { type Loaded, useLoad } from "../../load";
import { go } from "../../router";
import { visible } from "../../text";
import { titleOf } from "../../tools";
import { Chart } from "./Chart";
import { dollars, Foreign, Rows, Shown, Tile, to } from "./parts";
import type { OpsView } from "./Ops";
import { serverState } from "./Servers";

type Found = Schemas["Overview"];
type Figures = Schemas["Figures"];
type Bucket = Schemas["Bucket"];
type Ready = Record<string, string | Record<string, string>>;

export function Overview({ query }: OpsView) {
  const window = query.get("window") === "day" ? "day" : "hour";
  const seen = useLoad((signal) => get<Found>("/ops/overview", { window }, signal), [window], window === "hour" ? 5000 : 20_000);
  const tools = useLoad((signal) => get<Schemas["FleetToolStates"]>("/tool-states", { limit: 1 }, signal), [], 10_000);
  const ready = useLoad(readiness, [], 10_000);
  return (
    <>
      <div class="windows" role="group" aria-label={t("ops_window")}>
        {(["hour", "day"] as const).map((each) => (
          <button key={each} type="button" class="button small" aria-pressed={each === window} onClick={() => go(to("ops", { window: each }), { replace: true })}>
            {t(`ops_last_${each}`)}
          </button>
        ))}
        {seen.value !== null && <span class="muted asked">{t("ops_as_of")} <time dateTime={seen.value.at} class="nums">{clock(seen.value.at, true)}</time></span>}
      </div>
      <Shown of={seen}>
        {(found) => (
          <>
            <Attention seen={found} tools={tools} ready={ready} />
            <Tiles seen={found} />
            <Charts figures={found.figures} />
            <Details figures={found.figures} />
          </>
        )}
      </Shown>
    </>
  );
}

/** A service that is not ready says so with a 503, whose body is the same. */
async function readiness(signal: AbortSignal): Promise<Ready> {
  try {
    return await get<Ready>("/health/ready", {}, signal);
  } catch (error) {
    if (error instanceof Problem && error.status === 503) return error.more as Ready;
    throw error;
  }
}

interface Concern {
  /** A tool or a store. */
  of: string;
  text: string;
  href: string;
  icon: IconName;
  bad: boolean;
}

const SLOW_S = 10;

function concerns({ now, figures }: Found, tools: Schemas["FleetToolStates"] | null, ready: Ready | null): Concern[] {
  const found: Concern[] = [];
  const add = (of: string, text: string, href: string, icon: IconName, bad = false): void => void found.push({ of, text, href, icon, bad });
  for (const [name, state] of Object.entries(ready ?? {}))
    if (state === "down") add(name, t("ops_is_down"), "#/ops/doctor", "alert", true);
  for (const [name, state] of Object.entries(typeof ready?.["mcp"] === "object" ? ready["mcp"] : {}))
    if (state !== "ready") add(name, [serverState(state), visible(state.split(": ").slice(1).join(": "))].filter(Boolean).join(": "), "#/ops/mcp", "plug", true);
  if (now.leases_passed > 0) add("", t("ops_leases_passed", { n: now.leases_passed }), to("ops/turns", { status: "running" }), "alert", true);
  for (const [name, { fleet }] of Object.entries(tools?.tools ?? {}))
    if (fleet.status !== "available") add(titleOf(name), t("ops_tool_is", { status: t(`ops_tool_${fleet.status}`) }), `#/tools/${encodeURIComponent(name)}`, "tool", fleet.status === "failed");
  const elsewhere = Object.entries(tools?.tools ?? {}).filter(([, { sessions }]) => (sessions["failed"] ?? 0) > 0);
  for (const [name, { sessions }] of elsewhere)
    add(titleOf(name), t("ops_tool_failed_in", { n: sessions["failed"] ?? 0 }), `#/tools/${encodeURIComponent(name)}`, "tool");
  if (now.approvals_waiting > 0) add("", t("ops_approvals_wait", { n: now.approvals_waiting }), "#/ops/approvals", "shield");
  if (now.oldest_queued_s !== null && now.oldest_queued_s > SLOW_S)
    add("", t("ops_queued_since", { time: duration(now.oldest_queued_s * 1000) }), to("ops/turns", { status: "queued" }), "clock");
  if ((figures.total.failed ?? 0) > 0) add("", t("ops_failed_turns", { n: figures.total.failed ?? 0 }), to("ops/turns", { status: "failed", since: figures.counted_since }), "alert");
  return found;
}

/** That all is well is said only if all of it was read, and just now. */
function Attention({ seen, tools, ready }: { seen: Found; tools: Loaded<Schemas["FleetToolStates"]>; ready: Loaded<Ready> }) {
  const found = concerns(seen, tools.value, ready.value);
  const unread = [tools, ready].filter(({ problem }) => problem !== null);
  const isWhole = tools.value !== null && ready.value !== null && unread.length === 0;
  return (
    <section class="attention" aria-label={t("ops_attention")}>
      <h2>{t("ops_attention")}</h2>
      {unread.map(({ problem, reload }, index) => problem && <Failure key={index} problem={problem} onRetry={reload} />)}
      {found.length === 0 && isWhole && <p class="muted"><Badge mood="good">{t("ops_all_well")}</Badge></p>}
      <ul>
        {found.slice(0, 12).map(({ of, text, href, icon, bad }) => (
          <li key={of + text}><a class={bad ? "bad" : "warn"} href={href}><Icon name={icon} size={16} /><span>{of !== "" && <><Foreign text={of} />: </>}<bdi>{text}</bdi></span><Icon name="chevron" size={14} /></a></li>
        ))}
      </ul>
    </section>
  );
}

function Tiles({ seen: { now, figures } }: { seen: Found }) {
  const all = figures.total;
  const [input, failed] = [all.input_tokens ?? 0, all.failed ?? 0];
  return (
    <div class="tiles">
      <Tile label={t("ops_running")} value={number(now.running)} href={to("ops/turns", { status: "running" })}
        more={now.longest_running_s === null ? "" : t("ops_longest", { time: duration(now.longest_running_s * 1000) })} />
      <Tile label={t("ops_queued")} value={number(now.queued)} href={to("ops/turns", { status: "queued" })} mood={(now.oldest_queued_s ?? 0) > SLOW_S ? "warn" : "neutral"}
        more={now.oldest_queued_s === null ? "" : t("ops_oldest", { time: duration(now.oldest_queued_s * 1000) })} />
      <Tile label={t("ops_approvals_waiting")} value={number(now.approvals_waiting)} href="#/ops/approvals" />
      <Tile label={t("ops_instances")} value={now.instances === null ? "?" : number(now.instances)} more={t("ops_busy", { n: now.running_on })} />
      <Tile label={t("ops_turns")} href={to("ops/turns", { since: figures.counted_since })} value={number(all.accepted ?? 0)} more={t("ops_per_minute", { n: perMinute(figures) })} />
      <Tile label={t("ops_errors")} value={number(failed)} more={share(failed, all.accepted ?? 0)} mood={failed > 0 ? "bad" : "neutral"} href={to("ops/turns", { status: "failed", since: figures.counted_since })} />
      <Tile label={t("ops_latency")} value={all.latency_ms ? duration(all.latency_ms.median) : "–"} more={all.latency_ms ? t("ops_p95", { time: duration(all.latency_ms.p95) }) : ""} />
      <Tile label={t("ops_waited")} value={all.waited_ms ? duration(all.waited_ms.median) : "–"} more={all.waited_ms ? t("ops_p95", { time: duration(all.waited_ms.p95) }) : ""} />
      <Tile label={t("tokens")} value={compact(input + (all.output_tokens ?? 0))} more={t("ops_cached_share", { share: share(all.cached_tokens ?? 0, input) })} />
      <Tile label={t("cost")} value={dollars(all.cost, all.cost_complete)} more={all.cost == null || all.cost_complete === false ? t("ops_no_price") : t("ops_calls", { n: all.llm_calls ?? 0 })} />
    </div>
  );
}

const perMinute = ({ total, buckets, bucket_s }: Schemas["WindowFigures"]): string =>
  number((total.accepted ?? 0) / ((buckets.length * bucket_s) / 60), { maximumFractionDigits: 1 });

function Charts({ figures: { buckets, bucket_s } }: { figures: Schemas["WindowFigures"] }) {
  const until = (at: string): string => new Date(Date.parse(at) + 1000 * bucket_s).toISOString();
  const given = { points: buckets, when: ({ at }: Bucket) => clock(at), hrefOf: ({ at }: Bucket) => to("ops/turns", { since: at, until: until(at) }) };
  const minutes = bucket_s / 60;
  const count = (name: "completed" | "failed" | "cancelled") => ({ figures }: Bucket) => (figures[name] ?? 0) / minutes;
  const ms = (of: "median" | "p95") => ({ figures }: Bucket) => figures.latency_ms?.[of] ?? null;
  const open = ({ figures }: Bucket) => ((figures.queued ?? 0) + (figures.running ?? 0)) / minutes;
  return (
    <div class="charts">
      <Chart {...given} kind="bars" label={t("ops_chart_turns")} say={(value) => number(value, { maximumFractionDigits: 1 })} series={[
        { name: t("ops_turn_completed"), colour: "accent", of: count("completed") }, { name: t("ops_open"), colour: "soft", of: open },
        { name: t("ops_turn_cancelled"), colour: "muted", of: count("cancelled") }, { name: t("ops_turn_failed"), colour: "bad", of: count("failed") }]} />
      <Chart {...given} kind="lines" label={t("ops_latency")} say={duration} series={[
        { name: "p95", colour: "muted", of: ms("p95") }, { name: t("ops_median"), colour: "accent", of: ms("median") }]} />
      <Chart {...given} kind="bars" label={t("tokens")} say={compact} series={[
        { name: t("ops_cached"), colour: "soft", of: ({ figures }) => figures.cached_tokens ?? 0 },
        { name: t("ops_sent"), colour: "accent", of: ({ figures }) => (figures.input_tokens ?? 0) - (figures.cached_tokens ?? 0) },
        { name: t("ops_received"), colour: "muted", of: ({ figures }) => figures.output_tokens ?? 0 }]} />
      <Chart {...given} kind="bars" label={t("cost")} say={money} series={[{ name: "USD", colour: "accent", of: ({ figures }) => figures.cost ?? null }]} />
    </div>
  );
}

function Details({ figures }: { figures: Schemas["WindowFigures"] }) {
  const tokens = (of: Figures): string => `${compact(of.input_tokens ?? 0)} / ${compact(of.output_tokens ?? 0)}`;
  return (
    <>
      {figures.by_model.length > 0 && (
        <Card title={t("ops_by_agent_and_model")}>
          <Rows label={t("ops_by_agent_and_model")} items={figures.by_model} keyOf={({ agent, model }) => `${agent} ${model}`} columns={[
            { label: t("agent"), cell: ({ agent }) => <Foreign text={agent} /> },
            { label: t("model"), cell: ({ model }) => <Foreign text={model} /> },
            { label: t("ops_turns"), end: true, cell: ({ figures: of }) => number(of.accepted ?? 0) },
            { label: t("ops_errors"), end: true, cell: ({ figures: of }) => number(of.failed ?? 0) },
            { label: t("ops_latency"), end: true, cell: ({ figures: of }) => (of.latency_ms ? duration(of.latency_ms.median) : "–") },
            { label: t("ops_tokens_in_out"), end: true, cell: ({ figures: of }) => tokens(of) },
            { label: t("cost"), end: true, cell: ({ figures: of }) => dollars(of.cost, of.cost_complete) },
          ]} />
        </Card>
      )}
      {figures.errors.length > 0 && (
        <Card title={t("ops_errors")}>
          <Rows label={t("ops_errors")} items={figures.errors} keyOf={({ code }) => code} columns={[
            { label: t("ops_code"), cell: ({ code }) => <a href={to("ops/turns", { code, since: figures.counted_since })}><code>{visible(code)}</code></a> }, { label: t("ops_turns"), end: true, cell: ({ turns }) => number(turns) },
          ]} />
        </Card>
      )}
    </>
  );
}
