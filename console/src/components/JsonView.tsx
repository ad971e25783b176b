import { useState } from "preact/hooks";
import { t } from "../i18n";
import { isAtom } from "../json";
import { pretty, visible } from "../text";

const MANY = 100;
const LONG = 2000;

/** JSON to read: what is nested deep or long is folded. Nothing in it is markup. */
export function JsonView({ value, depth = 2 }: { value: unknown; depth?: number }) {
  return <div class="json" dir="ltr"><Node value={value} depth={depth} /></div>;
}

function Node({ value, depth }: { value: unknown; depth: number }) {
  if (typeof value === "string") return <Long text={value} />;
  if (isAtom(value)) return <span class="atom">{pretty(value)}</span>;
  const entries = Object.entries(value as object);
  const [opening, closing] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) return <span>{opening + closing}</span>;
  return <Nested {...{ entries, opening, closing, depth }} named={!Array.isArray(value)} />;
}

interface Given {
  entries: [string, unknown][];
  opening: string;
  closing: string;
  named: boolean;
  depth: number;
}

function Nested({ entries, opening, closing, named, depth }: Given) {
  const [open, setOpen] = useState(depth > 0);
  const [shown, setShown] = useState(MANY);
  const count = <span class="muted"> {entries.length} </span>;
  return (
    <>
      <button type="button" class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>{opening}{!open && <>{count}{closing}</>}</button>
      {open && (
        <>
          <ul>
            {entries.slice(0, shown).map(([name, each]) => (
              <li key={name}>{named && <span class="name">{visible(name)}: </span>}<Node value={each} depth={depth - 1} /></li>
            ))}
            {entries.length > shown && (
              <li><button type="button" class="fold" onClick={() => setShown(shown + 10 * MANY)}>{t("more_items", { n: entries.length - shown })}</button></li>
            )}
          </ul>
          {closing}
        </>
      )}
    </>
  );
}

function Long({ text }: { text: string }) {
  const [whole, setWhole] = useState(text.length <= LONG);
  return (
    <span class="string" dir="auto">
      {visible(whole ? text : text.slice(0, LONG))}
      {!whole && <button type="button" class="fold" onClick={() => setWhole(true)}>{t("more_characters", { n: text.length - LONG })}</button>}
    </span>
  );
}
