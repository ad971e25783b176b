import { effect, signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Problem, returns } from "../api";
import { type Text, t } from "../i18n";
import { isOps } from "../me";
import { route } from "../router";
import { visible } from "../text";
import { Button } from "./Button";

interface Said {
  id: number;
  text: string;
  bad: boolean;
  /** It is the service's, which anything that works shows to be over, and not that of one act. */
  passing: boolean;
}

const LASTS_MS = 4000;
const MOST = 4;
const said = signal<Said[]>([]);
let count = 0;

/** Says something for some seconds; what went wrong stays until it is closed or its cause passes. Nothing stands there twice. */
export function toast(text: string, bad = false, passing = false): void {
  if (said.peek().some((each) => each.text === text)) return;
  const id = (count += 1);
  said.value = [...said.peek(), { id, text, bad, passing }].slice(-MOST);
  if (!bad) setTimeout(() => drop(id), LASTS_MS);
}

const AFTER = "segue.said";

/** Says it when the page is there again. */
export const toastAfterReload = (text: string): void => sessionStorage.setItem(AFTER, text);

const drop = (id: number): void => {
  said.value = said.peek().filter((each) => each.id !== id);
};

/** What went wrong is over: the user has left where it was. */
export const settle = (is: (each: Said) => boolean = ({ bad }) => bad): void => {
  if (said.peek().some(is)) said.value = said.peek().filter((each) => !is(each));
};

let before = "";
effect(() => {
  const at = [route.value.page, ...route.value.path].join("/");
  if (before !== "" && at !== before) settle(); // a new chat gets its address while it is written
  before = at;
});
effect(() => {
  if (returns.value > 0) settle(({ passing }) => passing);
});

const kept = sessionStorage.getItem(AFTER);
if (kept !== null) toast(kept);
sessionStorage.removeItem(AFTER);

/** Does it, and says what went wrong. What could not be read is read once the service is back, as the banner says. Returns whether it was done. */
export async function attempt(act: () => Promise<unknown>): Promise<boolean> {
  try {
    await act();
    settle(({ passing }) => passing);
    return true;
  } catch (error) {
    const { code = "", status = 0, more = {} } = error instanceof Problem ? error : {};
    if (code !== "unreachable") toast(explained(error), true, status >= 500 || status === 429);
    else if (more["method"] !== "GET") toast(t("not_answered"), true);
    return false;
  }
}

/** What problems are called for people. */
const SAID: Record<string, Text> = {
  unreachable: "unreachable", body_too_large: "too_large", attachment_quota_exceeded: "problem_files_full",
  unsupported_attachment: "problem_file_kind", unreadable_attachment: "problem_file_unreadable", rate_limited: "problem_too_fast",
  service_limit_reached: "problem_limit", too_many_queued: "problem_queued", session_not_found: "chat_not_found",
  plan_changed: "problem_plan_changed", plan_expired: "problem_plan_expired", no_open_plan: "problem_plan_changed",
  turn_in_progress: "problem_busy", model_unavailable: "problem_model", model_timeout: "problem_model_slow",
  turn_timeout: "problem_too_long", turn_budget_spent: "problem_too_long", conversation_too_long: "problem_too_long",
  mcp_server_failed: "problem_server", mcp_login_unavailable: "problem_server", tool_result_expired: "problem_result_gone",
  invalid_args: "problem_values", invalid_answer: "problem_values", memory_exists: "problem_known", forbidden: "problem_forbidden",
  unreadable: "problem_unreadable", not_confirmed: "problem_not_confirmed", identity_unavailable: "problem_storage",
  invalid_request: "problem_values", too_many_unattended: "problem_too_many", trigger_key_missing: "problem_trigger_key", file_gone: "file_gone",
};

/** In words for people; operators are told in the service's own as well. */
export function explained(error: unknown): string {
  if (!(error instanceof Problem)) return isOps() ? String(error) : t("problem_other");
  const { code, detail, title } = error;
  const told = SAID[code] ?? (code.startsWith("storage_") ? "problem_storage" : undefined);
  const exact = code !== "unreachable" && isOps() ? visible(detail || title) : "";
  if (told === undefined || exact === "") return told === undefined ? exact || t("problem_other") : t(told);
  return /[.!?。？！؟]$/.test(t(told)) ? `${t(told)} ${exact}` : `${t(told)}: ${exact}`;
}

/** Above an open dialog as well, and never above where a message is written. */
export function Toasts() {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    box.current?.togglePopover(false);
    if (said.value.length > 0) box.current?.togglePopover(true);
  }, [said.value]);
  return (
    <div role="status" aria-live="polite"><div ref={box} class="toasts" popover="manual">
      {said.value.map(({ id, text, bad }) => (
        <div key={id} class={bad ? "toast bad" : "toast"}>
          <span dir="auto">{text}</span>
          <Button kind="quiet" class="small" icon="cross" label={t("close")} onClick={() => drop(id)} />
        </div>
      ))}
    </div></div>
  );
}
