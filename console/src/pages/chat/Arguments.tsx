/** What a call that waits would be made with: each value to the letter, where it came from, and what it was before. */
import { useId, useState } from "preact/hooks";
import { Button } from "../../components/Button";
import { t } from "../../i18n";
import { pretty, visible } from "../../text";
import type { Plan } from "./live";
import { type AskedBefore, valueOf } from "./question";

type Step = Plan["steps"][number];
const LINES = 6;
const CHARACTERS = 400;
const AROUND = 2;

interface Given {
  step: Step;
  before?: AskedBefore | undefined;
  /** Whose words the user's are, where somebody else reads them. */
  asker?: string | undefined;
}

export function Arguments({ step, before, asker }: Given) {
  return (
    <dl class="arguments">
      {Object.entries(step.args ?? {}).map(([name, value]) => {
        const was = before?.get(name);
        return (
          <div key={name}>
            <dt>
              <code>{visible(name)}</code>
              {[...new Set(originsOf(step, name))].map((origin) => <Origin key={origin} origin={origin} asker={asker} />)}
              {was !== undefined && <span class="origin changed">{t("changed_since")}</span>}
            </dt>
            <dd><Value text={pretty(value)} was={was == null ? null : pretty(valueOf(was))} /></dd>
          </div>
        );
      })}
    </dl>
  );
}

/** That some of the values are not the user's, and which. */
export function NotYours({ steps, asker }: { steps: Step[]; asker?: string | undefined }) {
  const all = steps.flatMap((step) => Object.keys(step.args ?? {}).map((name) => ({ step, name })));
  const others = all.filter(({ step, name }) => originsOf(step, name).some((origin) => !isYours(origin)));
  if (others.length === 0) return null;
  const told = { n: others.length, total: all.length, names: [...new Set(others.map(({ name }) => visible(name)))].join(", ") };
  return <p class="note warn">{asker === undefined ? t("not_yours", told) : t("not_askers", { ...told, user: visible(asker) })}</p>;
}

function originsOf({ args_origin }: Step, name: string): string[] {
  const all = Object.entries((args_origin ?? {}) as Record<string, string>);
  const at = /^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name); // as JMESPath writes it
  return all.filter(([path]) => path === at || path.startsWith(`${at}.`) || path.startsWith(`${at}[`)).map(([, origin]) => origin);
}

const kindOf = (origin: string): string => origin.split(":")[0] ?? "";
const isYours = (origin: string): boolean => ["user", "message", "fact"].includes(kindOf(origin));

function Origin({ origin, asker }: { origin: string; asker: string | undefined }) {
  const is = kindOf(origin) === "result" ? "from_result" : "from_model";
  const user = visible(asker ?? "");
  if (!isYours(origin)) return <span class="origin other">{asker === undefined ? t(is) : t(`${is}_to_asker`, { user })}</span>;
  if (kindOf(origin) === "fact") return <span class="origin">{t("from_memory")}</span>;
  return <span class="origin">{asker === undefined ? t("from_you") : t("from_asker", { user })}</span>;
}

/** Of a long text the beginning, or what changed in it, until all of it is asked for. */
function Value({ text, was }: { text: string; was: string | null }) {
  const [whole, setWhole] = useState(false);
  const id = useId();
  const lines = text.split("\n");
  const isLong = lines.length > LINES + AROUND || text.length > CHARACTERS + 200;
  const beginning = `${lines.slice(0, LINES).join("\n").slice(0, CHARACTERS)} …`;
  return (
    <>
      <div id={id} dir="auto">{was !== null ? <Change was={was.split("\n")} is={lines} whole={whole || !isLong} /> : visible(isLong && !whole ? beginning : text)}</div>
      {isLong && (
        <Button class="small" icon="chevron" aria-expanded={whole} aria-controls={id} onClick={() => setWhole(!whole)}>
          {whole ? t("show_less") : t("show_all_of", { lines: lines.length, characters: text.length })}
        </Button>
      )}
    </>
  );
}

/** The lines that went and the lines that came, between those that both have. */
function Change({ was, is, whole }: { was: string[]; is: string[]; whole: boolean }) {
  const least = Math.min(was.length, is.length);
  let head = 0;
  while (head < least && was[head] === is[head]) head += 1;
  let tail = 0;
  while (tail < least - head && was.at(-1 - tail) === is.at(-1 - tail)) tail += 1;
  const shown = (lines: string[]): string => visible(whole || lines.length <= LINES ? lines.join("\n") : [...lines.slice(0, LINES), "…"].join("\n"));
  const [before, after] = [is.slice(0, head), is.slice(is.length - tail)];
  return (
    <>
      {before.length > 0 && `${visible((whole ? before : before.slice(-AROUND)).join("\n"))}\n`}
      {head + tail < was.length && <del>{shown(was.slice(head, was.length - tail))}</del>}
      {head + tail < was.length && head + tail < is.length && "\n"}
      {head + tail < is.length && <ins>{shown(is.slice(head, is.length - tail))}</ins>}
      {after.length > 0 && `\n${visible((whole ? after : after.slice(0, AROUND)).join("\n"))}`}
    </>
  );
}
