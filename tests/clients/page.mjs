// What docs/events.md has its reader paste speaks to a service: node page.mjs FOLDER URL. Every step is a line of JSON.
import { execFileSync } from "node:child_process";
import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
execFileSync(process.execPath, ["--check", `${folder}/page.js`]);
const segue = await import(pathToFileURL(`${folder}/segue.js`));
segue.connect(url);

const feed = segue.feed();
const told = [(await feed.next()).value.type];
const real = globalThis.fetch;

async function all(events) {
  const seen = [];
  for await (const event of events) seen.push(event);
  return seen;
}
const last = async (events) => (await all(events)).at(-1);
const texts = (events) => events.filter((each) => each.type === "TEXT_MESSAGE_CONTENT").map((each) => each.delta);

const { id } = await segue.newSession();
told.push((await feed.next()).value.type);

// The connection is cut after the first event that has words, and the stream goes on after it: not at once, for the
// service is away for a moment.
let cuts = 0;
globalThis.fetch = async (to, options) => {
  if (cuts === 1) return Response.json({ status: 503, detail: `away ${cuts++}` }, { status: 503 });
  const answer = await real(to, options);
  if (cuts++ || !answer.body) return answer;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let said = "";
  while (!said.includes("RUN_STARTED")) said += (await reader.read()).value;
  await reader.cancel();
  return new Response(said.slice(0, said.lastIndexOf("\n\n") + 2) + "id: 9", { status: 200 });
};
const first = await all(segue.say(id, "Hello there"));
globalThis.fetch = real;
const ids = first.filter((each) => each.type === "RUN_STARTED").length;

const asked = (await last(segue.say(id, "Delete itm-1"))).result;
const step = segue.waitingStep(asked.plan);
const changed = (await last(segue.change(id, asked.plan, "I mean the second one"))).result;
const approved = (await last(segue.approve(id, changed.plan, { item_id: "itm-3" }))).result;
const again = (await last(segue.say(id, "Delete itm-4"))).result;
const rejected = (await last(segue.reject(id, again.plan))).result;

// A turn that hangs is seen from a second place, also by a token, and stopped.
const watched = segue.say(id, "Tell me a long story");
const { runId } = (await watched.next()).value;
const { running_turn_id } = await segue.call("GET", `/sessions/${id}`);
const second = segue.attach(id, running_turn_id);
const attached = (await second.next()).value.runId === runId;
const byToken = (await (await fetch(await segue.eventSourceUrl(id, runId))).body.getReader().read()).value;
await segue.stop(id, runId);
const [stopped] = [await last(watched), await last(second)].map((event) => event.code);

const { items, next_cursor } = await segue.history(id);
const before = await segue.history(id, next_cursor);
const hello = [...items, ...before.items].find((message) => message.content === "Hello there");
const edited = (await last(segue.edit(id, hello.id, "Good morning"))).result;
const { items: found } = await segue.sessions("morning");
let refused;
await segue.call("GET", "/sessions/ses_0").catch((error) => (refused = error.problem.code));

console.log(JSON.stringify({
  told, cuts, ids, words: texts(first).join(""), end: first.at(-1).type, step: step.tool, named: segue.notFromUser(step),
  changed: segue.waitingStep(changed.plan).args, approved: approved.plan.status, rejected: rejected.plan.status, attached,
  byToken: new TextDecoder().decode(byToken).includes("RUN_STARTED"), stopped, newest: items[0].turn?.status ?? items[1].turn?.status,
  edited: edited.message.content, found: found.map((each) => each.id === id), refused,
}));
process.exit(0);
