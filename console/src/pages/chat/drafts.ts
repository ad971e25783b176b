/** What is being written, by chat and user. It survives a reload. */
import { type Signal, signal } from "@preact/signals";
import { user } from "../../me";
import { parsed } from "./live";
import type { Attached } from "./files";

/** What the user is about to say. */
export interface Draft {
  text: string;
  files: Attached[];
  search: boolean;
  whileBusy: "steer" | "enqueue";
}

export const EMPTY: Draft = { text: "", files: [], search: false, whileBusy: "enqueue" };
/** The chat that does not exist yet. */
export const NEW = "new";

const drafts = new Map<string, Signal<Draft>>();
const nameOf = (by: string | null, chat: string): string => `segue.draft.${by ?? ""}.${chat}`;

const joined = (...texts: string[]): string => texts.filter(Boolean).join("\n");

/** What was written before it was known by whom is theirs, behind what they had written before. */
export function draftOf(chat: string): Signal<Draft> {
  const name = nameOf(user.value, chat);
  const known = drafts.get(name);
  if (known !== undefined) return known;
  const kept = { ...EMPTY, ...(parsed(localStorage.getItem(name) ?? "") as Partial<Draft> | null) };
  const early = drafts.get(nameOf(null, chat))?.peek() ?? EMPTY;
  drafts.delete(nameOf(null, chat));
  const draft = signal<Draft>({ ...kept, text: joined(kept.text, early.text), files: [...kept.files, ...early.files], search: kept.search || early.search });
  drafts.set(name, draft);
  if (user.value !== null) draft.subscribe((now) => isHeard || remember(name, now.text || now.files.length > 0 ? JSON.stringify(now) : null));
  return draft;
}

let isHeard = false;

/** Another tab has written in the same chat: its words are the newest, and are not written over with what stood here before. Files that one tab is sending stay its own until they are there. */
addEventListener("storage", ({ key, newValue }) => {
  const draft = drafts.get(key ?? "");
  if (draft === undefined) return;
  const isOnItsWay = ({ stored, problem }: Attached): boolean => stored === null && problem === null;
  const { text, search, files }: Draft = { ...EMPTY, ...(parsed(newValue ?? "") as Partial<Draft> | null) };
  isHeard = true;
  draft.value = { ...draft.peek(), text, search, files: [...files.filter((file) => !isOnItsWay(file)), ...draft.peek().files.filter(isOnItsWay)] };
  isHeard = false;
});

/** Puts a text behind what is written. */
export function append(draft: Signal<Draft>, text: string): void {
  draft.value = { ...draft.value, text: joined(draft.value.text, text) };
}

/** Forgets what a user was writing in a chat, or in all chats, and returns the files that were with it. */
export function forgetDrafts(by: string | null, chat?: string): Attached[] {
  const isTheirs = (name: string): boolean => name === nameOf(by, chat ?? name.slice(name.lastIndexOf(".") + 1));
  return Object.keys(localStorage).filter(isTheirs).flatMap((name) => {
    const { files = [] } = (parsed(localStorage.getItem(name) ?? "") ?? {}) as Partial<Draft>;
    const shown = drafts.get(name);
    if (shown !== undefined) shown.value = EMPTY;
    remember(name, null);
    return files;
  });
}

/** Keeps a text in the browser, or null to forget it. A browser that keeps nothing is no reason to stop writing. */
export function remember(name: string, text: string | null): void {
  try {
    if (text === null) localStorage.removeItem(name);
    else localStorage.setItem(name, text);
  } catch {
    /* it lasts as long as the page */
  }
}
