/**
 * What was sent and the service has not accepted yet, in order. It survives a reload and is sent again by itself, under
 * the same idempotency key and so once. What was refused stays where it is until the user tries again or discards it.
 */
import { batch, effect, signal } from "@preact/signals";
import { back, get, newKey, post, type Problem, remove, type Schemas } from "../../api";
import { explained } from "../../components/Toast";
import { isPassing } from "../../events";
import { problemOf } from "../../load";
import { me, user } from "../../me";
import { type Draft, draftOf, forgetDrafts, NEW, remember } from "./drafts";
import { type Attached, dropBytes, keepBytes, upload } from "./files";
import { parsed } from "./live";

export interface Unsent {
  /** The idempotency key. */
  key: string;
  by: string | null;
  /** A session, or a chat that is to be made: its key with `new-`. */
  chat: string;
  agent: string | null;
  /** Below the session: `chat`, or the edit of a message. */
  path: string;
  draft: Draft;
  at: number;
  refused: Pick<Problem, "code" | "status" | "title" | "detail"> | null;
}

/** Gives it to the service; false if that was not to be. Raises Problem if it is refused. */
type Deliver = (item: Unsent) => Promise<boolean>;

const PREFIX = "segue.unsent.";
const PAUSE_MS = 3000;
const openChats = new Map<string, Deliver>();
const arrived = new Map<string, () => void>();
const underWay = new Set<string>();

export const unsent = signal<Unsent[]>(stored());
/** The new chat that has last become a session. */
export const made = signal<{ chat: string; session: string } | null>(null);

export const isNew = (chat: string): boolean => chat.startsWith(`${NEW}-`);
export const newChat = (): string => `${NEW}-${newKey()}`;
export const unsentIn = (chat: string): Unsent[] => unsent.value.filter((item) => item.chat === chat && item.by === user.value);

function stored(): Unsent[] {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const found = names.map((name) => parsed(localStorage.getItem(name) ?? "") as Unsent | null);
  return found.filter((item) => item !== null).sort((one, other) => one.at - other.at);
}

export function enqueue(chat: string, draft: Draft, { agent = null, path = "chat" }: { agent?: string | null; path?: string } = {}): void {
  const at = Math.max(Date.now(), (unsent.peek().at(-1)?.at ?? 0) + 1);
  const item: Unsent = { key: newKey(), by: user.value, chat, agent, path, draft, at, refused: null };
  unsent.value = [...unsent.peek(), item];
  update(item);
}

/** Keeps what it has become, unless it is gone: discarded, or sent by another page. */
function update(item: Unsent): void {
  if (!unsent.peek().some(({ key }) => key === item.key)) return;
  if (item.by !== null) remember(PREFIX + item.key, JSON.stringify(item));
  unsent.value = unsent.peek().map((each) => (each.key === item.key ? item : each));
}

function forget(item: Unsent): void {
  remember(PREFIX + item.key, null);
  unsent.value = unsent.peek().filter(({ key }) => key !== item.key);
}

export function discard(item: Unsent): void {
  void dropBytes(item.draft.files);
  forget(item);
}

/** Forgets what this browser keeps of the caller in a chat, or in all chats: drafts, messages on their way, and their files. */
export async function forgetKept(chat?: string): Promise<void> {
  const items = unsent.peek().filter((item) => item.by === user.value && (chat === undefined || item.chat === chat));
  const files = [...forgetDrafts(user.value, chat), ...items.flatMap(({ draft }) => draft.files)];
  for (const item of items) forget(item);
  await dropBytes(files);
}

export function tryAgain(item: Unsent): void {
  const files = item.draft.files.map((file) => ({ ...file, problem: null }));
  update({ ...item, refused: null, draft: { ...item.draft, files } });
}

/** Back to where it is written, before what stands there. */
export function writeAgain(chat: string, { text, files }: Draft): void {
  const draft = draftOf(isNew(chat) ? NEW : chat);
  draft.value = { ...draft.value, text: [text, draft.value.text].filter(Boolean).join("\n"), files: [...files, ...draft.value.files] };
}

export function takeBack(item: Unsent): void {
  writeAgain(item.chat, item.draft);
  forget(item);
}

/** The same with the text as a file: what is to be done with it is written anew. */
export function takeBackAsFile(item: Unsent): void {
  const file = new File([item.draft.text], "text.txt", { type: "text/plain" });
  const key = newKey();
  keepBytes(key, file);
  writeAgain(item.chat, { ...item.draft, text: "", files: [...item.draft.files, { key, name: file.name, size: file.size, stored: null, problem: null }] });
  forget(item);
}

