import type { ComponentChildren, JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { t } from "../i18n";
import { copy } from "../text";
import { Icon, type IconName } from "./icons";
import { toast } from "./Toast";

type Given = Omit<JSX.IntrinsicElements["button"], "icon" | "label" | "children">;
interface Looks extends Given {
  kind?: "plain" | "primary" | "danger" | "quiet";
  icon?: IconName;
  /** Read aloud, and shown on hovering, where an icon stands alone. */
  label?: string;
  children?: ComponentChildren;
}

export function Button({ kind = "plain", icon, label, children, class: more, ...given }: Looks) {
  const alone = children === undefined ? "alone" : "";
  return (
    <button type="button" {...given} class={`button ${kind} ${alone} ${String(more ?? "")}`} aria-label={label} title={label ?? given.title}>
      {icon !== undefined && <Icon name={icon} />}
      {children}
    </button>
  );
}

/** Does one thing at a time: what is asked for meanwhile is not done. */
export function useBusy(): [busy: boolean, once: (act: () => Promise<unknown>) => Promise<void>] {
  const [busy, setBusy] = useState(false);
  const doing = useRef(false); // a second click can come before it is drawn
  const once = async (act: () => Promise<unknown>): Promise<void> => {
    if (doing.current) return;
    doing.current = true;
    setBusy(true);
    try {
      await act();
    } finally {
      doing.current = false;
      setBusy(false);
    }
  };
  return [busy, once];
}

export function CopyButton({ text, label = t("copy") }: { text: string | (() => string); label?: string }) {
  const [done, setDone] = useState(false);
  const click = async (): Promise<void> => {
    const did = await copy(typeof text === "string" ? text : text());
    if (!did) toast(t("copy_failed"), true);
    setDone(did);
    setTimeout(() => setDone(false), 1500);
  };
  return <Button kind="quiet" class="small" icon={done ? "check" : "copy"} label={done ? t("copied") : label} onClick={click} />;
}
