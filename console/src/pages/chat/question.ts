/** How the service writes the calls that it asks about (segue/language/shown_call.py), and what a card does with it. */
import { parsed, type Plan } from "./live";
import type { Shown } from "./turns";

type Step = Plan["steps"][number];
/** Of the arguments that were asked about with another value that one as it was written; null if it was shortened. */
export type AskedBefore = Map<string, string | null>;

const CALL = /^`([^`\n]+)`\n\n```text\n(.*?)\n```$/gms;

/** A question without the calls and values of these steps, which their card shows. What stands before them stays. */
export function withoutCalls(text: string, steps: Step[]): string {
  const names = steps.flatMap(({ args }) => Object.keys(args ?? {}));
  const tools = steps.map(({ tool }) => `\`${tool}\``);
  const parts = text.split("\n\n");
  const from = parts.findIndex((part, at) => tools.includes(part) && isBlock(parts[at + 1] ?? ""));
  const isShown = (part: string): boolean => tools.includes(part) || isBlock(part) || names.some((name) => part.includes(`\`${name}: `));
  return from < 0 ? text : parts.filter((part, at) => at < from || !isShown(part)).join("\n\n");
}

/** What the question before the last one said otherwise, if the last one was asked for a change of the same call. */
export function askedBefore(turns: Shown[], plan: Plan, tool: string): AskedBefore | undefined {
  const asked = turns.filter(({ summary }) => summary?.plan_id === plan.id).flatMap(({ summary, blocks }) =>
    blocks.flatMap((block) => (block.kind === "text" ? callsOf(block.text, tool).map((args) => ({ args, isChange: summary?.acknowledgement?.verdict === "amend" })) : [])),
  );
  const [before, last] = asked.slice(-2);
  if (before === undefined || last?.isChange !== true) return undefined;
  const changed = [...last.args.keys()].filter((name) => before.args.get(name) !== last.args.get(name));
  return new Map(changed.map((name) => [name, before.args.get(name) ?? null]));
}

const isBlock = (part: string): boolean => part.startsWith("```text\n");

const callsOf = (text: string, tool: string): AskedBefore[] =>
  [...text.matchAll(CALL)].filter(([, name]) => name === tool).map(([, , block]) => argumentsOf(block ?? ""));

/** `name: value`, or lines behind `│` below the name, which `┆` carries on. */
function argumentsOf(block: string): AskedBefore {
  const found: AskedBefore = new Map();
  let name = "";
  for (const line of block.split("\n")) {
    const [, begun, short] = /^(\S.*?):(?: (.*))?$/.exec(line) ?? [];
    const [, mark, rest = ""] = /^ {2}([│┆‹]) ?(.*)$/.exec(line) ?? [];
    if (begun !== undefined) found.set((name = begun), short ?? "");
    else if (mark === "‹") found.set(name, null);
    else if (mark !== undefined && found.get(name) != null) found.set(name, found.get(name) + (mark === "│" && found.get(name) !== "" ? "\n" : "") + rest);
  }
  return found;
}

/** The value that was written so: a text as it is, anything else as JSON. */
export const valueOf = (written: string): unknown => parsed(written) ?? written;
