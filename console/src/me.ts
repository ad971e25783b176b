/** Who calls: read once, and again when another key is given. */
import { computed, effect, signal } from "@preact/signals";
import { get, key, returns, type Schemas } from "./api";
import { pause } from "./events";

export type Me = Schemas["Me"];
export const me = signal<Me | null>(null);
const USER = "segue.user";
/** Who calls, in this tab known again after a reload before it is read. Null if it is not known. */
export const user = computed(() => me.value?.user ?? sessionStorage.getItem(USER));
export const isOps = (): boolean => me.value?.scopes.includes("ops") ?? false;

export function readMe(): void {
  let known = key.peek();
  effect(() => {
    if (key.value === known) return;
    known = key.value;
    sessionStorage.removeItem(USER); // it may be somebody else's
    me.value = null;
  });
  effect(() => {
    if (me.value !== null) sessionStorage.setItem(USER, me.value.user);
  });
  effect(() => {
    void [key.value, returns.value];
    const stop = new AbortController();
    void readUntilKnown(stop.signal);
    return () => stop.abort();
  });
}

/** Asks again after a refusal, as a 503 or 429 passes: before it is known who calls, no message is sent. */
async function readUntilKnown(signal: AbortSignal): Promise<void> {
  for (let failures = 0; !signal.aborted; failures += 1) {
    const found = await get<Me>("/me", {}, signal).catch(() => null);
    if (signal.aborted) return;
    if (found !== null) {
      me.value = found;
      return;
    }
    await pause(Math.min(1000 * 2 ** failures, 15_000));
  }
}
