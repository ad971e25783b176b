/**
 * Markdown of models, people and tools as elements. It is hostile: nothing in it runs, nothing is loaded. HTML is shown
 * as text, an image from elsewhere as a link to it, a link goes to http, https and mail only, and what is hidden is
 * written out. Formulas and the colours of code are loaded when they are met.
 */
import DOMPurify from "dompurify";
import { Marked, type RendererExtension, type Token, type TokenizerExtension, type Tokens } from "marked";
import { t } from "./i18n";
import { visible, visibleProse } from "./text";

const TAGS =
  "a blockquote br button code del em h1 h2 h3 h4 h5 h6 hr input li ol p pre span strong sup table tbody td th thead tr ul".split(" ");
const ATTRIBUTES = ["href", "target", "rel", "title", "start", "align", "type", "checked", "disabled", "dir", "class", "aria-label", "data-note", "data-source", "data-picture"];
const PICTURE = /^data:(image\/(?:png|jpeg|gif|webp));base64,([\w+/=]+)$/;
const LARGEST_PICTURE = 4_000_000;
const LONGEST_FORMULA = 4000;

/** What an answer rests on, as the API tells it. One without an address is what a tool gave. */
export interface Source {
  id: string;
  title: string;
  url?: string | null;
  tool_call_id?: string | null;
}

/** What the text that is drawn has notes and sources for, and the pictures that stand in it. */
let notes: string[] = [];
let sources: Source[] = [];
let pictures: string[] = [];
let hasFormulas = false;

