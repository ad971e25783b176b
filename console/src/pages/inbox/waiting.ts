/** What waits for the caller's decision, of their own chats and of others': read at the start and every half minute. */
import { computed, effect, signal } from "@preact/signals";
import { key, pages, type Problem, returns, type Schemas } from "../../api";
import { onFeed } from "../../events";
import { problemOf } from "../../load";
import { me, type Me } from "../../me";

export type Waiting = Schemas["Approval"];
const EVERY_MS = 30_000;
const MOST = 1000;

/** Null until it was read. */
export const waiting = signal<Waiting[] | null>(null);
/** Why it could not be read. */
export const problem = signal<Problem | null>(null);
export const count = computed(() => waiting.value?.length ?? 0);

/** Who is in no group and has no role decides for nobody else, and sees nothing of this page. */
export const decides = ({ groups, roles }: Me): boolean => groups.length + roles.length > 0;

/** Counts the readings: one that was overtaken is not shown. */
let latest = 0;

/** Does not raise: what went wrong is `problem`. */
export async function readWaiting(): Promise<void> {
  if (me.value === null || !decides(me.value)) return;
  const found: Waiting[] = [];
  const asked = (latest += 1);
  try {
    for await (const page of pages<Waiting>("/approvals", { limit: 200 }, MOST)) found.push(...page);
    if (asked === latest) [waiting.value, problem.value] = [found, null];
  } catch (error) {
    if (asked === latest) problem.value = problemOf(error);
  }
}

/** Also in the background, because the tab shows how many there are. */
export function followWaiting(): void {
  effect(() => {
    void [key.value, returns.value, me.value];
    void readWaiting();
  });
  setInterval(() => void readWaiting(), EVERY_MS);
  onFeed(({ type }) => (type === "approval_asked" || type === "turn_ended") && void readWaiting());
}
