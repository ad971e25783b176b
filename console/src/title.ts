/** What the tab is called: the page's head, how many decisions wait for the caller, and a mark while it is in the background and something came meanwhile. */
import { effect, signal } from "@preact/signals";
import { onFeed } from "./events";
import { count } from "./pages/inbox/waiting";

export const titled = signal("");
/** ● waits for the user, ✓ is done. What waits is not hidden by what is done. */
const mark = signal<"" | "●" | "✓">("");

export function followTitle(): void {
  effect(() => {
    document.title = [mark.value, count.value > 0 && `(${count.value})`, titled.value && `${titled.value} ·`, "Segue"].filter(Boolean).join(" ");
  });
  onFeed(({ type }) => {
    if (!document.hidden) return;
    if (type === "approval_asked") mark.value = "●";
    else if (type === "turn_ended" && mark.value === "") mark.value = "✓";
  });
  addEventListener("visibilitychange", () => document.hidden || (mark.value = ""));
}