const escaped = (text: string): string =>
  text.replace(/[&<>"']/g, (found) => `&#${found.charCodeAt(0)};`);

const link = (address: string, inner: string, more = ""): string =>
  /^(https?:\/\/|mailto:)/i.test(address)
    ? `<a href="${escaped(address)}" target="_blank" rel="noopener noreferrer nofollow" title="${escaped(address)}"${more}>${inner}</a>`
    : `${inner} <code>${escaped(address)}</code>`;

const marked = new Marked({ gfm: true, breaks: true, async: false });
marked.use({
  renderer: {
    html: ({ text, block }: Tokens.HTML | Tokens.Tag) => (block ? `<p>${escaped(text)}</p>` : escaped(text)),
    image({ href, text }: Tokens.Image) {
      if (!PICTURE.test(href) || href.length > LARGEST_PICTURE) return link(href, escaped(text || href));
      return `<span data-picture="${pictures.push(href) - 1}" title="${escaped(text)}"></span>`;
    },
    link({ href, tokens }: Tokens.Link) {
      return link(href, this.parser.parseInline(tokens));
    },
    code: ({ text, lang }: Tokens.Code) =>
      `<pre dir="ltr" class="code"><code title="${escaped((lang ?? "").slice(0, 40))}">${escaped(visible(text))}\n</code></pre>`,
    codespan: ({ text }: Tokens.Codespan) => `<code>${escaped(visible(text))}</code>`,
    checkbox: ({ checked }: Tokens.Checkbox) =>
      `<input type="checkbox" disabled${checked ? " checked" : ""} aria-label="${escaped(t(checked ? "step_complete" : "step_pending"))}">`,
  },
});

type Added = TokenizerExtension & RendererExtension;
const formula = ({ raw, shown }: Tokens.Generic): string => `<span class="${shown}">${escaped(visible(raw.trim()))}</span>`;

/** `$$…$$` and `\[…\]` at the beginning of a text. */
function displayed(source: string): string | undefined {
  const closing = source.startsWith("$$") ? "$$" : "\\]";
  const end = /^(?:\$\$|\\\[)/.test(source) ? source.indexOf(closing, 2) : -1;
  return end < 0 || end > LONGEST_FORMULA || source.slice(2, end).trim() === "" ? undefined : source.slice(0, end + 2);
}

/** `\(…\)`, and `$…$` where it is no money and no variable of a shell. */
const inLine = (source: string): string | undefined =>
  (/^\\\([^\n]{1,500}?\\\)/.exec(source) ?? /^\$(?![\s$])(?:\\.|[^\\$\n]){1,500}(?<!\s)\$(?!\w)/.exec(source))?.[0];

/** Where the first of them begins in the paragraph; nowhere in a text that has none. */
const first = (mark: RegExp) => (source: string): number | undefined => {
  const end = source.indexOf("\n\n");
  return mark.exec(end < 0 ? source : source.slice(0, end))?.index;
};

const added: Added[] = [
  {
    name: "display", level: "block", renderer: (token) => `<p>${formula(token)}</p>`,
    start: (source) => (hasFormulas ? first(/\n {0,3}(?:\$\$|\\\[)/)(source) : undefined),
    tokenizer(source) {
      const indent = /^ {0,3}/.exec(source)?.[0] ?? "";
      const found = displayed(source.slice(indent.length));
      const end = found && /^[ \t]*(?:\n+|$)/.exec(source.slice(indent.length + found.length))?.[0];
      return found === undefined || end === undefined ? undefined : { type: "display", raw: indent + found + end, shown: "display" };
    },
  },
  {
    name: "formula", level: "inline", renderer: formula,
    start: (source) => (hasFormulas ? first(/\$|\\[([]/)(source) : undefined),
    tokenizer(source) {
      const display = displayed(source);
      const raw = display ?? inLine(source);
      return raw === undefined ? undefined : { type: "formula", raw, shown: display === undefined ? "formula" : "display" };
    },
  },
  {
    name: "note", level: "block", start: (source) => (notes.length > 0 ? first(/\n\[\^/)(source) : undefined),
    tokenizer(source) {
      const found = /^\[\^([^\]\s]{1,40})\]:[ \t]*([^\n]*(?:\n {2,}[^\n]+)*)(?:\n+|$)/.exec(source);
      if (found === null) return undefined;
      return { type: "note", raw: found[0], label: found[1], tokens: this.lexer.inlineTokens((found[2] ?? "").replace(/\n +/g, "\n")) };
    },
    renderer({ label, tokens }) {
      return `<p class="footnote">${toNote(String(label), "back_to_text")} ${this.parser.parseInline(tokens ?? [])}</p>`;
    },
  },
  {
    name: "reference", level: "inline", start: (source) => (notes.length + sources.length > 0 ? first(/\[/)(source) : undefined),
    tokenizer(source) {
      const [raw, note, name = ""] = /^\[(?:\^([^\]\s]{1,40})|([\w-]{1,60}))\](?!\()/.exec(source) ?? [];
      const isKnown = note === undefined ? sourceOf(name) >= 0 : notes.includes(note);
      return raw !== undefined && isKnown ? { type: "reference", raw, note, name } : undefined;
    },
    renderer: ({ note, name }) => `<sup>${note === undefined ? toSource(sourceOf(String(name))) : toNote(String(note), "note_n")}</sup>`,
  },
];
marked.use({ extensions: added });

function toNote(label: string, name: "note_n" | "back_to_text"): string {
  const number = notes.indexOf(label) + 1;
  return `<button type="button" data-note="${number}" aria-label="${escaped(t(name, { n: number }))}">${number}</button>`;
}

/** The place of the source that `[…]` names by its id or its number; -1 if it names none. */
function sourceOf(name: string): number {
  const at = sources.findIndex(({ id }) => id === name);
  return at >= 0 || !/^\d{1,3}$/.test(name) || sources[Number(name) - 1] === undefined ? at : Number(name) - 1;
}

function toSource(at: number): string {
  const { title, url } = sources[at] as Source;
  const named = ` class="cite" aria-label="${escaped(`${at + 1}: ${visible(title)}`)}"`;
  return url != null && url !== "" ? link(url, String(at + 1), named) : `<button type="button" data-source="${at}"${named}>${at + 1}</button>`;
}

type Decorate = (code: HTMLElement) => void;

/** A text whose first letter runs from the right. What holds paragraphs needs it said: `auto` does not look into them. */
const RIGHT_TO_LEFT = /^\P{L}*(?=\p{L})[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u;

function elements(block: Token, decorate: Decorate): HTMLElement[] {
  pictures = [];
  const html = marked.parser([block]);
  const clean = DOMPurify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const element of clean.querySelectorAll("p, h1, h2, h3, h4, td, th")) element.setAttribute("dir", "auto");
  for (const element of clean.querySelectorAll("ul, ol, table, blockquote")) element.setAttribute("dir", RIGHT_TO_LEFT.test(element.textContent) ? "rtl" : "ltr");
  for (const box of clean.querySelectorAll("input")) box.setAttribute("disabled", "");
  for (const table of clean.querySelectorAll("table")) Object.assign(wrap(table, "scrolls"), { tabIndex: 0, dir: table.dir });
  for (const pre of clean.querySelectorAll("pre")) finish(wrap(pre, "code-block"), decorate);
  for (const place of clean.querySelectorAll<HTMLElement>("[data-picture]")) place.replaceWith(picture(pictures[Number(place.dataset["picture"])] ?? "", place.title));
  const formulas = [...clean.querySelectorAll<HTMLElement>(".formula, .display")];
  if (formulas.length > 0) void import("./maths").then(({ drawFormula }) => formulas.forEach((each) => drawFormula(each, tex(each.textContent), each.className === "display")), () => {});
  return [...clean.children] as HTMLElement[];
}

const tex = (written: string): string => (written.startsWith("$") && !written.startsWith("$$") ? written.slice(1, -1) : written.slice(2, -2));

function wrap(element: Element, name: string): HTMLElement {
  const around = document.createElement("div");
  around.className = name;
  element.replaceWith(around);
  around.append(element);
  return around;
}

function finish(block: HTMLElement, decorate: Decorate): void {
  const code = block.querySelector("code");
  const language = code?.title.trim().split(/\s/)[0] ?? "";
  code?.removeAttribute("title");
  block.dataset["language"] = language;
  decorate(block);
  if (code === null || language === "") return;
  void import("./colours").then(({ coloured }) => {
    const html = coloured(code.textContent, language.toLowerCase());
    if (html !== null) code.replaceChildren(DOMPurify.sanitize(html, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }));
  }, () => {});
}

/** A picture that stands in the text itself; the address that it is shown by does not outlast it. */
function picture(address: string, title: string): HTMLElement {
  const [, type = "", content = ""] = PICTURE.exec(address) ?? [];
  const shown = document.createElement("img");
  shown.alt = title;
  try {
    const made = URL.createObjectURL(new Blob([Uint8Array.from(atob(content), (character) => character.charCodeAt(0))], { type }));
    shown.onload = shown.onerror = () => URL.revokeObjectURL(made);
    shown.src = made;
  } catch {
    /* it is no base64: the title is shown */
  }
  return shown;
}

interface Drawn {
  raw: string;
  nodes: Element[];
}
const drawn = new WeakMap<Element, Drawn[]>();

/** Draws the text into `into`. Of a text that grows only the blocks that changed are made anew. */
export function drawMarkdown(into: Element, text: string, cites: Source[], decorate: Decorate): void {
  sources = cites;
  hasFormulas = /\$|\\[([]/.test(text);
  notes = [...text.matchAll(/^\[\^([^\]\s]{1,40})\]:/gm)].map(([, label]) => label ?? "");
  const blocks = marked.lexer(visibleProse(text)).filter((block) => block.type !== "space" && block.type !== "def");
  const before = drawn.get(into) ?? [];
  const after: Drawn[] = [];
  let changed = before.length > blocks.length;
  for (const [index, block] of blocks.entries()) {
    const old = before[index];
    const raw = block.raw.includes("[") ? `${block.raw}${notes.length} ${sources.length}` : block.raw;
    changed ||= old?.raw !== raw;
    after.push(!changed && old !== undefined ? old : { raw, nodes: elements(block, decorate) });
  }
  const kept = new Set(after.flatMap(({ nodes }) => nodes));
  for (const child of [...into.children]) if (!kept.has(child)) child.remove();
  for (const { nodes } of after) for (const node of nodes) if (node.parentElement !== into) into.append(node);
  drawn.set(into, after);
}
