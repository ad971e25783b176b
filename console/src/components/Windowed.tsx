import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

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
  /** Stays at the top while the rows scroll, as wide as they are. */
  head?: ComponentChildren;
}

const SPARE = 8;

/** A list that scrolls, of which only what is seen is in the document. */
export function Windowed<T>({ items, height, row, keyOf, onEnd, label, class: more = "", as = "list", head }: Given<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ from: 0, to: 40 });
  const measure = (): void => {
    if (box.current === null) return;
    const { scrollTop, clientHeight } = box.current;
    const from = Math.max(0, Math.floor(scrollTop / height) - SPARE);
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
      <div role={as === "list" ? "list" : "rowgroup"} aria-label={label} class="window" style={{ height: `${items.length * height}px` }}>
        {items.slice(seen.from, seen.to).map((item, index) => (
          <div key={keyOf(item)} {...(as === "list" ? { role: "listitem" } : { role: "row", "aria-rowindex": seen.from + index + 2 })} class="windowed-row" style={{ top: `${(seen.from + index) * height}px`, height: `${height}px` }}>
            {row(item, seen.from + index)}
          </div>
        ))}
      </div>
    </div>
  );
}
