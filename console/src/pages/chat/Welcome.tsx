/** A session that does not exist yet: who is to answer, and what one may ask. It is made with the first message or file. */
import { useRef, useState } from "preact/hooks";
import { t } from "../../i18n";
import { go, href } from "../../router";
import { visible } from "../../text";
import type { Agent } from "./Chat";
import { Composer } from "./Composer";
import type { Draft } from "./conversation";
import { newSession } from "./list";

/** The first message of a session that was just made, until its page says it. */
export const first = new Map<string, Draft>();

export function Welcome({ agents, preferred }: { agents: Agent[]; preferred: string | null }) {
  const [chosen, setChosen] = useState(preferred);
  const made = useRef<string | null>(null);
  const agent = agents.find(({ id }) => id === chosen) ?? agents[0];
  const session = async (): Promise<string | null> => {
    made.current ??= (await newSession(agent?.id))?.id ?? null;
    return made.current;
  };
  const send = async (draft: Draft): Promise<void> => {
    const id = await session();
    if (id === null) return;
    first.set(id, draft);
    go(href("sessions", id), { replace: true });
  };
  const offer = (text: string): void => void send({ text, files: [], search: false, whileBusy: "enqueue" });
  return (
    <>
      <div class="welcome">
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
          {agent !== undefined && agent.examples.length > 0 && (
            <div class="examples">
              {agent.examples.map((example) => <button key={example} type="button" dir="auto" onClick={() => offer(example)}>{visible(example)}</button>)}
            </div>
          )}
        </div>
      </div>
      <Composer busy={false} session={session} onSend={(draft) => void send(draft)} commands={[]} webSearch={agent?.web_search ?? false} draftOf="new" />
    </>
  );
}
