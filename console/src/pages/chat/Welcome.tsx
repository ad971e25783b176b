/** A session that does not exist yet: who is to answer, and what one may ask. It is made with the first message. */
import { useSignalEffect } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, type Listed, type Schemas } from "../../api";
import { t, type Text } from "../../i18n";
import { useLoad } from "../../load";
import { go, href } from "../../router";
import { visible } from "../../text";
import type { Agent } from "./Chat";
import { Composer } from "./Composer";
import { EMPTY, NEW } from "./drafts";
import { deliverBy, enqueue, isNew, made, newChat, unsent, unsentIn } from "./outbox";
import { Unsent } from "./Unsent";

/** What to try with the offline model and the example mailbox, and the tool that each needs. */
const OFFLINE: [Text, string][] = [["example_open", "mcp_get_email"], ["example_reply", "mcp_send_email"], ["example_time", "current_time"]];

/** The agent's examples. The offline model's are in the language of the page: none until it is known which tools there are. */
function useExamples(agent: Agent | undefined): readonly string[] {
  const own = agent?.examples ?? [];
  const isOffline = agent?.model === "offline" && own.length === 0;
  const tools = useLoad(async () => (isOffline ? (await get<Listed<Schemas["ToolDescription"]>>("/tools", { limit: 200 })).items : null), [isOffline]).value;
  if (!isOffline || tools === null) return own;
  const usable = OFFLINE.filter(([, needed]) => tools.some(({ name }) => name === needed));
  return [...usable.map(([text]) => t(text)), t("example_can")];
}

export function Welcome({ agents, preferred }: { agents: Agent[]; preferred: string | null }) {
  const [chosen, setChosen] = useState(preferred);
  const agent = agents.find(({ id }) => id === chosen) ?? agents[0];
  const examples = useExamples(agent);
  const fresh = useMemo(newChat, []);
  const chat = unsent.value.map((item) => item.chat).find((each) => isNew(each) && unsentIn(each).length > 0) ?? fresh;
  const waiting = unsentIn(chat);
  useEffect(() => deliverBy(chat, () => Promise.resolve(false)), [chat]);
  useSignalEffect(() => {
    if (made.value?.chat === chat) go(href("sessions", made.value.session), { replace: true });
  });
  const send = (draft: typeof EMPTY): void => enqueue(chat, draft, { agent: agent?.id ?? null });
  return (
    <>
      <div class="welcome">
        {waiting.length > 0 ? (
          <div class="column">{waiting.map((item) => <Unsent key={item.key} item={item} />)}</div>
        ) : (
          <div class="middle">
            <h2 dir="auto">{visible(agent?.greeting ?? "") || t("welcome")}</h2>
            {agent?.model === "offline" && <p class="muted offline">{t("offline")}</p>}
            {agents.length > 1 && (
              <div class="agents" role="radiogroup" aria-label={t("agent")}>
                {agents.map(({ id, name, description }) => (
                  <button key={id} type="button" role="radio" aria-checked={id === agent?.id} onClick={() => setChosen(id)}>
                    <strong dir="auto">{visible(name)}</strong>
                    {description && <span dir="auto">{visible(description)}</span>}
                  </button>
                ))}
              </div>
            )}
            {examples.length > 0 && (
              <div class="examples" role="group" aria-label={t("examples")}>
                {examples.map((example) => <button key={example} type="button" dir="auto" onClick={() => send({ ...EMPTY, text: example })}>{visible(example)}</button>)}
              </div>
            )}
          </div>
        )}
      </div>
      <Composer busy={false} session={null} onSend={send} commands={[]} webSearch={agent?.web_search ?? false} chat={NEW} />
    </>
  );
}
