import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./icons";

export interface Entry {
  label: string;
  icon?: IconName;
  act: () => void;
  danger?: boolean;
  chosen?: boolean;
  disabled?: boolean;
}

interface Given {
  label: string;
  icon?: IconName;
  children?: ComponentChildren;
  entries: Entry[];
  class?: string;
}

/** A button with a list below it. Arrows move, Esc closes and gives the focus back. */
export function Menu({ label, icon = "more", children, entries, class: more = "" }: Given) {
  const [open, setOpen] = useState(false);
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const close = (focus: boolean): void => {
    setOpen(false);
    if (focus) button.current?.focus();
  };
  useLayoutEffect(() => {
    if (open && button.current !== null && list.current !== null) place(list.current, button.current);
  }, [open]);
  useEffect(() => {
    if (!open) return undefined;
    const away = (event: Event): void => {
      if (!(event.target instanceof Node) || !(list.current?.contains(event.target) || button.current?.contains(event.target))) close(false);
    };
    const moved = (event: Event): void => {
      if (event.target instanceof Node && event.target.contains(button.current)) close(false); // the button went, not what else scrolls
    };
    addEventListener("pointerdown", away, true);
    addEventListener("scroll", moved, true);
    addEventListener("resize", away);
    return () => {
      removeEventListener("pointerdown", away, true);
      removeEventListener("scroll", moved, true);
      removeEventListener("resize", away);
    };
  }, [open]);
  const move = (event: KeyboardEvent): void => {
    const items = [...(list.current?.querySelectorAll<HTMLElement>("button:not(:disabled)") ?? [])];
    const at = items.indexOf(document.activeElement as HTMLElement);
    const to: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 };
    if (event.key === "Escape" || event.key === "Tab") close(event.key === "Escape");
    else if (event.key in to) items.at((to[event.key] ?? 0) % items.length)?.focus();
    else return;
    if (event.key !== "Tab") event.preventDefault();
    event.stopPropagation();
  };
  return (
    <>
      <button ref={button} type="button" class={`button quiet ${children === undefined ? "alone" : ""} ${more}`} aria-haspopup="menu"
        aria-expanded={open} aria-controls={open ? id : undefined} aria-label={children === undefined ? label : undefined} title={label}
        onClick={() => setOpen(!open)}>
        {children ?? <Icon name={icon} />}
      </button>
      {open && (
        <div ref={list} id={id} role="menu" class="menu" aria-label={label} onKeyDown={move}>
          {entries.map((entry) => (
            <button key={entry.label} type="button" role={entry.chosen === undefined ? "menuitem" : "menuitemradio"} aria-checked={entry.chosen}
              class={entry.danger ? "danger" : ""} disabled={entry.disabled ?? false} tabIndex={-1}
              onClick={() => { close(true); entry.act(); }}>
              {entry.icon !== undefined && <Icon name={entry.icon} />}
              <span><bdi>{entry.label}</bdi></span>
              {entry.chosen && <Icon name="check" />}
            </button>
          ))}
        </div>
      )}
    </>
  );
}

/** Below the button or above it, inside the window, whichever way the text runs. */
function place(list: HTMLElement, button: HTMLElement): void {
  const at = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = list;
  const below = at.bottom + height + 8 < innerHeight;
  const start = document.dir === "rtl" ? at.right - width : at.left;
  list.style.left = `${Math.max(8, Math.min(start, innerWidth - width - 8))}px`;
  list.style.top = `${Math.max(8, below ? at.bottom + 4 : at.top - height - 4)}px`;
  list.querySelector<HTMLElement>("button:not(:disabled)")?.focus();
}
