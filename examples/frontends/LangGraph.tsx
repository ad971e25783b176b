// useStream of LangGraph's SDK on Segue. docs/frontends.md says what happens behind it.
import { useStream } from "@langchain/langgraph-sdk/react";

export function Chat({ threadId }: { threadId: string | null }) {
  const chat = useStream({ apiUrl: "http://127.0.0.1:8000", apiKey: "<key>", assistantId: "segue", threadId, fetchStateHistory: true });
  const say = (text: string) =>
    chat.submit({ messages: [{ type: "human", content: text, id: crypto.randomUUID() }] }, { streamResumable: true });
  const decide = (type: "approve" | "reject") => chat.submit({}, { command: { resume: { decisions: [{ type }] } } });
  // `chat.interrupt.value.action_requests` is what waits: show it, and call decide()
  return <pre onClick={() => say("What time is it?")}>{JSON.stringify([chat.messages, chat.interrupt], null, 2)}</pre>;
}
