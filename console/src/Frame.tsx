/** A page's list at the side and its content. On a phone the list is a drawer. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Button } from "./components/Button";
import { t } from "./i18n";
import { route } from "./router";
import { titled } from "./title";
import { isComposing } from "./typing";

export const drawer = signal(false);

interface Given {
  title: ComponentChildren;
  side?: ComponentChildren;
  /** Buttons at the end of the head. */
  actions?: ComponentChildren;
  children: ComponentChildren;
}

export function Frame({ title, side, actions, children }: Given) {
  const at = route.value;
  const head = useRef<HTMLHeadingElement>(null);
  useEffect(() => void (titled.value = head.current?.textContent ?? ""));
  useEffect(() => {
    drawer.value = false;
  }, [at]);
  const list = useRef<HTMLElement>(null);
  const opener = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (!drawer.value) return undefined;
    list.current?.querySelector<HTMLElement>("button, a, input")?.focus();
    const behind = document.querySelectorAll<HTMLElement>(".main, .rail");
    const reach = (can: boolean): void => behind.forEach((each) => (each.inert = !can));
    reach(false);
    /** Wherever the focus is: Esc is for what is open, and nothing behind it hears it. */
    const onKey = (event: KeyboardEvent): void => {
      if (event.key !== "Escape" || event.defaultPrevented || isComposing(event) || document.querySelector("dialog[open], .menu") !== null) return;
      event.preventDefault();
      drawer.value = false;
      reach(true); // now: what cannot be reached takes no focus
      opener.current?.querySelector("button")?.focus();
    };
    /** On a wide screen the list is no drawer. */
    const onResize = (): void => {
      if (list.current !== null && getComputedStyle(list.current).position !== "fixed") drawer.value = false;
    };
    document.addEventListener("keydown", onKey);
    window.addEventListener("resize", onResize);
    return () => {
      reach(true);
      document.removeEventListener("keydown", onKey);
      window.removeEventListener("resize", onResize);
    };
  }, [drawer.value]);
  /** A link to what is shown already leads nowhere else, and closes it all the same. */
  const onClick = ({ target }: Event): void => {
    if (target instanceof Element && target.closest("a") !== null) drawer.value = false;
  };
  return (
    <>
      {side !== undefined && (
        <aside ref={list} class={drawer.value ? "side open" : "side"} onClick={onClick}>
          {side}
        </aside>
      )}
      {drawer.value && <div class="scrim" onClick={() => (drawer.value = false)} />}
      <main class="main" id="main" tabIndex={-1}>
        <header class="bar">
          {side !== undefined && <span ref={opener}><Button kind="quiet" class="for-drawer" icon="menu" label={t("open_list")} aria-expanded={drawer.value} onClick={() => (drawer.value = true)} /></span>}
          <h1 ref={head}><bdi>{title}</bdi></h1>
          <div class="actions">{actions}</div>
        </header>
        {children}
      </main>
    </>
  );
}
