/** The list of sessions beside a conversation: a page at a time, as searched for, kept up to date by the feed. */
import { signal } from "@preact/signals";
import { get, type Listed, pages, patch, post, type Query, remove, type Schemas } from "../../api";
import { attempt } from "../../components/Toast";
import { type FeedEvent, onFeed } from "../../events";
import { go, href } from "../../router";
import type { Session } from "./conversation";
import { forgetKept } from "./outbox";

export type Found = Session & { snippet?: string; message_id?: string | null };
const PAGE = 50;
const MOST = 200;

export const sessions = signal<Found[]>([]);
export const searched = signal("");
export const archived = signal(false);
export const loaded = signal(false);
/** There may be more: a page of a search can be short, or empty, and the next one have some. */
export const unread = signal(false);
let cursor: string | null = null;
let latest = 0;
/** What the list that is shown was asked for. */
let shownFor = "";

/** Reads the first ones again, at most 200, and keeps those below that were read before; the pinned ones stand first. */
export async function readSessions(): Promise<void> {
  const asked = (latest += 1);
  await attempt(async () => {
    const limit = Math.min(MOST, Math.max(PAGE, sessions.value.length));
    const [pinned, others] = await Promise.all([allPinned(), get<Listed<Found>>("/sessions", { ...wanted(), pinned: false, limit })]);
    if (asked !== latest) return;
    const fresh = [...pinned, ...others.items];
    const known = new Set(fresh.map(({ id }) => id));
    const isSame = shownFor === JSON.stringify(wanted());
    const rest = isSame && others.next_cursor !== null ? sessions.value.slice(fresh.length).filter(({ id }) => !known.has(id)) : [];
    if (rest.length === 0) cursor = others.next_cursor;
    shownFor = JSON.stringify(wanted());
    sessions.value = [...fresh, ...rest];
    unread.value = cursor !== null;
    loaded.value = true;
  });
}

async function allPinned(): Promise<Found[]> {
  const found: Found[] = [];
  for await (const items of pages<Found>("/sessions", { ...wanted(), pinned: true, limit: MOST }, MOST)) found.push(...items);
  return found;
}

const wanted = (): Query => ({ query: searched.value.trim(), archived: archived.value });

export async function moreSessions(): Promise<void> {
  if (cursor === null) return;
  const asked = latest;
  const from = cursor;
  const query = { ...wanted(), pinned: false, limit: MOST, cursor };
  cursor = null; // one request at a time
  const done = await attempt(async () => {
    const page = await get<Listed<Found>>("/sessions", query);
    if (asked !== latest) return;
    const known = new Set(sessions.value.map(({ id }) => id));
    cursor = page.next_cursor;
    sessions.value = [...sessions.value, ...page.items.filter(({ id }) => !known.has(id))];
  });
  if (asked !== latest) return;
  if (!done) cursor = from;
  unread.value = cursor !== null;
}

export async function newSession(agent?: string): Promise<Session | null> {
  let made: Session | null = null;
  await attempt(async () => {
    made = await post<Session>("/sessions", agent === undefined ? {} : { agent });
  });
  return made;
}

export async function change(id: string, changes: Schemas["SessionChanges"]): Promise<void> {
  if (await attempt(() => patch(`/sessions/${id}`, changes))) await readSessions();
}

export async function erase(id: string): Promise<void> {
  if (!(await attempt(() => remove(`/sessions/${id}`)))) return;
  sessions.value = sessions.value.filter((session) => session.id !== id);
  if (location.hash.includes(id)) go(href());
  await forgetKept(id);
  await readSessions();
}

let soon: ReturnType<typeof setTimeout> | undefined;

/** Events come in bursts; one reading follows them. */
function heard(event: FeedEvent): void {
  if (event.type === "fact_noted" || event.type === "mandate_changed") return;
  clearTimeout(soon);
  soon = setTimeout(() => void readSessions(), 150);
}

export const followSessions = (): (() => void) => onFeed(heard);
