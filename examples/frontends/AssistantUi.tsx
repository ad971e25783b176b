// assistant-ui on Segue: a thread, and buttons for what waits for a yes. Tools of the page are `makeAssistantTool`s.
// docs/frontends.md says what happens behind it.
import { HttpAgent } from "@ag-ui/client";
import { AssistantRuntimeProvider } from "@assistant-ui/react";
import { useAgUiInterrupts, useAgUiRuntime, useAgUiSubmitInterruptResponses } from "@assistant-ui/react-ag-ui";
import { Thread } from "@/components/assistant-ui/thread";

const segue = new HttpAgent({ url: "http://127.0.0.1:8000/agui", headers: { Authorization: "Bearer <key>" } });
segue.subscribe({ onRunFailed: ({ agent }) => void (agent.pendingInterrupts = []) }); // or it sends nothing any more

function Buttons() {
  const [interrupt] = useAgUiInterrupts();
  const submit = useAgUiSubmitInterruptResponses();
  const answer = (status: "resolved" | "cancelled") => submit([{ interruptId: interrupt.id, status }]);
  if (!interrupt) return null;
  return (
    <p><button onClick={() => answer("resolved")}>Yes</button> <button onClick={() => answer("cancelled")}>No</button></p>
  );
}

export function Page() {
  const runtime = useAgUiRuntime({ agent: segue });
  return <AssistantRuntimeProvider runtime={runtime}><Thread /><Buttons /></AssistantRuntimeProvider>;
}
