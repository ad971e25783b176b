/**
 * A small chart over time, drawn here: bars on one another, or lines. Hovering and the arrow keys tell the values; a click
 * or Enter leads to what they are of.
 */
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { t } from "../../i18n";
import { go } from "../../router";

export interface Series<T> {
  name: string;
  /** Names its colour in ops.css. */
  colour: "accent" | "soft" | "bad" | "muted";
  /** Null where there is nothing to draw. */
  of: (point: T) => number | null;
}

interface Given<T> {
  label: string;
  points: T[];
  /** When it is of, to read. */
  when: (point: T) => string;
  hrefOf?: (point: T) => string;
  series: Series<T>[];
  kind: "bars" | "lines";
  /** A value with its unit, as at the axis. */
  say: (value: number) => string;
}

const [WIDTH, HEIGHT] = [600, 100];

/** The next number that is easy to halve. */
const above = (value: number): number => {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 3, 4, 6, 8, 10].find((step) => step * power >= value * 0.999) ?? 10);
};

export function Chart<T>({ label, points, when: named, hrefOf, series, kind, say }: Given<T>) {
  const [at, setAt] = useState<number | null>(null);
  const values = points.map((point) => series.map(({ of }) => of(point)));
  const height = (row: (number | null)[]): number => kind === "bars" ? row.reduce<number>((sum, each) => sum + (each ?? 0), 0) : Math.max(0, ...row.map((each) => each ?? 0));
  const most = Math.max(0, ...values.map(height));
  const top = most > 0 ? above(most) : 1;
  const told = (index: number): string =>
    series.map(({ name }, which) => [name, values[index]?.[which]] as const).map(([name, value]) => `${name}: ${value == null ? t("ops_none") : say(value)}`).join(" · ");
  const when = (index: number): string => (points[index] ? named(points[index]) : "");
  const last = points.length - 1;
  const under = (event: MouseEvent & { currentTarget: Element }): number => {
    const box = event.currentTarget.getBoundingClientRect();
    return Math.max(0, Math.min(last, Math.floor(((event.clientX - box.left) / box.width) * points.length)));
  };
  const open = (index: number | null): void => {
    const point = index === null ? undefined : points[index];
    if (point !== undefined && hrefOf !== undefined) go(hrefOf(point));
  };
  const key = (event: KeyboardEvent): void => {
    if (event.key === "Enter") return open(at);
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(last, (at ?? last + (step < 0 ? 1 : 0)) + step)));
  };
  const summary = t("ops_chart_summary", { label, from: when(0), to: when(last), most: say(most), now: told(last) }) + (hrefOf ? ` ${t("ops_chart_opens")}` : "");
  return (
    <figure class="chart">
      <figcaption><b>{label}</b><span class="legend">{series.map(({ name, colour }) => <span key={name} class={`key ${colour}`}>{name}</span>)}</span></figcaption>
      <div class="plot" dir="ltr">
        <span class="axis top" dir="auto">{say(top)}</span><span class="axis zero" dir="auto">{say(0)}</span>
        <svg role="img" class={hrefOf ? "leads" : ""} aria-label={summary} tabIndex={0} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none"
          onPointerMove={(event) => setAt(under(event))} onClick={(event) => open(under(event))} onPointerLeave={() => setAt(null)} onKeyDown={key} onBlur={() => setAt(null)}>
          <path class="grid" d={`M0 .5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}`} />
          {at !== null && <rect class="here" x={(at * WIDTH) / points.length} y={0} width={WIDTH / points.length} height={HEIGHT} />}
          {kind === "bars" ? <Bars values={values} series={series} top={top} /> : <Lines values={values} series={series} top={top} />}
        </svg>
        <span class="axis from">{when(0)}</span><span class="axis to">{when(last)}</span>
      </div>
      <output class="told nums" aria-live="polite">{at === null ? "" : `${when(at)} · ${told(at)}`}</output>
    </figure>
  );
}

interface Drawn<T> {
  values: (number | null)[][];
  series: Series<T>[];
  top: number;
}

function Bars<T>({ values, series, top }: Drawn<T>) {
  const width = WIDTH / values.length;
  return (
    <>
      {values.map((row, index) => {
        let base = HEIGHT;
        return row.map((value, which) => {
          const tall = ((value ?? 0) / top) * HEIGHT;
          base -= tall;
          return tall > 0 && <rect key={`${index}.${which}`} class={series[which]?.colour} x={index * width + 0.5} y={base} width={width - 1} height={tall} />;
        });
      })}
    </>
  );
}

/** A point without neighbours is a line of no length, which round ends make a dot: a thick one, to be seen. */
function Lines<T>({ values, series, top }: Drawn<T>) {
  const x = (index: number): number => ((index + 0.5) * WIDTH) / values.length;
  return (
    <>
      {series.map(({ name, colour }, which) => {
        const at = (index: number): number | null => values[index]?.[which] ?? null;
        let [path, dots] = ["", ""];
        values.forEach((_, index) => {
          const value = at(index);
          if (value === null) return;
          const [place, begins] = [`${x(index)} ${HEIGHT - (value / top) * HEIGHT}`, at(index - 1) === null];
          if (begins && at(index + 1) === null) dots += `M${place}h.01`;
          else path += `${begins ? "M" : "L"}${place}`;
        });
        return <Fragment key={name}><path class={`line ${colour}`} d={path} /><path class={`line dot ${colour}`} d={dots} /></Fragment>;
      })}
    </>
  );
}