export function dropFile(item: Unsent, file: Attached): void {
  void dropBytes([file]);
  update({ ...item, draft: { ...item.draft, files: item.draft.files.filter(({ key }) => key !== file.key) } });
}

/** A page that shows the chat sends what is for it, so as to show the answer while it comes. Gives the way out. */
export function deliverBy(chat: string, deliver: Deliver): () => void {
  openChats.set(chat, deliver);
  arrived.get(chat)?.();
  arrived.delete(chat);
  return () => {
    if (openChats.get(chat) === deliver) openChats.delete(chat);
  };
}

/** Sends what is kept, for as long as the page is open: of each chat one at a time. */
export function sendUnsent(): void {
  addEventListener("storage", ({ key }) => {
    if (key === null || key.startsWith(PREFIX)) unsent.value = [...stored(), ...unsent.peek().filter(({ by }) => by === null)];
  });
  effect(() => {
    const by = me.value?.user;
    if (by === undefined) return;
    for (const item of unsent.value) if (item.by === null) update({ ...item, by });
    for (const { chat } of unsent.value) if (nextIn(chat) !== undefined && !underWay.has(chat)) void sendAllOf(chat);
  });
}

const nextIn = (chat: string): Unsent | undefined =>
  unsent.peek().find((item) => item.chat === chat && item.by === me.peek()?.user && item.refused === null);

async function sendAllOf(chat: string): Promise<void> {
  underWay.add(chat);
  for (let item = nextIn(chat); item !== undefined; item = nextIn(chat)) {
    try {
      if (isNew(chat)) await begin(item);
      else if (await (openChats.get(chat) ?? inBackground)(await withFiles(item, chat))) discard(item);
    } catch (error) {
      await failed(item, problemOf(error));
    }
  }
  underWay.delete(chat);
}

async function failed({ key }: Unsent, problem: Problem): Promise<void> {
  if (problem.code === "unreachable") return back();
  if (isPassing(problem) || problem.code === "session_exists") return new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  const item = unsent.peek().find((each) => each.key === key);
  if (item === undefined) return;
  const { code, status, title, detail } = problem;
  const files = code === "unknown_attachment" || isNew(item.chat) ? item.draft.files.map((file) => ({ ...file, stored: null })) : item.draft.files;
  update({ ...item, draft: { ...item.draft, files }, refused: { code, status, title, detail } });
}

/** Makes the session of a new chat. One whose first file is refused does not stay. */
async function begin(item: Unsent): Promise<void> {
  const { id } = await post<Schemas["Session"]>("/sessions", item.agent === null ? {} : { agent: item.agent }, { "Idempotency-Key": item.chat });
  try {
    await withFiles(item, id);
  } catch (error) {
    if (!isPassing(problemOf(error))) await removeIfEmpty(id).catch(() => {});
    throw error;
  }
  made.value = { chat: item.chat, session: id };
  if (openChats.has(item.chat)) await new Promise<void>((resolve) => {
    arrived.set(id, resolve); // the page that shows the chat goes to the session, and sends the message
    setTimeout(resolve, 1000);
  });
  batch(() => {
    for (const each of unsent.peek()) if (each.chat === item.chat) update({ ...each, chat: id });
  });
}

/** Another page may have sent it meanwhile. */
async function removeIfEmpty(session: string): Promise<void> {
  const { message_count } = await get<Schemas["Session"]>(`/sessions/${session}`);
  if (message_count === 0) await remove(`/sessions/${session}`);
}

/** The item once the session has all its files. */
async function withFiles(item: Unsent, session: string): Promise<Unsent> {
  let now = item;
  const change = (file: Attached, to: Partial<Attached>): void => {
    now = { ...now, draft: { ...now.draft, files: now.draft.files.map((each) => (each.key === file.key ? { ...each, ...to } : each)) } };
    update(now);
  };
  for (const file of item.draft.files) {
    if (file.stored !== null) continue;
    try {
      change(file, { stored: await upload(file, session) });
    } catch (error) {
      if (!isPassing(problemOf(error))) change(file, { problem: explained(error) });
      throw error;
    }
  }
  return now;
}

/** What is asked of the service. It has to be the same each time it is sent. */
export function bodyOf({ path, draft }: Unsent): Record<string, unknown> {
  const body = { message: draft.text, attachments: draft.files.flatMap(({ stored }) => stored?.id ?? []) };
  return path === "chat" ? { ...body, on_busy: draft.whileBusy, force_web_search: draft.search } : body;
}

export const post202 = (item: Unsent): Promise<{ turn_id: string }> =>
  post(`/sessions/${item.chat}/${item.path}`, { ...bodyOf(item), background: true, stream: true }, { "Idempotency-Key": item.key });

const inBackground: Deliver = async (item) => Boolean(await post202(item));
