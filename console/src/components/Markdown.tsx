import { useLayoutEffect, useRef } from "preact/hooks";
import { t } from "../i18n";
import { drawMarkdown } from "../markdown";
import { copy } from "../text";

export function Markdown({ text }: { text: string }) {
  const into = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (into.current) drawMarkdown(into.current, text, withCopyButton);
  }, [text]);
  return <div ref={into} class="markdown" dir="auto" />;
}

function withCopyButton(pre: HTMLElement): void {
  const code = pre.querySelector("code");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button quiet small copy-code";
  button.textContent = t("copy");
  button.addEventListener("click", () => {
    void copy(code?.textContent?.replace(/\n$/, "") ?? "").then((done) => {
      button.textContent = done ? t("copied") : t("copy");
      setTimeout(() => (button.textContent = t("copy")), 1500);
    });
  });
  const language = code?.getAttribute("title") ?? "";
  code?.removeAttribute("title");
  if (language) pre.dataset["language"] = language;
  pre.tabIndex = 0;
  pre.append(button);
}
