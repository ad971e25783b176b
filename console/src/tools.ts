/** What tools are called for people. Read when the first name is shown, and again when the service comes back. */
import { effect, signal } from "@preact/signals";
import { key, pages, returns, type Schemas } from "./api";
import { visible } from "./text";

const titles = signal(new Map<string, string>());
let wanted = false;

/** The tool's title; its name if it has none. */
export function titleOf(name: string): string {
  if (!wanted) read();
  return visible(titles.value.get(name) ?? name);
}

function read(): void {
  wanted = true;
  effect(() => {
    void [key.value, returns.value];
    void all().then((found) => (titles.value = found), () => {});
  });
}

async function all(): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for await (const page of pages<Schemas["ToolDescription"]>("/tools", { limit: 200 }))
    for (const { name, title } of page) if (title) found.set(name, title);
  return found;
}
