/**
 * Markdown of models, people and tools as elements. It is hostile: nothing in it runs, nothing is loaded. HTML is shown
 * as text, an image as a link to it, a link goes to http, https and mail only, and what is hidden is written out.
 */
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import { visible, visibleProse } from "./text";

const TAGS =
  "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr input li ol p pre span strong table tbody td th thead tr ul".split(" ");
const ATTRIBUTES = ["href", "target", "rel", "title", "start", "align", "type", "checked", "disabled", "dir", "class"];

const escaped = (text: string): string =>
  text.replace(/[&<>"']/g, (found) => `&#${found.charCodeAt(0)};`);

const link = (address: string, inner: string): string =>
  /^(https?:\/\/|mailto:)/i.test(address)
    ? `<a href="${escaped(address)}" target="_blank" rel="noopener noreferrer nofollow" title="${escaped(address)}">${inner}</a>`
    : `${inner} <code>${escaped(address)}</code>`;

const marked = new Marked({ gfm: true, breaks: true, async: false });
marked.use({
  renderer: {
    html: ({ text, block }: Tokens.HTML | Tokens.Tag) => (block ? `<p>${escaped(text)}</p>` : escaped(text)),
    image: ({ href, text }: Tokens.Image) => link(href, escaped(text || href)),
    link({ href, tokens }: Tokens.Link) {
      return link(href, this.parser.parseInline(tokens));
    },
    code: ({ text, lang }: Tokens.Code) =>
      `<pre dir="ltr" class="code"><code title="${escaped((lang ?? "").slice(0, 40))}">${escaped(visible(text))}\n</code></pre>`,
    codespan: ({ text }: Tokens.Codespan) => `<code>${escaped(visible(text))}</code>`,
  },
});

function elements(block: Token): HTMLElement[] {
  const html = marked.parser([block]);
  const clean = DOMPurify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const element of clean.querySelectorAll("p, li, h1, h2, h3, h4, td, th, blockquote")) element.setAttribute("dir", "auto");
  for (const box of clean.querySelectorAll("input")) box.setAttribute("disabled", "");
  for (const table of clean.querySelectorAll("table")) wrap(table, "scrolls");
  return [...clean.children] as HTMLElement[];
}

function wrap(element: Element, name: string): void {
  const around = document.createElement("div");
  around.className = name;
  around.tabIndex = 0;
  element.replaceWith(around);
  around.append(element);
}

interface Drawn {
  raw: string;
  nodes: Element[];
}
const drawn = new WeakMap<Element, Drawn[]>();

/** Draws the text into `into`. Of a text that grows only the blocks that changed are made anew. */
export function drawMarkdown(into: Element, text: string, decorate: (code: HTMLElement) => void): void {
  const blocks = marked.lexer(visibleProse(text)).filter((block) => block.type !== "space" && block.type !== "def");
  const before = drawn.get(into) ?? [];
  const after: Drawn[] = [];
  let changed = before.length > blocks.length;
  for (const [index, block] of blocks.entries()) {
    const old = before[index];
    changed ||= old?.raw !== block.raw;
    if (!changed && old !== undefined) {
      after.push(old);
      continue;
    }
    const nodes = elements(block);
    for (const node of nodes) if (node.matches("pre")) decorate(node);
    for (const code of nodes.flatMap((node) => [...node.querySelectorAll<HTMLElement>("pre")])) decorate(code);
    after.push({ raw: block.raw, nodes });
  }
  const kept = new Set(after.flatMap(({ nodes }) => nodes));
  for (const child of [...into.children]) if (!kept.has(child)) child.remove();
  for (const { nodes } of after) for (const node of nodes) if (node.parentElement !== into) into.append(node);
  drawn.set(into, after);
}
