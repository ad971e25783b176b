import { useState } from "preact/hooks";
import { get, pages, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Dialog } from "../../components/Dialog";
import { JsonView } from "../../components/JsonView";
import { Badge, Card, EmptyState, type Mood } from "../../components/parts";
import { Table } from "../../components/Table";
import { number, t } from "../../i18n";
import { useLoad } from "../../load";
import { visible } from "../../text";
import { count, Facts, Foreign, Id, List, Shown, ToolName, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";
import { Maintain, Reset } from "./ToolActs";

type State = Schemas["ToolState"];
type Described = Schemas["ToolDescription"];
type Fleet = Schemas["FleetToolStates"];
interface Known {
  described: Described[];
  fleet: Fleet["tools"];
}

const EVERY_MS = 5000;
const MOODS: Record<State["status"], Mood> = { available: "good", unavailable: "neutral", failed: "bad", maintenance: "warn" };

export const ToolStatus = ({ status }: { status: State["status"] }) => <Badge mood={MOODS[status]}>{t(`ops_tool_${status}`)}</Badge>;

async function known(signal: AbortSignal): Promise<Known> {
  const { tools } = await get<Fleet>("/tool-states", { limit: 1 }, signal);
  const described: Described[] = [];
  for await (const page of pages<Described>("/tools", { limit: 200 }, Infinity, signal)) described.push(...page);
  return { described, fleet: tools };
}

const ORDER: State["status"][] = ["failed", "maintenance", "unavailable", "available"];

/** Those that need attention first. */
const urgent = ({ described, fleet }: Known): Described[] => {
  const rank = (name: string): number => {
    const found = fleet[name];
    const own = ORDER.indexOf(found?.fleet.status ?? "available");
    return own === 3 && Object.keys(found?.sessions ?? {}).some((status) => status !== "available") ? 2.5 : own;
  };
  return [...described].sort((one, other) => rank(one.name) - rank(other.name) || one.name.localeCompare(other.name));
};

export function Tools(_: OpsView) {
  const seen = useLoad(known, [], EVERY_MS);
  const [resets, setResets] = useState(false);
  const [searched, setSearched] = useState("");
  const matching = ({ name, title, source }: Described): boolean => `${name} ${title} ${source}`.toLowerCase().includes(searched.trim().toLowerCase());
  return (
    <>
      <div class="filters">
        <input class="field" type="search" aria-label={t("ops_search_tools")} placeholder={t("ops_search_tools")} value={searched} dir="auto"
          onInput={(event) => setSearched(event.currentTarget.value)} />
        <span class="grow" />
        <Button icon="redo" onClick={() => setResets(true)}>{t("ops_reset_all")}</Button>
      </div>
      <Shown of={seen}>
        {(found) => found.described.length === 0 ? <EmptyState icon="tool" title={t("ops_no_tools")} /> : (
          <Table label={t("ops_tools")} items={urgent(found).filter(matching)} keyOf={({ name }) => name} columns={[
            { label: t("ops_tool"), width: "minmax(0, 2fr)", cell: ({ name }) => <ToolName name={name} /> },
            { label: t("ops_for_all"), width: "minmax(0, 2fr)", cell: ({ name }) => <ForAll state={found.fleet[name]?.fleet} /> },
            { label: t("ops_effect"), width: "minmax(0, 2fr)", cell: ({ effect, effect_guessed, confirmation }) => <>{t(`ops_effect_${effect}`)}{effect_guessed && <span class="muted" title={t("ops_effect_guessed_advice")}> · {t("ops_effect_guessed")}</span>}{confirmation && <span class="muted"> · {t("ops_asks")}</span>}</> },
            { label: t("ops_in_sessions"), width: "minmax(0, 1.2fr)", cell: ({ name }) => <InSessions counts={found.fleet[name]?.sessions ?? {}} /> },
            { label: t("ops_source"), width: "minmax(0, 1.3fr)", spare: true, cell: ({ source }) => <Foreign text={source} /> },
          ]} />
        )}
      </Shown>
      {resets && <Reset tool={null} onClose={() => setResets(false)} onDone={seen.reload} />}
    </>
  );
}

const ForAll = ({ state }: { state: State | undefined }) =>
  state === undefined ? null : (
    <span class="stacked"><ToolStatus status={state.status} />{state.status !== "available" && state.reason !== null && <small dir="auto">{visible(state.reason)}</small>}</span>
  );

const InSessions = ({ counts }: { counts: Record<string, number> }) => {
  const bad = Object.entries(counts).filter(([status, n]) => status !== "available" && n > 0) as [State["status"], number][];
  return bad.length === 0 ? <span class="muted">–</span> : <span class="side-by-side">{bad.map(([status, n]) => <Badge key={status} mood={MOODS[status]}>{t(`ops_tool_${status}`)}: {number(n)}</Badge>)}</span>;
};

/** `#/tools/{name}` */
export function Tool({ id: name }: OpsView) {
  const seen = useLoad(async (signal) => (await get<Fleet>("/tool-states", { tool: name, limit: 1 }, signal)).tools[name], [name], EVERY_MS);
  const described = useLoad(async (signal) => {
    for await (const page of pages<Described>("/tools", { limit: 200 }, Infinity, signal)) {
      const found = page.find((each) => each.name === name);
      if (found !== undefined) return found;
    }
    return undefined;
  }, [name]).value;
  const sessions = usePaged<Schemas["SessionToolState"]>("/tool-states", { tool: name }, EVERY_MS);
  const [open, setOpen] = useState<"maintain" | "reset" | null>(null);
  const [history, setHistory] = useState<string | null>(null);
  const isHeld = (seen.value?.fleet.status ?? "available") !== "available";
  const changed = (): void => {
    seen.reload();
    sessions.list.reload();
  };
  return (
    <>
      <header class="lead">
        <h2><ToolName name={name} link={false} /></h2>
        {seen.value !== undefined && seen.value !== null && <ToolStatus status={seen.value.fleet.status} />}
        <span class="grow" />
        <Button icon="redo" onClick={() => setOpen("reset")}>{t("ops_reset")}</Button>
        <Button icon="pause" onClick={() => setOpen("maintain")}>{t("ops_maintain")}</Button>
      </header>
      {described && <p class="described" dir="auto">{visible(described.description)}</p>}
      <Shown of={seen}>{(found) => found === undefined ? <EmptyState icon="tool" title={t("not_found")} /> : <Card title={t("ops_for_all")}><StateFacts state={found.fleet} /></Card>}</Shown>
      <h3>{t("ops_not_available_in")}</h3>
      <List of={sessions} label={t("ops_not_available_in")} icon={isHeld ? "tool" : "check"} empty={t(isHeld ? "ops_none_own" : "ops_nowhere")} keyOf={({ session_id }) => session_id} columns={[
        { label: t("ops_session"), cell: ({ session_id }) => <a href={`#/ops/sessions/${session_id}`}><Id id={session_id} /></a> },
        { label: t("status"), cell: ({ status }) => <ToolStatus status={status} /> },
        { label: t("ops_reason"), cell: (state) => <Foreign text={state.reason ?? state.reason_code} /> },
        { label: t("ops_failures"), end: true, cell: ({ consecutive_failures }) => count(consecutive_failures) },
        { label: t("ops_changed"), cell: ({ last_updated }) => <When at={last_updated} /> },
        { label: t("ops_acts"), unsaid: true, end: true, cell: ({ session_id }) => <Button class="small" icon="clock" onClick={() => setHistory(session_id)}>{t("ops_history")}</Button> },
      ]} />
      {described && <Described tool={described} />}
      {open === "reset" && <Reset tool={name} onClose={() => setOpen(null)} onDone={changed} />}
      {open === "maintain" && <Maintain tool={name} held={seen.value?.fleet.reason_code === "set_for_all"} onClose={() => setOpen(null)} onDone={changed} />}
      {history !== null && <History session={history} tool={name} onClose={() => setHistory(null)} />}
    </>
  );
}

const StateFacts = ({ state }: { state: State }) => (
  <>
    <Facts facts={[
      [t("status"), <ToolStatus status={state.status} />],
      [t("ops_reason"), <Foreign text={state.reason ?? state.reason_code} />],
      [t("ops_until"), <When at={state.retry_at} />],
      [t("ops_runs"), count(state.execution_count)],
      [t("ops_failures"), count(state.consecutive_failures)],
      [t("ops_last_success"), <When at={state.last_success_time} />],
      [t("ops_last_failure"), <When at={state.last_failure_time} />],
      [t("ops_changed"), <When at={state.last_updated} />],
    ]} />
    {state.suggested_actions.length > 0 && <ul class="suggested">{state.suggested_actions.map((each) => <li key={each}><span dir="auto">{visible(each)}</span></li>)}</ul>}
  </>
);

const Described = ({ tool }: { tool: Described }) => (
  <Card title={t("ops_as_model_sees")} folded>
    <Facts facts={[
      [t("ops_source"), <Foreign text={tool.source} />],
      [t("ops_effect"), <>{t(`ops_effect_${tool.effect}`)}{tool.effect_guessed && <small class="muted"> {t("ops_effect_guessed_advice")}</small>}</>],
      [t("ops_asks"), t(tool.confirmation ? "ops_yes" : "ops_no")],
      [t("ops_needs"), <Foreign text={tool.dependencies.map(({ tools }) => tools.join(", ")).join("; ")} />],
    ]} />
    <JsonView value={tool.schema} />
  </Card>
);

function History({ session, tool, onClose }: { session: string; tool: string; onClose: () => void }) {
  const changes = usePaged<Schemas["StatusMoved"]>(`/sessions/${session}/tool-states/history`, { tool });
  return (
    <Dialog title={t("ops_history")} wide onClose={onClose}>
      <List of={changes} label={t("ops_history")} icon="clock" empty={t("nothing_found")} keyOf={({ at, to }) => at + to} columns={[
        { label: t("ops_when"), cell: ({ at }) => <When at={at} /> },
        { label: t("ops_before"), cell: ({ from }) => <ToolStatus status={from} /> },
        { label: t("ops_after"), cell: ({ to }) => <ToolStatus status={to} /> },
        { label: t("ops_reason"), cell: ({ reason, reason_code }) => <Foreign text={reason ?? reason_code} /> },
      ]} />
    </Dialog>
  );
}

