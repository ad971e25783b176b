// A page of CopilotKit's that speaks to the service it comes from: that of examples/frontends/CopilotKit.tsx, with a chat.
import { HttpAgent } from "@ag-ui/client";
import { CopilotKit } from "@copilotkit/react-core";
import { CopilotChat, useFrontendTool, useInterrupt } from "@copilotkit/react-core/v2";
import { createRoot } from "react-dom/client";
import { z } from "zod";

const segue = new HttpAgent({ url: "/agui" });
segue.subscribe({ onRunFailed: ({ agent }) => void (agent.pendingInterrupts = []) });

function OfCopilotKit() {
  useFrontendTool({
    name: "paint",
    description: "Paints the page in a colour.",
    parameters: z.object({ colour: z.string() }),
    handler: async ({ colour }) => ((document.body.dataset.painted = colour), { painted: colour }),
  });
  useInterrupt({
    render: ({ resolve, cancel }) => (
      <p><button onClick={() => resolve({})}>Yes</button> <button onClick={() => cancel()}>No</button></p>
    ),
  });
  return null;
}

createRoot(document.getElementById("page")).render(
  <CopilotKit selfManagedAgents={{ segue }} agent="segue" showDevConsole={false} enableInspector={false}>
    <OfCopilotKit />
    <CopilotChat agentId="segue" threadId={new URLSearchParams(location.search).get("thread")} />
  </CopilotKit>,
);
