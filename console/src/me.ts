/** Who calls: read once, and again when another key is given. */
import { effect, signal } from "@preact/signals";
import { get, key, returns, type Schemas } from "./api";

export type Me = Schemas["Me"];
export const me = signal<Me | null>(null);
export const isOps = (): boolean => me.value?.scopes.includes("ops") ?? false;

export function readMe(): void {
  effect(() => {
    void [key.value, returns.value];
    get<Me>("/me").then((found) => (me.value = found), () => {});
  });
}
