import { useState } from "preact/hooks";
import { get } from "../../api";
import { Button } from "../../components/Button";
import { Icon } from "../../components/icons";
import { JsonView } from "../../components/JsonView";
import { Badge, EmptyState, Failure, type Mood, Spinner } from "../../components/parts";
import { t } from "../../i18n";
import { problemOf } from "../../load";
import { visible } from "../../text";
import { Filters, Foreign, When } from "./parts";
import type { OpsView } from "./Ops";

interface Finding {
  area: string;
  what: string;
  do: string | null;
}
interface Found extends Record<string, unknown> {
  at: string;
  healthy: boolean;
  problems: Finding[];
  notes: Finding[];
}

/** What `segue doctor` says, of the service or with `?session_id=` of a session. It asks the model, so only by a button. */
export function Doctor({ query }: OpsView) {
  const session_id = query.get("session_id");
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const examine = async (): Promise<void> => {
    setBusy(true);
    await get<Found>("/ops/doctor", { session_id }).then((given) => { setFound(given); setProblem(null); }, setProblem);
    setBusy(false);
  };
  return (
    <>
      <Filters path="ops/doctor" query={query} names={{ session_id: t("ops_session") }}><Button kind="primary" icon="pulse" disabled={busy} onClick={examine}>{t("ops_examine")}</Button></Filters>
      {problem !== null && <Failure problem={problemOf(problem)} onRetry={() => void examine()} />}
      {busy ? <div class="waiting"><Spinner label={t("ops_examining")} /></div> : found === null ? <EmptyState icon="pulse" title={t("ops_not_examined")} /> : <Verdicts found={found} />}
    </>
  );
}

function Verdicts({ found: { at, healthy, problems, notes, ...parts } }: { found: Found }) {
  const areas = [...new Set([...problems, ...notes].map(({ area }) => area))].filter((area) => !(area in parts));
  const lines = [...areas.map((name) => [name, undefined] as const), ...Object.entries(parts)].map(([name, value]) => {
    const [wrong, known] = [problems, notes].map((all) => all.filter(({ area }) => area === name)) as [Finding[], Finding[]];
    return { name, value, wrong, known, mood: (wrong.length > 0 ? "bad" : value === null ? "neutral" : "good") as Mood };
  });
  return (
    <>
      <div class={`verdict ${healthy ? "good" : "bad"}`} role="status"><Icon name={healthy ? "check" : "alert"} /><h2>{t(healthy ? "ops_healthy" : "ops_not_healthy")}</h2><span class="muted"><When at={at} /></span></div>
      <ul class="verdicts">
        {lines.toSorted((one, other) => other.wrong.length - one.wrong.length || other.known.length - one.known.length).map((line) => <li key={line.name}><Line {...line} /></li>)}
      </ul>
    </>
  );
}

interface LineGiven {
  name: string;
  value: unknown;
  wrong: Finding[];
  known: Finding[];
  mood: Mood;
}

/** One part: the verdict, a sentence, and on demand all that was found. */
function Line({ name, value, wrong, known, mood }: LineGiven) {
  const said = [...wrong, ...known];
  return (
    <details>
      <summary>
        <Badge mood={mood}>{visible(name).replaceAll("_", " ")}</Badge>
        <div class="sentence" dir="auto">
          {said.length === 0 ? visible(sentence(value)) : said.map(({ what, do: helps }) => <p key={what}>{visible(what)} {helps !== null && <span class="muted">{t("ops_what_helps")} <Foreign text={helps} /></span>}</p>)}
        </div>
        <Icon name="chevron" size={14} />
      </summary>
      {value !== undefined && <JsonView value={value} />}
    </details>
  );
}

/** "reachable, latency 1.2 ms, version 18.4": what is plain among what was found; of a list, how many. */
function sentence(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.length === 0 ? t("ops_none") : value.map((each) => (each !== null && typeof each === "object" ? String(Object.values(each)[0]) : String(each))).slice(0, 8).join(", ");
  if (typeof value !== "object") return String(value);
  const told = Object.entries(value).filter(([, each]) => each !== null && typeof each !== "object" && each !== false);
  return told.slice(0, 6).map(([name, each]) => measured(name, each)).join(", ") || t("ops_none");
}

/** "latency 1.2 ms": the unit stands at the end of the name. In English, as all that the doctor says. */
function measured(name: string, value: unknown): string {
  const unit = /_(bytes|ms|s)$/.exec(name)?.[1] as "bytes" | "ms" | "s" | undefined;
  const label = (unit === undefined ? name : name.slice(0, -unit.length - 1)).replaceAll("_", " ");
  if (value === true) return label;
  if (typeof value !== "number" || unit === undefined) return `${label} ${String(value)}`;
  return `${label} ${unit === "bytes" ? `${(value / 1e6).toFixed(1)} MB` : `${value} ${unit}`}`;
}
