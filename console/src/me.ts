/** Who calls: read once, and again when another key is given. */
import { computed, effect, signal } from "@preact/signals";
import { get, key, returns, type Schemas } from "./api";

export type Me = Schemas["Me"];
export const me = signal<Me | null>(null);
const USER = "segue.user";
/** Who calls, in this tab known again after a reload before it is read. Null if it is not known. */
export const user = computed(() => me.value?.user ?? sessionStorage.getItem(USER));
export const isOps = (): boolean => me.value?.scopes.includes("ops") ?? false;

export function readMe(): void {
  effect(() => {
    if (me.value !== null) sessionStorage.setItem(USER, me.value.user);
  });
  effect(() => {
    void [key.value, returns.value];
    get<Me>("/me").then((found) => (me.value = found), () => {});
  });
}
