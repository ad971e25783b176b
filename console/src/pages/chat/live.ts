/** A turn while it runs, made of its events (docs/events.md). Plain data; nothing here draws or asks. */
import type { Schemas } from "../../api";
import type { TurnEvent } from "../../events";
import { parseJson } from "../../json";

export type Plan = Schemas["Plan"];
export type Message = Schemas["MessageOfTurn"];
export type CallStatus = Schemas["ToolCall"]["status"];

export interface TextPart { kind: "text"; id: string; text: string }
export interface ReasoningPart { kind: "reasoning"; id: string; text: string; done: boolean }
export interface CallPart {
  kind: "call";
  id: string;
  name: string;
  args: string;
  startedAt: number;
  durationMs: number | null;
  reference: Schemas["Reference"] | null;
  granted: boolean;
  progress: Progress | null;
}
/** How far a running call is, as its tool counts. */
export interface Progress { progress: number; total: number | null; message: string | null }
export type Part = TextPart | ReasoningPart | CallPart;

export interface Live {
  turnId: string | null;
  parts: Part[];
  plan: Plan | null;
  acknowledgement: Schemas["AcknowledgementReport"] | null;
  steered: string[];
  attempt: number;
  stopping: boolean;
  node: string | null;
  ended: boolean;
  error: { code: string; message: string } | null;
}

export const begun = (turnId: string | null): Live => ({
  turnId, parts: [], plan: null, acknowledgement: null, steered: [], attempt: 1, stopping: false, node: null, ended: false, error: null,
});

/** Changes `live` by one event. Events that it does not know change nothing. */
export function apply(live: Live, event: TurnEvent): void {
  const id = String(event["messageId"] ?? event["toolCallId"] ?? "");
  const delta = String(event["delta"] ?? "");
  switch (event.type) {
    case "RUN_STARTED":
      live.turnId = String(event["runId"]);
      break;
    case "STEP_STARTED":
      live.node = String(event["stepName"]);
      break;
    case "TEXT_MESSAGE_START":
      live.parts.push({ kind: "text", id, text: "" });
      break;
    case "TEXT_MESSAGE_CONTENT":
      part(live, "text", id).text += delta;
      break;
    case "REASONING_MESSAGE_START":
      part(live, "reasoning", id);
      break;
    case "REASONING_MESSAGE_CONTENT":
      part(live, "reasoning", id).text += delta;
      break;
    case "REASONING_END":
    case "REASONING_MESSAGE_END":
      for (const each of live.parts) if (each.kind === "reasoning") each.done = true;
      break;
    case "STATE_SNAPSHOT":
      live.plan = (event["snapshot"] as { plan?: Plan }).plan ?? null;
      break;
    case "STATE_DELTA":
      live.plan = (patched({ plan: live.plan }, event["delta"] as Patch[]) as { plan: Plan | null }).plan;
      break;
    case "CUSTOM":
      custom(live, String(event["name"]), event["value"]);
      break;
    case "RUN_FINISHED":
      live.ended = true;
      live.plan = (event["result"] as Schemas["ChatAnswer"]).plan ?? live.plan;
      break;
    case "RUN_ERROR":
      live.ended = true;
      live.error = { code: String(event["code"]), message: String(event["message"]) };
      break;
    default:
      if (event.type.startsWith("TOOL_CALL_")) toolCall(live, event, id, delta);
  }
}

function toolCall(live: Live, event: TurnEvent, id: string, delta: string): void {
  if (event.type === "TOOL_CALL_START") {
    const name = String(event["toolCallName"]);
    live.parts.push({ kind: "call", id, name, args: "", startedAt: Date.now(), durationMs: null, reference: null, granted: false, progress: null });
    return;
  }
  const call = live.parts.find((each): each is CallPart => each.kind === "call" && each.id === id);
  if (call === undefined) return;
  if (event.type === "TOOL_CALL_ARGS") call.args += delta;
  if (event.type === "TOOL_CALL_RESULT") {
    call.durationMs = Date.now() - call.startedAt;
    call.reference = parsed(String(event["content"])) as Schemas["Reference"] | null;
  }
}

function custom(live: Live, name: string, value: unknown): void {
  if (name === "acknowledgement") live.acknowledgement = value as Live["acknowledgement"];
  if (name === "steered") live.steered.push((value as { message: { id: string } }).message.id);
  if (name === "grant_used") {
    const id = (value as { tool_call_id: string }).tool_call_id;
    for (const each of live.parts) if (each.kind === "call" && each.id === id) each.granted = true;
  }
  if (name === "tool_progress") {
    const told = value as Progress & { tool_call_id: string };
    for (const each of live.parts) if (each.kind === "call" && each.id === told.tool_call_id) each.progress = told;
  }
  if (name === "attempt") {
    live.attempt = (value as { number: number }).number;
    live.parts = live.parts.filter((each) => each.kind === "call" && each.reference !== null);
  }
}

function part<K extends "text" | "reasoning">(live: Live, kind: K, id: string): Extract<Part, { kind: K }> {
  const known = live.parts.find((each) => each.kind === kind && each.id === id);
  if (known !== undefined) return known as Extract<Part, { kind: K }>;
  const made = (kind === "text" ? { kind, id, text: "" } : { kind, id, text: "", done: false }) as Extract<Part, { kind: K }>;
  live.parts.push(made);
  return made;
}

export function parsed(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return null;
  }
}

interface Patch { op: "add" | "replace" | "remove"; path: string; value?: unknown }

/** RFC 6902, as far as the service uses it: add, replace and remove. */
export function patched(document: unknown, patches: Patch[]): unknown {
  const root = { "": structuredClone(document) } as Record<string, unknown>;
  for (const { op, path, value } of patches) {
    const words = path.split("/").map((word) => word.replace(/~1/g, "/").replace(/~0/g, "~"));
    const last = words.pop() ?? "";
    const holder = words.reduce<unknown>((at, word) => (at as Record<string, unknown> | undefined)?.[word], words.length ? root : { "": root });
    const target = words.length ? holder : root;
    if (Array.isArray(target)) {
      const at = last === "-" ? target.length : Number(last);
      target.splice(at, op === "add" ? 0 : 1, ...(op === "remove" ? [] : [value]));
    } else if (target !== null && typeof target === "object") {
      if (op === "remove") delete (target as Record<string, unknown>)[last];
      else (target as Record<string, unknown>)[last] = value;
    }
  }
  return root[""];
}
