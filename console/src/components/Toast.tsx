import { signal } from "@preact/signals";
import { Problem } from "../api";
import { t } from "../i18n";
import { visible } from "../text";
import { Button } from "./Button";

interface Said {
  id: number;
  text: string;
  bad: boolean;
}

const said = signal<Said[]>([]);
let count = 0;

/** Says something for some seconds; what went wrong stays until it is closed. */
export function toast(text: string, bad = false): void {
  const id = (count += 1);
  said.value = [...said.value.slice(-3), { id, text, bad }];
  if (!bad) setTimeout(() => drop(id), 4000);
}

const drop = (id: number): void => {
  said.value = said.value.filter((each) => each.id !== id);
};

/** Does it, and says what went wrong, but for what the banner says for as long as it is so. Returns whether it was done. */
export async function attempt(act: () => Promise<unknown>): Promise<boolean> {
  try {
    await act();
    return true;
  } catch (error) {
    if (!(error instanceof Problem && error.code === "unreachable")) toast(explained(error), true);
    return false;
  }
}

export function explained(error: unknown): string {
  if (!(error instanceof Problem)) return String(error);
  if (error.code === "unreachable") return t("unreachable");
  return error.code === "body_too_large" ? t("too_large") : visible(error.detail || error.title || error.code);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {said.value.map(({ id, text, bad }) => (
        <div key={id} class={bad ? "toast bad" : "toast"}>
          <span dir="auto">{text}</span>
          <Button kind="quiet" class="small" icon="cross" label={t("close")} onClick={() => drop(id)} />
        </div>
      ))}
    </div>
  );
}
