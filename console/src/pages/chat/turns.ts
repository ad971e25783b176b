/** The messages of a history as turns to draw: what was said, called and answered, in its order. */
import type { Schemas } from "../../api";
import { type CallStatus, type Live, type Message, parsed, type Progress } from "./live";

export interface Call {
  id: string;
  name: string;
  /** Null while they arrive. */
  args: unknown;
  status: CallStatus;
  durationMs: number | null;
  error: string | null;
  summary: string;
  size: number | null;
  granted: boolean;
  /** How its result begins. */
  preview: string;
  progress: Progress | null;
}
export type Block =
  | { kind: "user"; id: string; message: Message }
  | { kind: "text"; id: string; text: string; message: Message | null }
  | { kind: "reasoning"; id: string; text: string; done: boolean }
  | { kind: "call"; id: string; call: Call };

export interface Shown {
  id: string;
  blocks: Block[];
  summary: Schemas["TurnSummary"] | null;
  isLast: boolean;
  /** The `seq` of the last message before it, 0 if none is shown, and of its own first one, if there are some between. */
  gap: { after: number; before: number } | null;
}

/** What was said while another turn ran stands before its answer in the history: each turn is drawn whole. Of the one that runs only what the user said is taken from the history: its events bring the rest. */
export function turnsOf(messages: Message[], running: string | null, isEnd = true): Shown[] {
  const known = new Map<string, Shown>();
  let seq = 0;
  for (const message of messages) {
    const turn = known.get(message.turn_id) ?? { id: message.turn_id, blocks: [], summary: null, isLast: false, gap: seq + 1 < message.seq ? { after: seq, before: message.seq } : null };
    known.set(turn.id, turn);
    seq = message.seq;
    if (message.turn != null) turn.summary = message.turn;
    if (message.turn_id !== running || message.role === "user") add(turn, message);
  }
  const turns = [...known.values()];
  for (const turn of turns) complete(turn);
  const last = turns.at(-1);
  if (last) last.isLast = isEnd;
  return turns;
}

function add(turn: Shown, message: Message): void {
  const { id, content } = message;
  if (message.role === "user") turn.blocks.push({ kind: "user", id, message });
  else if (message.role === "tool" && typeof content !== "string") {
    const reference = content as unknown as Schemas["Reference"];
    const known = turn.blocks.find((block) => block.kind === "call" && block.id === reference.tool_call_id);
    if (known?.kind === "call") known.call = ofReference(reference);
    else turn.blocks.push({ kind: "call", id: reference.tool_call_id, call: ofReference(reference) });
  } else {
    const reasoning = message.metadata?.reasoning;
    if (typeof reasoning === "string") turn.blocks.push({ kind: "reasoning", id: `${id} reasoning`, text: reasoning, done: true });
    if (typeof content === "string" && content) turn.blocks.push({ kind: "text", id, text: content, message });
    for (const { id: callId, name, args } of message.tool_calls ?? [])
      turn.blocks.push({ kind: "call", id: callId, call: { ...UNTOLD, id: callId, name, args } });
  }
}

const UNTOLD = { status: "unknown" as CallStatus, durationMs: null, error: null, summary: "", size: null, granted: false, preview: "", progress: null };

const ofReference = (found: Schemas["Reference"]): Call => ({
  ...UNTOLD, id: found.tool_call_id, name: found.tool_name, args: found.args, status: found.status, summary: found.summary, size: found.size_bytes, preview: found.preview,
});

/** The ledger knows more of a call than its message does. */
function complete(turn: Shown): void {
  for (const told of turn.summary?.tool_calls ?? []) {
    const call: Call = {
      id: told.tool_call_id, name: told.tool_name, args: told.args, status: told.status, durationMs: told.duration_ms, error: told.error,
      summary: told.metadata.summary, size: told.metadata.size_bytes, granted: told.metadata.mandate != null || told.metadata.grant != null,
      preview: told.metadata.truncated_preview, progress: null,
    };
    const known = turn.blocks.find((block) => block.kind === "call" && block.id === call.id);
    if (known?.kind === "call") known.call = call;
  }
}

export const liveBlocks = (live: Live): Block[] =>
  live.parts.map((part): Block => {
    if (part.kind === "text") return { ...part, message: null };
    if (part.kind === "reasoning") return part;
    const { id, name, reference, durationMs, granted, progress } = part;
    const call = reference === null ? { ...UNTOLD, id, name, status: "running" as const, args: parsed(part.args), progress } : ofReference(reference);
    return { kind: "call", id, call: { ...call, durationMs, granted } };
  });
