// useChat of the Vercel AI SDK on Segue, with a tool of the page. docs/frontends.md says what happens behind it.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls, type UIMessage } from "ai";
import { useEffect } from "react";

const paint = {
  description: "Paints the page in a colour.",
  parameters: { type: "object", properties: { colour: { type: "string" } }, required: ["colour"] },
};
const api = "http://127.0.0.1:8000/api/chat";
const headers = { Authorization: "Bearer <key>" };
const transport = new DefaultChatTransport({ api, headers, body: { tools: { paint } } });
const earlier = async (id: string): Promise<UIMessage[]> => (await (await fetch(`${api}/${id}/messages`, { headers })).json()).items;

export default function Page({ id, initial }: { id: string; initial: UIMessage[] }) { // of earlier(id)
  const { messages, sendMessage, addToolOutput, resumeStream, setMessages, error } = useChat({
    id,
    messages: initial,
    transport,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    onToolCall: ({ toolCall: { toolName, toolCallId, input, dynamic } }) => {
      if (dynamic) return; // one that the service has run
      document.body.style.background = (input as { colour: string }).colour;
      addToolOutput({ tool: toolName, toolCallId, output: "painted" });
    },
  });
  useEffect(() => {
    if (initial.at(-1)?.role !== "user") return;
    // An answer that has ended since its messages were read is not streamed any more.
    resumeStream()
      .then(() => earlier(id))
      .then((read) => read.at(-1)?.role === "assistant" && setMessages(read));
  }, [id]);
  const decide = (plan: { id: string; version: number }, decision: "confirm" | "reject") =>
    sendMessage({
      role: "user",
      parts: [{ type: "data-decision", data: { decision, version: plan.version, plan_id: plan.id } }],
    });
  // a part `data-plan` whose `data.status` is "waiting" asks: show its waiting step, and call decide() with its `data`
  return <pre>{JSON.stringify({ messages, error: error?.message }, null, 2)}</pre>;
}
