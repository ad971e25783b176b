/** Small parts that pages are made of. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Problem } from "../api";
import { t } from "../i18n";
import { isOps } from "../me";
import { Button } from "./Button";
import { Icon, type IconName } from "./icons";
import { explained } from "./Toast";

export type Mood = "neutral" | "busy" | "good" | "warn" | "bad";

export const Badge = ({ mood, children }: { mood: Mood; children: ComponentChildren }) => (
  <span class={`badge ${mood}`}>{children}</span>
);

export const Spinner = ({ label = t("loading") }: { label?: string }) => <span class="spinner" role="status" aria-label={label} />;

interface Empty {
  icon: IconName;
  title: string;
  children?: ComponentChildren;
}

export const EmptyState = ({ icon, title, children }: Empty) => (
  <div class="empty"><Icon name={icon} size={32} /><h2>{title}</h2>{children}</div>
);

interface CardGiven {
  title: ComponentChildren;
  icon?: IconName;
  aside?: ComponentChildren;
  /** Folded at first; without it, it cannot be folded. */
  folded?: boolean;
  mood?: Mood;
  children?: ComponentChildren;
}

export function Card({ title, icon, aside, folded, mood = "neutral", children }: CardGiven) {
  const [open, setOpen] = useState(folded !== true);
  const head = <>{icon !== undefined && <Icon name={icon} size={16} />}<span class="title" dir="auto">{title}</span><span class="aside">{aside}</span></>;
  return (
    <section class={`card ${mood}`}>
      {folded === undefined ? <header class="head">{head}</header> : (
        <button type="button" class="head" aria-expanded={open} onClick={() => setOpen(!open)}>{head}<Icon name="chevron" size={14} /></button>
      )}
      {open && children !== undefined && <div class="body">{children}</div>}
    </section>
  );
}

/** What went wrong, and a way to try again. */
export const Failure = ({ problem, onRetry }: { problem: Problem; onRetry?: () => void }) => (
  <div class="failure" role="alert">
    <Icon name="alert" />
    <p dir="auto">{explained(problem)}{problem.code !== "unreachable" && isOps() && <code>{problem.code}</code>}</p>
    {onRetry && <Button icon="redo" onClick={onRetry}>{t("try_again")}</Button>}
  </div>
);
