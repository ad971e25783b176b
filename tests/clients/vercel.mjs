// What useChat does without React: node vercel.mjs URL STEPS, where STEPS is JSON: what the page does in turn with one
// chat. Prints the messages, the status and the error that the page has after each step.
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";

const [url, given] = process.argv.slice(2);
let chat;

async function step({ open, messages, say, edit, parts, regenerate, resume }) {
  if (open) chat = new Chat({ id: open, messages, transport: new DefaultChatTransport({ api: url }) });
  const messageId = edit && chat.messages.filter(({ role }) => role === "user")[edit - 1].id;
  if (say) await chat.sendMessage({ text: say, ...(messageId && { messageId }) });
  if (parts) await chat.sendMessage({ parts });
  if (regenerate) await chat.regenerate();
  if (resume) await chat.resumeStream();
  return { messages: structuredClone(chat.messages), status: chat.status, error: chat.error?.message ?? null };
}

const steps = [];
for (const each of JSON.parse(given)) steps.push(await step(each));
console.log(JSON.stringify(steps));
process.exit(0); // not when the sockets that it keeps are idle
