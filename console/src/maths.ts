/** Formulas, loaded with the first one that is shown: temml makes MathML of TeX, which the browser draws. */
import temml from "temml";
import rules from "temml/dist/Temml-Local.css" with { type: "text" };

// Its font and its mask would be loaded from elsewhere than the policy of the page allows.
const sheet = new CSSStyleSheet();
sheet.replaceSync(`${rules.replace(/@font-face\s*\{[^}]*\}/g, "")} .tml-cancelto { mask-image: none; background: none }`);
document.adoptedStyleSheets.push(sheet);

/** Makes the formula of TeX in `into`, and leaves there what it had if it is none. */
export function drawFormula(into: HTMLElement, tex: string, displayMode: boolean): void {
  const made = document.createElement("span");
  try {
    temml.render(tex, made, { displayMode, throwOnError: true, trust: false, maxSize: [40, 40], maxExpand: 200 });
  } catch {
    return;
  }
  into.replaceChildren(...made.childNodes);
}
