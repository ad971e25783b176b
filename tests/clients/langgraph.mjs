// A page's side of LangGraph: node langgraph.mjs URL STEPS, where STEPS is JSON: what the page does in turn with
// useStream, as agent-chat-ui does it. Prints what the page shows after each step.
import { Client } from "@langchain/langgraph-sdk";
import { useStream } from "@langchain/langgraph-sdk/react";
import { act, createElement } from "react";
import { create } from "react-test-renderer";

const [apiUrl, given] = process.argv.slice(2);
console.error = () => {};
globalThis.IS_REACT_ACT_ENVIRONMENT = true;
let element, page, stream;

const Page = ({ threadId }) => {
  stream = useStream({ apiUrl, assistantId: "segue", threadId, fetchStateHistory: true });
  return stream.messages.length;
};
const moment = () => new Promise((resume) => setTimeout(resume, 5));
// Behind `act`, React shows all that has changed.
const shown = () => act(async () => (await moment(), page.update(element)));
async function settled(done) {
  await done;
  do await shown();
  while (!stream || stream.isLoading || stream.isThreadLoading);
}

async function step({ open, say, edit, resume }) {
  if (open) {
    page?.unmount();
    stream = undefined;
    const found = await new Client({ apiUrl }).threads.create({ threadId: open, ifExists: "do_nothing" });
    element = createElement(Page, { threadId: found.thread_id });
    page = create(element);
    await settled();
  }
  const how = { streamMode: ["values"], streamSubgraphs: true, streamResumable: true };
  const message = { type: "human", content: [{ type: "text", text: say ?? edit?.say }] };
  if (say) await settled(stream.submit({ messages: [{ ...message, id: `${say} ${stream.messages.length}` }] }, how));
  if (edit) {
    const { firstSeenState } = stream.getMessagesMetadata(stream.messages[edit.at]);
    const input = edit.say ? { messages: [message] } : undefined; // undefined: the answer is made anew
    await settled(stream.submit(input, { ...how, checkpoint: firstSeenState.parent_checkpoint }));
  }
  if (resume) await settled(stream.submit({}, { command: { resume } }));
  const { messages, interrupt, error } = stream;
  return { messages: structuredClone(messages), interrupt: interrupt?.value ?? null, error: error ? `${error}` : null };
}

const steps = [];
for (const each of JSON.parse(given)) steps.push(await step(each));
console.log(JSON.stringify(steps));
process.exit(0); // not when the sockets that it keeps are idle
