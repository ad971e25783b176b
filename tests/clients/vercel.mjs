// What useChat does without React: node vercel.mjs CLIENT URL STEPS, where CLIENT is @ai-sdk/react or one of an older
// AI SDK, and STEPS is JSON: what the page does in turn with one chat. Prints the messages, the status and the error that
// the page has after each step.
import { createRequire } from "node:module";

const [client, url, given] = process.argv.slice(2);
const { Chat } = await import(client);
// The `ai` that came with it. Version 5 calls the parts of all tools otherwise, and knows no approvals.
const ai = createRequire(import.meta.resolve(client))("ai");
const isToolPart = ai.isToolOrDynamicToolUIPart ?? ai.isToolUIPart;
const complete = [ai.lastAssistantMessageIsCompleteWithToolCalls, ai.lastAssistantMessageIsCompleteWithApprovalResponses];
let chat, whenEnded;

// What the page answers to the parts that wait in its last message: to its own tools what they give, to approvals
// whether they are given, by their ids. The client sends that itself once all are answered, and this waits for the end.
async function answer({ gives = {}, approves = {} }) {
  const ended = new Promise((resolve) => (whenEnded = resolve));
  const waiting = chat.messages.at(-1).parts.filter(isToolPart);
  for (const { type, toolName, toolCallId, state, approval } of waiting) {
    const name = toolName ?? type.slice("tool-".length);
    if (state === "input-available" && name in gives)
      await chat.addToolOutput({ tool: name, toolCallId, output: gives[name] });
    if (state === "approval-requested")
      await chat.addToolApprovalResponse({ id: approval.id, approved: approves[approval.id] });
  }
  await ended;
}

function opened(id, messages, { headers, body }) {
  const transport = new ai.DefaultChatTransport({ api: url, headers, body });
  const sendAutomaticallyWhen = (given) => complete.some((is) => is?.(given));
  return new Chat({ id, messages, transport, sendAutomaticallyWhen, onFinish: () => whenEnded?.() });
}

async function step({ open, messages, say, edit, parts, regenerate, resume, answers, history, ...more }) {
  const earlier = async () =>
    (await (await fetch(`${url}/${encodeURIComponent(open)}/messages`, { headers: more.headers })).json()).items;
  if (history) messages = await earlier();
  if (open) chat = opened(open, messages, more);
  const messageId = edit && chat.messages.filter(({ role }) => role === "user")[edit - 1].id;
  if (say) await chat.sendMessage({ text: say, ...(messageId && { messageId }) });
  if (parts) await chat.sendMessage({ parts });
  if (regenerate) await chat.regenerate({ messageId });
  if (resume) await chat.resumeStream();
  // The answer has ended between the two, as docs/frontends.md says.
  if (history && resume && chat.messages.at(-1).role === "user") chat.messages = await earlier();
  if (answers) await answer(answers);
  return { messages: structuredClone(chat.messages), status: chat.status, error: chat.error?.message ?? null };
}

const steps = [];
for (const each of JSON.parse(given)) steps.push(await step(each));
console.log(JSON.stringify(steps));
process.exit(0); // not when the sockets that it keeps are idle
