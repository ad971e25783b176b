/**
 * Server-Sent Events over fetch, so that the key goes as a header. A stream that was cut goes on after its last id, on
 * whichever instance answers, and no event comes twice.
 */
import { back, newKey, Problem, send } from "./api";

export interface TurnEvent {
  type: string;
  [member: string]: unknown;
}
interface Frame<T> {
  id: string;
  event: T;
}
type Headers = Record<string, string>;

/** The service writes every ten seconds. What is silent for longer is a connection that died while the machine slept. */
const SILENCE_MS = 35_000;

const isLast = (event: TurnEvent): boolean => event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";
export const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

export async function* frames<T>(
  method: string,
  path: string,
  { body, headers = {}, signal }: { body?: unknown; headers?: Headers; signal?: AbortSignal } = {},
): AsyncGenerator<Frame<T>> {
  const answer = await send(method, path, { body, headers: { Accept: "text/event-stream", ...headers }, signal });
  if (answer.body === null || answer.status === 204) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const silence = setTimeout(() => void reader.cancel().catch(() => {}), SILENCE_MS);
      const { value, done } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      const whole = (rest + value).split("\n\n");
      rest = whole.pop() ?? "";
      for (const frame of whole) {
        const lines = new Map(frame.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
        const data = lines.get("data");
        if (data !== undefined) yield { id: lines.get("id") ?? "", event: JSON.parse(data) as T };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export interface Begin {
  path: string;
  body: unknown;
  /** Its idempotency key, if the caller keeps it and sends it again. */
  key?: string;
}

/**
 * The events of a turn, from its start to RUN_FINISHED or RUN_ERROR. `begin` sends a message: if not even the first event
 * came, it is sent again under the same idempotency key, here or by who keeps the key. Without it the turn at `events` is followed. Returns early only
 * if the turn's log is gone: then the history tells. Raises Problem if the request was refused.
 */
export async function* turnEvents(
  from: { begin: Begin } | { events: string },
  signal: AbortSignal,
): AsyncGenerator<TurnEvent> {
  const idempotency = { "Idempotency-Key": ("begin" in from && from.begin.key) || newKey() };
  let events = "events" in from ? from.events : null;
  let last = "";
  for (let failures = 0; !signal.aborted; failures += 1) {
    try {
      const stream =
        events === null && "begin" in from
          ? frames<TurnEvent>("POST", from.begin.path, { body: from.begin.body, headers: idempotency, signal })
          : frames<TurnEvent>("GET", events ?? "", { headers: last ? { "Last-Event-ID": last } : {}, signal });
      let any = false;
      for await (const { id, event } of stream) {
        any = true;
        failures = 0;
        last = id;
        if (event.type === "RUN_STARTED") events = `/sessions/${String(event.threadId)}/turns/${String(event.runId)}/events`;
        yield event;
        if (isLast(event)) return;
      }
      if (!any && events !== null) return; // 204: its last event was sent before
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem) {
        if (!isPassing(error) || (events === null && "begin" in from && from.begin.key)) throw error;
        await back();
      }
    }
    await pause(Math.min(300 * 2 ** failures, 5000));
  }
}

/** Beside a connection that breaks in the middle, a TypeError of fetch's. A 503 means that a store is away. */
export const isPassing = (problem: Problem): boolean => problem.code === "unreachable" || problem.status === 503;

export interface FeedEvent {
  type:
    | "replay_gap" | "session_created" | "session_titled" | "turn_started" | "turn_ended" | "approval_asked" | "schedule_failed"
    | "fact_noted" | "mandate_changed";
  session_id?: string;
  turn_id?: string;
  title?: string | null;
  status?: string;
}

const readers = new Set<(event: FeedEvent) => void>();

/** Calls `reader` with what happens in all sessions of the caller; `replay_gap` means: read your lists. Gives the way out. */
export function onFeed(reader: (event: FeedEvent) => void): () => void {
  readers.add(reader);
  return () => readers.delete(reader);
}

/** What the tabs of one user tell each other: that this one follows the feed now, or what it heard. */
type Told = "follows" | Frame<FeedEvent>;

/**
 * Follows the feed of this user, until what it returns is called. A browser opens six connections to a service, and a
 * stream takes one of them for as long as it lasts: a tab in the background follows it only until another tab is looked
 * at, and hears from that one what happens. The one that follows holds a lock, which the next in line gets when that
 * tab is closed; only pages of a secure context have locks.
 */
export function followFeed(user: string): () => void {
  const name = `segue.feed.${new URL(".", document.baseURI).pathname}.${user}`;
  const tabs = new BroadcastChannel(name);
  const post = (told: Told): void => tabs.postMessage(told);
  let last = "";
  let isFollowing = false;
  let turn = new AbortController();
  const tell = ({ id, event }: Frame<FeedEvent>): void => {
    last = id;
    for (const reader of [...readers]) reader(event);
  };
  const follow = async (signal: AbortSignal): Promise<void> => {
    for (let failures = 0; !signal.aborted; failures += 1) {
      try {
        for await (const frame of frames<FeedEvent>("GET", "/events", { headers: last ? { "Last-Event-ID": last } : {}, signal })) {
          if (signal.aborted) return;
          failures = 0;
          tell(frame);
          post(frame);
        }
      } catch {
        if (!signal.aborted) await back();
      }
      await pause(Math.min(500 * 2 ** failures, 15_000));
    }
  };
  /** Follows at once, or when no other tab holds the lock. */
  const request = (steal: boolean): void => {
    turn.abort();
    const { signal } = (turn = new AbortController());
    isFollowing = steal;
    const hold = async (): Promise<void> => {
      if (signal.aborted) return;
      isFollowing = true;
      await follow(signal);
    };
    const locks = navigator.locks as LockManager | undefined;
    if (locks !== undefined) locks.request(name, steal ? { steal } : { signal }, hold).catch(() => {});
    else if (steal) void hold();
  };
  const take = (): void => {
    post("follows");
    if (!isFollowing) request(true);
  };
  const onShown = (): void => void (document.hidden || take());
  tabs.onmessage = ({ data }: MessageEvent<Told>) => {
    if (data === "follows") {
      if (document.hidden) request(false);
    } else if (!isFollowing && (data.event.type === "replay_gap" || Number(data.id) > Number(last))) {
      tell(data); // two windows tell the same; the place of a gap may be before what was heard
    }
  };
  addEventListener("visibilitychange", onShown);
  take();
  return () => {
    removeEventListener("visibilitychange", onShown);
    turn.abort();
    tabs.close();
  };
}
