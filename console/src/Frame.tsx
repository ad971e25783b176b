/** A page's list at the side and its content. On a phone the list is a drawer. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Button } from "./components/Button";
import { t } from "./i18n";
import { route } from "./router";
import { titled } from "./title";

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
  return (
    <>
      {side !== undefined && (
        <aside class={drawer.value ? "side open" : "side"} onKeyDown={(event) => event.key === "Escape" && (drawer.value = false)}>
          {side}
        </aside>
      )}
      {drawer.value && <div class="scrim" onClick={() => (drawer.value = false)} />}
      <main class="main" id="main" tabIndex={-1}>
        <header class="bar">
          {side !== undefined && <Button kind="quiet" class="for-drawer" icon="menu" label={t("open_list")} onClick={() => (drawer.value = true)} />}
          <h1 ref={head}><bdi>{title}</bdi></h1>
          <div class="actions">{actions}</div>
        </header>
        {children}
      </main>
    </>
  );
}
