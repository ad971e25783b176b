// A page's side of AG-UI: node agui.mjs CLIENT URL STEPS, where CLIENT is agui-0 or agui-1 and STEPS is JSON: what the
// page does in turn with one agent. Prints what the client has after each step.
const [client, url, given] = process.argv.slice(2);
const { HttpAgent } = await import(client);
const warnings = [];
console.warn = (...said) => warnings.push(said.join(" "));
console.error = () => {};
let agent;

// What the page's tools give, by name: for each of its calls that has none yet, as `useFrontendTool` does after a run.
function answerCalls(gives) {
  const answered = new Set(agent.messages.filter(({ role }) => role === "tool").map(({ toolCallId }) => toolCallId));
  const calls = agent.messages.flatMap(({ toolCalls }) => toolCalls ?? []).filter(({ id }) => !answered.has(id));
  for (const { id, function: called } of calls)
    if (called.name in gives)
      agent.addMessage({ id: `result ${id}`, role: "tool", toolCallId: id, content: JSON.stringify(gives[called.name]) });
}

async function step({ open, messages, state: initialState, say, resume, forget, runId, gives, ...more }) {
  if (open) agent = new HttpAgent({ url, threadId: open, initialMessages: messages, initialState });
  if (forget) agent.pendingInterrupts = [];
  if (say) agent.addMessage({ id: `${say} ${agent.messages.length}`, role: "user", content: say });
  if (gives) answerCalls(gives);
  const answers = resume && agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, ...resume }));
  const done = { error: null, ended: null };
  const watching = {
    onRunFinishedEvent: ({ event }) => void (done.ended = event.outcome?.type ?? "success"),
    onRunErrorEvent: ({ event }) => void (done.ended = event.code),
  };
  try {
    await agent.runAgent({ ...more, ...(runId && { runId }), ...(answers && { resume: answers }) }, watching);
  } catch (error) {
    done.error = error.message;
  }
  const shown = structuredClone(agent.messages); // as they are now: the agent adds to its own
  const { pendingInterrupts: interrupts } = agent;
  const { plan = null, ...state } = agent.state;
  return { ...done, messages: shown, plan, state, interrupts, warnings: warnings.splice(0) };
}

const steps = [];
for (const each of JSON.parse(given)) steps.push(await step(each));
console.log(JSON.stringify(steps));
process.exit(0); // not when the sockets that it keeps are idle
