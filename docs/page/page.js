import * as segue from "./segue.js";

const at = (id) => document.getElementById(id);
let session = null, running = null, plan = null, opened = 0;

function line(role, text, before = null) {
  const item = document.createElement("li");
  item.className = role;
  item.textContent = text;
  at("messages").insertBefore(item, before);
  return item;
}

function showPlan(shown) {
  const step = segue.waitingStep(shown);
  plan = shown;
  at("plan").hidden = !step;
  if (!step) return;
  const named = segue.notFromUser(step).map((path) => `not from you: ${path}`);
  at("call").textContent = [step.description, step.tool, JSON.stringify(step.args, null, 1), ...named].join("\n");
}

async function show(events) {
  const lines = {}, before = opened;
  let refused = null;
  at("stop").hidden = false;
  try {
    for await (const event of events) {
      if (opened !== before) return; // what is open now has read its own
      if (event.type === "RUN_STARTED") running = event.runId;
      if (event.type === "TEXT_MESSAGE_START") lines[event.messageId] ??= line("assistant", "");
      if (event.type === "TEXT_MESSAGE_CONTENT") lines[event.messageId].textContent += event.delta;
      if (event.type === "TOOL_CALL_START") lines[event.toolCallId] = line("tool", `${event.toolCallName} …`);
      if (event.type === "TOOL_CALL_RESULT") lines[event.toolCallId].textContent += " done";
      if (event.type === "RUN_FINISHED") showPlan(event.result.plan);
      if (event.type === "RUN_ERROR" && event.code !== "turn_cancelled") line("error", event.message);
    }
  } catch (error) {
    refused = error.message;
  }
  if (opened !== before) return;
  await open(session);
  if (refused) line("error", refused);
}

async function open(id) {
  const now = (opened += 1);
  session = id;
  running = null;
  at("stop").hidden = true;
  showPlan(null);
  const { items } = await segue.history(id);
  const { pending_plan, running_turn_id } = await segue.call("GET", `/sessions/${id}`);
  if (opened !== now) return;
  at("messages").replaceChildren();
  for (const message of items) drawMessage(message);
  showPlan(pending_plan);
  if (running_turn_id) await show(segue.attach(id, running_turn_id));
}

function drawMessage({ id, role, content, turn }) {
  if (role === "tool" || !content) return;
  const item = line(role, content, at("messages").firstChild);
  if (turn?.error) line("error", turn.error.detail ?? turn.error.code, item.nextSibling);
  if (role !== "user") return;
  item.ondblclick = () => {
    const text = prompt("Say instead:", content);
    if (text) show(segue.edit(session, id, text));
  };
}

async function listSessions() {
  const { items } = await segue.sessions();
  at("sessions").replaceChildren(...items.map(({ id, title }) => {
    const item = document.createElement("li");
    item.textContent = title ?? "New";
    item.onclick = () => open(id);
    return item;
  }));
}

at("new").onclick = async () => open((await segue.newSession()).id);
at("stop").onclick = () => running && segue.stop(session, running);
at("approve").onclick = () => show(segue.approve(session, plan));
at("reject").onclick = () => show(segue.reject(session, plan));
at("change").onclick = () => {
  const said = prompt("What should change?");
  if (said) show(segue.change(session, plan, said));
};
at("args").onclick = () => {
  const typed = prompt("Arguments", JSON.stringify(segue.waitingStep(plan).args));
  if (typed) show(segue.approve(session, plan, JSON.parse(typed)));
};
at("form").onsubmit = async (submitted) => {
  submitted.preventDefault();
  const message = at("message").value;
  at("message").value = "";
  session ??= (await segue.newSession()).id;
  line("user", message);
  await show(segue.say(session, message));
};

const asked = new URLSearchParams(location.search);
segue.connect(asked.get("segue") ?? "http://127.0.0.1:8000", sessionStorage.getItem("key"));
for await (const event of segue.feed()) {
  if (["replay_gap", "session_created", "session_titled", "turn_ended"].includes(event.type)) await listSessions();
}
