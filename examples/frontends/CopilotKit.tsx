// CopilotKit on Segue, without a runtime of its own: a chat, a tool of the page, and buttons for what waits for a yes.
// docs/frontends.md says what happens behind it.
import { HttpAgent } from "@ag-ui/client";
import { CopilotKit } from "@copilotkit/react-core";
import { CopilotChat, useFrontendTool, useInterrupt } from "@copilotkit/react-core/v2";
import { z } from "zod";

const segue = new HttpAgent({ url: "http://127.0.0.1:8000/agui", headers: { Authorization: "Bearer <key>" } });
segue.subscribe({ onRunFailed: ({ agent }) => void (agent.pendingInterrupts = []) }); // or it sends nothing any more

function ToolsAndButtons() {
  useFrontendTool({
    name: "paint",
    description: "Paints the page in a colour.",
    parameters: z.object({ colour: z.string() }),
    handler: async ({ colour }) => ((document.body.style.background = colour), { painted: colour }),
  });
  useInterrupt({
    render: ({ resolve, cancel }) => (
      <p><button onClick={() => resolve({})}>Yes</button> <button onClick={() => cancel()}>No</button></p>
    ),
  });
  return null;
}

export const Page = () => (
  <CopilotKit selfManagedAgents={{ segue }} agent="segue">
    <ToolsAndButtons />
    <CopilotChat agentId="segue" />
  </CopilotKit>
);
