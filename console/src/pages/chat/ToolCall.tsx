/** A call of a tool: what with, how it goes, and its result, a page at a time. */
import { useEffect, useState } from "preact/hooks";
import { get, type Schemas } from "../../api";
import { Button, CopyButton, useBusy } from "../../components/Button";
import { JsonView } from "../../components/JsonView";
import { Badge, Card, Failure, type Mood, Spinner } from "../../components/parts";
import { DRAWN, Picture, useBlob } from "../../components/Picture";
import { bytes, duration, number, t } from "../../i18n";
import { problemOf } from "../../load";
import { pretty, visible } from "../../text";
import { type CallStatus, parsed, type Progress } from "./live";
import type { Call } from "./turns";

const MOODS: Record<CallStatus, Mood> = { running: "busy", succeeded: "good", failed: "bad", unknown: "warn" };

export function ToolCall({ session, call }: { session: string; call: Call }) {
  const aside = (
    <>
      {call.granted && <span>{t("by_grant")}</span>}
      {call.progress !== null && <HowFar {...call.progress} />}
      {call.status === "running" ? <Elapsed /> : call.durationMs !== null && <span>{duration(call.durationMs)}</span>}
      <Badge mood={MOODS[call.status]}>{t(`call_${call.status}` as const)}</Badge>
    </>
  );
  return (
    <div class="call" id={call.id} tabIndex={-1}>
      <Card icon="tool" title={<Title call={call} />} aside={aside} folded mood={call.status === "failed" ? "bad" : call.status === "unknown" ? "warn" : "neutral"}>
        <Details session={session} call={call} />
      </Card>
      <Pictures session={session} call={call} />
    </div>
  );
}

function Title({ call }: { call: Call }) {
  const words = call.args !== null && typeof call.args === "object" ? Object.values(call.args).filter((each) => typeof each === "string") : [];
  return <><code>{visible(call.name)}</code> <span class="muted" dir="auto">{visible(words.join(" · ")).slice(0, 120)}</span></>;
}

function HowFar({ progress, total, message }: Progress) {
  return (
    <span dir="auto">
      {message !== null && `${visible(message)} `}
      {total === null ? number(progress) : <progress value={progress} max={total} title={`${number(progress)} / ${number(total)}`} />}
    </span>
  );
}

function Elapsed() {
  const [since] = useState(Date.now);
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  return now - since < 1000 ? null : <span>{duration(Math.floor((now - since) / 1000) * 1000)}</span>;
}

function Details({ session, call }: { session: string; call: Call }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <h2>{t("arguments")} <CopyButton text={() => pretty(call.args)} /></h2>
      <JsonView value={call.args ?? {}} depth={3} />
      {call.status === "unknown" && <p class="note warn">{t("call_unknown_text")}</p>}
      {call.error !== null && <p class="note bad" dir="auto">{visible(call.error)}</p>}
      {call.summary && <p class="muted summary" dir="auto">{visible(call.summary)}</p>}
      {call.status === "succeeded" && !open && (
        <Button class="small" icon="eye" onClick={() => setOpen(true)}>{t("show_result")}{call.size !== null && ` · ${bytes(call.size)}`}</Button>
      )}
      {open && <Result session={session} id={call.id} />}
    </>
  );
}

type Loaded = Schemas["LoadedResult"];
const CHARACTERS = 20_000;

function Result({ session, id }: { session: string; id: string }) {
  const [pages, setPages] = useState<Loaded[]>([]);
  const [problem, setProblem] = useState<unknown>(null);
  const [busy, once] = useBusy();
  const last = pages.at(-1);
  const load = async (offset: number): Promise<void> => {
    try {
      setProblem(null);
      const limit = Array.isArray(last?.result) ? 100 : CHARACTERS;
      const page = await get<Loaded>(`/sessions/${session}/tool-results/${id}`, { offset, limit });
      setPages((before) => ((before.at(-1)?.next_offset ?? 0) === offset ? [...before, page] : before));
    } catch (error) {
      setProblem(error);
    }
  };
  const next = (): void => void once(() => load(last?.next_offset ?? 0));
  useEffect(next, []);
  const value = joined(pages.map(({ result }) => result as unknown));
  return (
    <div class="result">
      <h2>{t("result")} {pages.length > 0 && <CopyButton text={() => pretty(value)} />}</h2>
      {problem !== null && <Failure problem={problemOf(problem)} onRetry={next} />}
      {pages.length === 0 && problem === null && <Spinner />}
      {pages.length > 0 && <div class="paper">{typeof value === "string" ? <pre dir="auto">{visible(value)}</pre> : <JsonView value={value} />}</div>}
      {partsIn(value).map((part) => <Part key={part.number} session={session} id={id} {...part} />)}
      {last?.next_offset != null && (
        <Button class="small" disabled={busy} onClick={next}>{t("more_of_result", { n: last.next_offset, total: number(last.result_total ?? 0) })}</Button>
      )}
    </div>
  );
}

function joined(pages: unknown[]): unknown {
  if (pages.length > 1 && pages.every((page) => typeof page === "string")) return pages.join("");
  if (pages.length > 1 && pages.every(Array.isArray)) return pages.flat();
  return pages.length > 1 ? pages : pages[0];
}

interface BinaryPart { number: number; type: string; size: number }

/** The images and files that a result names by number. */
function partsIn(value: unknown): BinaryPart[] {
  const found: BinaryPart[] = [];
  const look = (at: unknown, depth: number): void => {
    if (typeof at === "string")
      for (const [, n, type, size] of at.slice(0, CHARACTERS).matchAll(/\[part (\d+): ([\w/.+-]+), (\d+) bytes\]/g)) found.push({ number: Number(n), type: type ?? "", size: Number(size) });
    if (at === null || typeof at !== "object" || depth > 6 || found.length >= 20) return;
    const { part, media_type, mime_type, mimeType, size_bytes: size } = at as Record<string, unknown>;
    const type = media_type ?? mime_type ?? mimeType;
    if (typeof part === "number" && typeof type === "string") found.push({ number: part, type, size: Number(size ?? 0) });
    else for (const each of Object.values(at).slice(0, 200)) look(each, depth + 1);
  };
  look(value, 0);
  return found;
}

function Part({ session, id, number: part, type, size }: BinaryPart & { session: string; id: string }) {
  const { address, problem } = useBlob(`/sessions/${session}/tool-results/${id}`, { part });
  if (problem !== null) return <Failure problem={problem} />;
  if (address === null) return <Spinner />;
  const name = partName({ number: part, type, size });
  return (
    <figure class="part">
      {DRAWN.test(type) && <img src={address} alt={name} />}
      <figcaption><a href={address} download={`${id}-${part}`}>{name}</a></figcaption>
    </figure>
  );
}

const partName = ({ number: part, type, size }: BinaryPart): string => `${t("part", { n: part })} · ${type} · ${bytes(size)}`;
const MOST_PICTURES = 4;

/** The first pictures of a result, beside the card that is folded. */
function Pictures({ session, call }: { session: string; call: Call }) {
  const parts = partsIn(parsed(call.preview) ?? call.preview).filter(({ type }) => DRAWN.test(type));
  if (call.status !== "succeeded" || parts.length === 0) return null;
  return (
    <div class="pictures">
      {parts.slice(0, MOST_PICTURES).map((part) => <Picture key={part.number} path={`/sessions/${session}/tool-results/${call.id}`} query={{ part: part.number }} name={partName(part)} />)}
    </div>
  );
}
