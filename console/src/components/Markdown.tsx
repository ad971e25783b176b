import { useLayoutEffect, useRef } from "preact/hooks";
import { t } from "../i18n";
import { drawMarkdown, type Source } from "../markdown";
import { copy, visible } from "../text";

const NONE: Source[] = [];

interface Given {
  text: string;
  /** What `[1]` in the text leads to. */
  sources?: Source[] | undefined;
  /** Shows a source that has no address of its own. */
  onSource?: (source: Source) => void;
}

export function Markdown({ text, sources = NONE, onSource }: Given) {
  const into = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (into.current) drawMarkdown(into.current, text, sources, withHead);
  }, [text, sources]);
  const onClick = ({ target }: MouseEvent): void => {
    const pressed = target instanceof Element ? target.closest<HTMLElement>("[data-note], [data-source]") : null;
    const source = sources[Number(pressed?.dataset["source"])];
    if (source !== undefined) onSource?.(source);
    else if (pressed?.dataset["note"] !== undefined) toOtherEnd(into.current, pressed);
  };
  return <div ref={into} class="markdown" dir="auto" onClick={onClick} />;
}

/** From a mark in the text to its note, and from the note to the first mark. */
function toOtherEnd(within: HTMLElement | null, from: HTMLElement): void {
  const side = from.closest(".footnote") === null ? ".footnote" : "sup";
  const other = within?.querySelector<HTMLElement>(`${side} [data-note="${from.dataset["note"]}"]`);
  other?.scrollIntoView({ block: "nearest" });
  other?.focus();
}

/** A line above the code: its language, and a button that copies it. */
function withHead(block: HTMLElement): void {
  const code = block.querySelector("code");
  const head = document.createElement("div");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button quiet small";
  button.textContent = t("copy");
  button.addEventListener("click", () => {
    void copy(code?.textContent.replace(/\n$/, "") ?? "").then((done) => {
      button.textContent = done ? t("copied") : t("copy");
      setTimeout(() => (button.textContent = t("copy")), 1500);
    });
  });
  head.append(visible(block.dataset["language"] ?? ""), button);
  head.dir = "ltr";
  block.prepend(head);
  const pre = block.querySelector("pre");
  if (pre !== null) pre.tabIndex = 0;
}
