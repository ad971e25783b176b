/** What waits for the caller's decision, of their own chats and of others': read at the start and every half minute. */
import { computed, effect, signal } from "@preact/signals";
import { key, pages, returns, type Schemas } from "../../api";
import { onFeed } from "../../events";
import { me, type Me } from "../../me";

export type Waiting = Schemas["Approval"];
const EVERY_MS = 30_000;
const MOST = 1000;

/** Null until it was read. */
export const waiting = signal<Waiting[] | null>(null);
export const count = computed(() => waiting.value?.length ?? 0);

/** Who is in no group and has no role decides for nobody else, and sees nothing of this page. */
export const decides = ({ groups, roles }: Me): boolean => groups.length + roles.length > 0;

export async function readWaiting(): Promise<void> {
  if (me.value === null || !decides(me.value)) return;
  const found: Waiting[] = [];
  for await (const page of pages<Waiting>("/approvals", { limit: 200 }, MOST)) found.push(...page);
  waiting.value = found;
}

/** Also in the background, because the tab shows how many there are. */
export function followWaiting(): void {
  const read = (): void => void readWaiting().catch(() => {});
  effect(() => {
    void [key.value, returns.value, me.value];
    read();
  });
  setInterval(read, EVERY_MS);
  onFeed(({ type }) => (type === "approval_asked" || type === "turn_ended") && read());
}
