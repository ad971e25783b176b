import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { language } from "../i18n";

interface Given<T> {
  items: T[];
  /** In pixels, the same for all. */
  height: number;
  row: (item: T, index: number) => ComponentChildren;
  keyOf: (item: T) => string;
  /** Called when the end comes near. */
  onEnd?: () => void;
  label?: string;
  class?: string;
  /** The rows of a table, which has its name elsewhere. */
  as?: "list" | "table";
  /** The group of an item, which is named above the first of its items. */
  group?: ((item: T) => string) | undefined;
  /** Stays at the top while the rows scroll, as wide as they are. */
  head?: ComponentChildren;
}

const SPARE = 8;
/** The height of a group's name, as in styles.css. */
const NAME = 30;

/** A list that scrolls, of which only what is seen is in the document. */
export function Windowed<T>({ items, height, row, keyOf, onEnd, label, class: more = "", as = "list", group, head }: Given<T>) {
  const box = useRef<HTMLDivElement>(null);
  const named = useMemo(() => firstOfGroups(items, group), [items, group, language.value]);
  const count = useRef(0);
  count.current = named.size;
  const begins = [...named.keys()];
  const top = (index: number): number => index * height + NAME * begins.filter((first) => first < index).length;
  const [seen, setSeen] = useState({ from: 0, to: 40 });
  const measure = (): void => {
    if (box.current === null) return;
    const { scrollTop, clientHeight } = box.current;
    const from = Math.max(0, Math.floor((scrollTop - NAME * count.current) / height) - SPARE);
    const to = Math.ceil((scrollTop + clientHeight) / height) + SPARE;
    setSeen((before) => (before.from === from && before.to === to ? before : { from, to }));
  };
  useEffect(() => {
    measure();
    const watched = new ResizeObserver(measure);
    if (box.current) watched.observe(box.current);
    return () => watched.disconnect();
  }, []);
  useEffect(() => {
    if (seen.to >= items.length) onEnd?.();
  }, [seen.to, items.length, onEnd]);
  return (
    <div ref={box} class={`windowed ${more}`} onScroll={measure} {...(as === "list" && { tabIndex: -1 })}>
      {head}
      <div role={as === "list" ? "list" : "rowgroup"} aria-label={label} class="window" style={{ height: `${top(items.length)}px` }}>
        {items.slice(seen.from, seen.to).map((item, index) => {
          const at = seen.from + index;
          const name = named.get(at);
          return (
            <div key={keyOf(item)} {...(as === "list" ? { role: "listitem" } : { role: "row", "aria-rowindex": at + 2 })} class="windowed-row" style={{ top: `${top(at)}px`, height: `${top(at + 1) - top(at)}px` }}>
              {name !== undefined && <div class="group">{name}</div>}
              {row(item, at)}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function firstOfGroups<T>(items: T[], group: ((item: T) => string) | undefined): Map<number, string> {
  const named = new Map<number, string>();
  let last: string | null = null;
  if (group !== undefined)
    for (const [index, item] of items.entries()) {
      const name = group(item);
      if (name !== last) named.set(index, name);
      last = name;
    }
  return named;
}
