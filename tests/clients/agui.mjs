// A page's side of AG-UI: node agui.mjs CLIENT URL STEPS, where CLIENT is agui-0 or agui-1 and STEPS is JSON: what the
// page does in turn with one agent. Prints what the client has after each step.
const [client, url, given] = process.argv.slice(2);
const { HttpAgent } = await import(client);
const warnings = [];
console.warn = (...said) => warnings.push(said.join(" "));
console.error = () => {};
let agent;

async function step({ open, say, resume, forget, runId }) {
  if (open) agent = new HttpAgent({ url, threadId: open });
  if (forget) agent.pendingInterrupts = [];
  if (say) agent.addMessage({ id: `${say} ${agent.messages.length}`, role: "user", content: say });
  const answers = resume && agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, ...resume }));
  const done = { error: null, ended: null };
  const watching = {
    onRunFinishedEvent: ({ event }) => void (done.ended = event.outcome?.type ?? "success"),
    onRunErrorEvent: ({ event }) => void (done.ended = event.code),
  };
  try {
    await agent.runAgent({ ...(runId && { runId }), ...(answers && { resume: answers }) }, watching);
  } catch (error) {
    done.error = error.message;
  }
  const messages = structuredClone(agent.messages); // as they are now: the agent adds to its own
  const { state, pendingInterrupts } = agent;
  return { ...done, messages, plan: state.plan ?? null, interrupts: pendingInterrupts, warnings: warnings.splice(0) };
}

const steps = [];
for (const each of JSON.parse(given)) steps.push(await step(each));
console.log(JSON.stringify(steps));
process.exit(0); // not when the sockets that it keeps are idle
