/** What others wrote, made harmless to read: nothing in it is invisible or turns the text around. */

const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;
// Controls, bidirectional ones, zero-width ones, blank letters and tags; not the joiners and marks that scripts and emoji
// are written with.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2028\u2029\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e01ef}]/gu;

/** Drops colours of terminals, and writes out what cannot be seen as `‹U+202E›`, as Segue's own questions do. */
export function visible(text: string): string {
  return text
    .replace(/\r\n?/g, "\n")
    .replace(ANSI, "")
    .replace(HIDDEN, (found) => `‹U+${(found.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

/**
 * The same of prose, which keeps first-strong isolates: Segue puts them around what it names in a right-to-left sentence,
 * and the end of a paragraph closes them. Code shows them.
 */
export const visibleProse = (text: string): string =>
  text.split(/([\u2068\u2069]+)/).map((part, at) => (at % 2 === 1 ? part : visible(part))).join("");

/** A value as people read JSON. */
export const pretty = (value: unknown): string =>
  typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");

export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

/** On plain http there is no clipboard to write to, but what is selected can be copied. */
function copySelected(text: string): boolean {
  const before = document.activeElement;
  const box = document.createElement("textarea");
  box.value = text;
  (before?.closest("dialog") ?? document.body).append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  if (before instanceof HTMLElement) before.focus();
  return done;
}
