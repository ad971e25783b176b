/**
 * The HTTP API as the pages call it: the key as a header, problems as typed errors, pages of lists.
 * A 401 asks for the key and repeats the request. A service that cannot be reached is said once, by `reachable`.
 */
import { signal } from "@preact/signals";
import type { components } from "./api-types";
import { parseJson } from "./json";

export type Schemas = components["schemas"];
export type Query = Record<string, string | number | boolean | null | undefined>;
export interface Listed<T> {
  items: T[];
  next_cursor: string | null;
}
interface Request {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

const KEY = "segue.key";
const VERSION_HEADER = "X-Segue-Version";

/** The key in use; null if none was asked for. It stays in this tab. */
export const key = signal<string | null>(sessionStorage.getItem(KEY));
/** Why the key is asked for; null if it is not. */
export const keyWanted = signal<"missing" | "refused" | null>(null);
export const reachable = signal(true);
/** Counts how often the service came back: what was read before may be old. */
export const returns = signal(0);
/** The version of the service, if it is not the one this page was built with. */
export const otherVersion = signal<string | null>(null);

/** What a request was refused with (RFC 9457), or `unreachable` if there was no answer. Decide by `code`. */
export class Problem extends Error {
  constructor(
    readonly code: string,
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly more: Record<string, unknown> = {},
  ) {
    super(detail || title);
  }
}

/** Relative to the page, so that it also works where Segue is mounted below a path. */
export const url = (path: string, query: Query = {}): string => {
  const asked = new URL(path.replace(/^\//, ""), document.baseURI.replace(/#.*/, ""));
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== "") asked.searchParams.set(name, String(value));
  return asked.href;
};

export const newKey = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

let waiting: { key: Promise<void>; given: () => void } | null = null;

/** Sends the key from now on; requests that wait for one go on. */
export function giveKey(given: string | null): void {
  key.value = given;
  if (given === null) sessionStorage.clear();
  else sessionStorage.setItem(KEY, given);
  keyWanted.value = null;
  waiting?.given();
  waiting = null;
}

function askForKey(): Promise<void> {
  if (waiting === null) {
    let given = () => {};
    waiting = { key: new Promise((resolve) => (given = () => resolve())), given };
    keyWanted.value = key.value === null ? "missing" : "refused";
  }
  return waiting.key;
}

/** The response of a request that succeeded. Raises Problem. */
export async function send(method: string, path: string, request: Request = {}): Promise<Response> {
  for (;;) {
    const sent = key.value;
    const answer = await attempt(method, path, request);
    const version = answer.headers.get(VERSION_HEADER);
    otherVersion.value = version !== null && version !== VERSION ? version : null;
    if (answer.ok) return answer;
    const problem = await problemOf(answer);
    if (answer.status !== 401) throw problem;
    if (key.value === sent) await askForKey();
  }
}

async function attempt(method: string, path: string, { query, body, headers, signal }: Request): Promise<Response> {
  const sent: Record<string, string> = { ...headers };
  if (key.value !== null) sent["X-Api-Key"] = key.value;
  const isFile = body instanceof FormData;
  if (body !== undefined && !isFile) sent["Content-Type"] = "application/json";
  const init: RequestInit = { method, headers: sent, signal: signal ?? null };
  if (body !== undefined) init.body = isFile ? body : JSON.stringify(body);
  try {
    const answer = await fetch(url(path, query), init);
    if (!reachable.value) isBack();
    return answer;
  } catch (error) {
    if (signal?.aborted) throw error;
    isLost();
    throw new Problem("unreachable", 0, "", "The service cannot be reached.", { method });
  }
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    const { code, title, detail, ...more } = (await answer.json()) as Record<string, unknown>;
    return new Problem(String(code ?? answer.status), answer.status, String(title ?? ""), String(detail ?? ""), more);
  } catch {
    return new Problem(String(answer.status), answer.status, answer.statusText, "");
  }
}

let probing = false;

function isBack(): void {
  reachable.value = true;
  returns.value += 1;
}

function isLost(): void {
  reachable.value = false;
  if (!probing) void probe();
}

/** Asks until there is an answer: after half a second, then at most every five seconds. */
async function probe(): Promise<void> {
  probing = true;
  for (let pause = 500; !reachable.value; pause = Math.min(pause * 1.6, 5000)) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    try {
      if ((await fetch(url("/health/live"))).ok && !reachable.value) isBack();
    } catch {
      /* not yet */
    }
  }
  probing = false;
}

/** Returns once the service answers again; at once if it does. */
export const back = (): Promise<void> =>
  new Promise((resolve) => {
    const stop = reachable.subscribe((is) => {
      if (is) {
        resolve();
        queueMicrotask(() => stop());
      }
    });
  });

export async function call<T>(method: string, path: string, request: Request = {}): Promise<T> {
  const answer = await send(method, path, request);
  return (answer.status === 204 ? null : parseJson(await answer.text())) as T;
}

export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> =>
  call<T>("GET", path, { query, signal });
export const post = <T>(path: string, body: unknown = {}, headers: Record<string, string> = {}): Promise<T> =>
  call<T>("POST", path, { body, headers });
export const put = <T>(path: string, body: unknown): Promise<T> => call<T>("PUT", path, { body });
export const patch = <T>(path: string, body: unknown): Promise<T> => call<T>("PATCH", path, { body });
export const remove = (path: string, query: Query = {}): Promise<null> => call<null>("DELETE", path, { query });

/** All items of a list, a page at a time, until `atMost`. */
export async function* pages<T>(path: string, query: Query = {}, atMost = Infinity, signal?: AbortSignal): AsyncGenerator<T[]> {
  let cursor: string | null = null;
  for (let count = 0; count < atMost; ) {
    const page: Listed<T> = await get<Listed<T>>(path, { ...query, cursor }, signal);
    yield page.items;
    count += page.items.length;
    cursor = page.next_cursor;
    if (cursor === null) return;
  }
}

/** Bytes that need the key, as an address that an <img> or a download takes. Revoke it when it is not shown any more. */
export async function blobUrl(path: string, query: Query = {}): Promise<string> {
  return URL.createObjectURL(await (await send("GET", path, { query })).blob());
}
