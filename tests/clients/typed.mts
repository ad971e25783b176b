// The whole of a conversation, typed: the shapes are those that openapi-typescript makes of docs/openapi.json.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };
declare const console: { log(said: string): void };

type Answer = components["schemas"]["ChatAnswer"];
const segue = createClient<paths>({ baseUrl: process.argv[2] });

// What is a string or a list in the types is an event stream or a file, which nothing here asks for.
type Asked<T> = Exclude<T, string | unknown[]>;

function read<T>({ data, error }: { data?: T; error?: components["schemas"]["Problem"] }): Asked<T> {
  if (data === undefined) throw new Error(`${error?.code}: ${error?.detail}`);
  return data as Asked<T>;
}

function answered(turn: Answer | components["schemas"]["AcceptedTurn"]): Answer {
  if ("message" in turn) return turn;
  throw new Error("it did not wait");
}

const { id } = read(await segue.POST("/sessions", { body: { title: "Typed" } }));
const path = { session_id: id };
const chat = async (message: string): Promise<Answer> =>
  answered(read(await segue.POST("/sessions/{session_id}/chat", { params: { path }, body: { message } })));

const { tool_calls, plan } = await chat("Delete itm-1");
const [looked] = tool_calls;
const kept = read(
  await segue.GET("/sessions/{session_id}/tool-results/{tool_call_id}", {
    params: { path: { ...path, tool_call_id: looked.tool_call_id } },
  }),
);
const waiting = plan?.steps.find((step) => step.status === "waiting");
if (!plan || !waiting) throw new Error("no step waits");
const decided = answered(
  read(
    await segue.POST("/sessions/{session_id}/plan/decision", {
      params: { path },
      body: { decision: "confirm", version: plan.version },
    }),
  ),
);
const page = read(
  await segue.GET("/sessions/{session_id}/messages", {
    params: { path, query: { order: "desc", limit: 2, include: "turn" } },
  }),
);
const missing = await segue.GET("/sessions/{session_id}", { params: { path: { session_id: "ses_0" } } });
const said = {
  result: kept.result,
  asked: waiting.tool,
  ended: decided.plan?.status,
  last: page.items.map((message) => message.role),
  problem: missing.error?.code,
};
console.log(JSON.stringify(said));
