import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { t } from "../i18n";
import { copy } from "../text";
import { Icon, type IconName } from "./icons";

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

export function CopyButton({ text, label = t("copy") }: { text: string | (() => string); label?: string }) {
  const [done, setDone] = useState(false);
  const click = async (): Promise<void> => {
    setDone(await copy(typeof text === "string" ? text : text()));
    setTimeout(() => setDone(false), 1500);
  };
  return <Button kind="quiet" class="small" icon={done ? "check" : "copy"} label={done ? t("copied") : label} onClick={click} />;
}
