import type { ComponentChildren } from "preact";
import { Windowed } from "./Windowed";

export interface Column<T> {
  label: string;
  cell: (item: T) => ComponentChildren;
  /** A width of CSS grid: `8rem`, `1fr`, `minmax(10rem, 2fr)`. */
  width: string;
  /** A phone has no room for it. */
  spare?: boolean;
}

interface Given<T> {
  label: string;
  columns: Column<T>[];
  items: T[];
  keyOf: (item: T) => string;
}

const HEIGHT = 58;

/** Rows of one height, of which only what is seen is in the document. */
export function Table<T>({ label, columns, items, keyOf }: Given<T>) {
  return (
    <div class="table" role="table" aria-label={label} aria-rowcount={items.length + 1} style={{ "--columns": columns.map(({ width }) => width).join(" ") }}>
      <Windowed as="table" items={items} height={HEIGHT} keyOf={keyOf}
        head={
          <div class="heads" role="rowgroup">
            <div class="row head" role="row" aria-rowindex={1}>{columns.map(({ label: name }) => <div key={name} class="cell" role="columnheader">{name}</div>)}</div>
          </div>
        }
        row={(item) => <div class="row">{columns.map(({ label: name, cell, spare }) => <div key={name} class={spare ? "cell spare" : "cell"} role="cell">{cell(item)}</div>)}</div>} />
    </div>
  );
}
