/** Files on their way to a session. Their bytes stay in the browser's store until the service has accepted the message. */
import { call, Problem, type Schemas } from "../../api";
import { t } from "../../i18n";

export interface Attached {
  key: string;
  name: string;
  size: number;
  /** What the session calls it, once it is there. */
  stored: Schemas["Attachment"] | null;
  /** Why the session does not take it. */
  problem: string | null;
}

const here = new Map<string, File>();
const uploads = new Map<string, Promise<Schemas["Attachment"]>>();

async function inStore<T>(mode: IDBTransactionMode, act: (files: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const result = <R>(request: IDBRequest<R>): Promise<R> =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  const opening = indexedDB.open("segue", 1);
  opening.onupgradeneeded = () => void opening.result.createObjectStore("files");
  const store = await result(opening);
  try {
    return await result(act(store.transaction("files", mode).objectStore("files")));
  } finally {
    store.close();
  }
}

/** Where the browser has no store for it, a file lasts as long as the page. */
export function keepBytes(key: string, file: File): void {
  here.set(key, file);
  inStore("readwrite", (files) => files.put(file, key)).catch(() => {});
}

export async function dropBytes(files: Attached[]): Promise<void> {
  for (const { key } of files) here.delete(key);
  await Promise.all(files.map(({ key }) => inStore("readwrite", (store) => store.delete(key)).catch(() => {})));
}

/** Sends a file to a session, once however often it is asked for at a time. Raises Problem. */
export function upload({ key, name }: Attached, session: string): Promise<Schemas["Attachment"]> {
  const id = `${session}/${key}`;
  const running = uploads.get(id) ?? uploadOnce(key, name, session).finally(() => uploads.delete(id));
  uploads.set(id, running);
  return running;
}

async function uploadOnce(key: string, name: string, session: string): Promise<Schemas["Attachment"]> {
  const file = here.get(key) ?? (await inStore<File | undefined>("readonly", (files) => files.get(key)).catch(() => undefined));
  if (file === undefined) throw new Problem("file_gone", 0, "", t("file_gone"));
  const form = new FormData();
  form.append("file", file, name);
  return call<Schemas["Attachment"]>("POST", `/sessions/${session}/attachments`, { body: form });
}
