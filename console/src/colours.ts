/** The colours of code, loaded with the first code that names its language. */
import languages from "highlight.js/lib/common";

const LONGEST = 20_000;

/** Code as HTML, its words in `<span class="hljs-…">`; null if the language is not known or there is too much of it. */
export const coloured = (code: string, language: string): string | null =>
  code.length <= LONGEST && languages.getLanguage(language) !== undefined ? languages.highlight(code, { language, ignoreIllegals: true }).value : null;
