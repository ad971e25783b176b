// Speaks to a Segue service; knows nothing of the page. docs/events.md explains it.

let base = "http://127.0.0.1:8000";
let key = {};

export function connect(url, apiKey) {
  base = url;
  key = apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
}

async function send(method, path, { body, ...more } = {}) {
  const headers = { "Content-Type": "application/json", ...key, ...more };
  const answer = await fetch(base + path, { method, headers, body: body && JSON.stringify(body) });
  if (answer.ok) return answer;
  const problem = await answer.json();
  throw Object.assign(new Error(problem.detail ?? problem.title), { problem });
}

export async function call(method, path, body) {
  const answer = await send(method, path, { body });
  return answer.status === 204 ? null : answer.json();
}

export const sessions = (query = "") =>
  call("GET", "/sessions" + (query && `?query=${encodeURIComponent(query)}`));

export const newSession = () => call("POST", "/sessions", {});

export const history = (session, cursor) =>
  call("GET", `/sessions/${session}/messages?order=desc&limit=20&include=turn` +
    (cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""));

async function* frames(method, path, more) {
  const answer = await send(method, path, { Accept: "text/event-stream", ...more });
  if (answer.status === 204) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const whole = (rest + value).split("\n\n");
      rest = whole.pop();
      for (const frame of whole) {
        const lines = Object.fromEntries(frame.split("\n").map((line) => line.split(/: (.*)/s)));
        if (lines.data) yield { id: lines.id, event: JSON.parse(lines.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const pause = () => new Promise((resolve) => setTimeout(resolve, 1000));
const isOver = (error) => error.problem && error.problem.status !== 503; // a 503 says: ask again
const isLast = (event) => event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";

async function* turn(begin, events = null) {
  let last = null;
  for (;;) {
    try {
      const stream = events ? frames("GET", events, last && { "Last-Event-ID": last }) : begin();
      for await (const { id, event } of stream) {
        last = id;
        if (event.type === "RUN_STARTED") events = `/sessions/${event.threadId}/turns/${event.runId}/events`;
        yield event;
        if (isLast(event)) return;
      }
    } catch (error) {
      if (isOver(error)) throw error;
    }
    await pause();
  }
}

function begun(path, body) {
  const more = { body, "Idempotency-Key": crypto.randomUUID() };
  return turn(() => frames("POST", path, more));
}

export const say = (session, message) => begun(`/sessions/${session}/chat`, { message });

export const attach = (session, id) => turn(null, `/sessions/${session}/turns/${id}/events`);

export const stop = (session, id) => call("POST", `/sessions/${session}/turns/${id}/cancel`);

export const edit = (session, id, message) => begun(`/sessions/${session}/messages/${id}/edit`, { message });

const decision = (session, plan, more) =>
  begun(`/sessions/${session}/plan/decision`, { version: plan.version, ...more });

export const approve = (session, plan, args) =>
  decision(session, plan, { decision: "confirm", ...(args && { args }) });
export const change = (session, plan, message) => decision(session, plan, { decision: "amend", message });
export const reject = (session, plan) => decision(session, plan, { decision: "reject" });

export const waitingStep = (plan) => plan?.steps.find((step) => step.status === "waiting");
export const notFromUser = (step) =>
  Object.keys(step.args_origin ?? {}).filter((path) => !/^(user$|message:|fact:)/.test(step.args_origin[path]));

export async function eventSourceUrl(session, id) {
  const { token } = await call("POST", `/sessions/${session}/turns/${id}/stream-token`);
  return `${base}/sessions/${session}/turns/${id}/events?token=${encodeURIComponent(token)}`;
}

export async function* feed() {
  let last = null;
  for (;;) {
    try {
      for await (const { id, event } of frames("GET", "/events", last && { "Last-Event-ID": last })) {
        last = id;
        yield event;
      }
    } catch (error) {
      if (isOver(error)) throw error;
    }
    await pause();
  }
}
