import type { ComponentChildren } from "preact";
import { Windowed } from "./Windowed";

export interface Column<T> {
  label: string;
  cell: (item: T) => ComponentChildren;
  /** A width of CSS grid: `8rem`, `1fr`, `minmax(10rem, 2fr)`. */
  width: string;
  end?: boolean;
}

interface Given<T> {
  label: string;
  columns: Column<T>[];
  items: T[];
  keyOf: (item: T) => string;
  href?: (item: T) => string;
  onEnd?: () => void;
}

/** Rows of one height, of which only what is seen is in the document. A row may be a link. */
export function Table<T>({ label, columns, items, keyOf, href, onEnd }: Given<T>) {
  const grid = { gridTemplateColumns: columns.map(({ width }) => width).join(" ") };
  const cells = (item: T): ComponentChildren =>
    columns.map(({ label: name, cell, end }) => (
      <div key={name} class={end ? "cell end" : "cell"} dir="auto">{cell(item)}</div>
    ));
  return (
    <div class="table">
      <div class="row head" style={grid} aria-hidden="true">
        {columns.map(({ label: name, end }) => <div key={name} class={end ? "cell end" : "cell"}>{name}</div>)}
      </div>
      <Windowed label={label} items={items} height={40} keyOf={keyOf} {...(onEnd && { onEnd })}
        row={(item) => href ? <a class="row" style={grid} href={href(item)}>{cells(item)}</a> : <div class="row" style={grid}>{cells(item)}</div>} />
    </div>
  );
}
