/** A session that does not exist yet: who is to answer, and what one may ask. It is made with the first message. */
import { useSignalEffect } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { t } from "../../i18n";
import { go, href } from "../../router";
import { visible } from "../../text";
import type { Agent } from "./Chat";
import { Composer } from "./Composer";
import { EMPTY, NEW } from "./drafts";
import { deliverBy, enqueue, isNew, made, newChat, unsent, unsentIn } from "./outbox";
import { Unsent } from "./Unsent";

export function Welcome({ agents, preferred }: { agents: Agent[]; preferred: string | null }) {
  const [chosen, setChosen] = useState(preferred);
  const agent = agents.find(({ id }) => id === chosen) ?? agents[0];
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
            {agent !== undefined && agent.examples.length > 0 && (
              <div class="examples">
                {agent.examples.map((example) => <button key={example} type="button" dir="auto" onClick={() => send({ ...EMPTY, text: example })}>{visible(example)}</button>)}
              </div>
            )}
          </div>
        )}
      </div>
      <Composer busy={false} session={null} onSend={send} commands={[]} webSearch={agent?.web_search ?? false} chat={NEW} />
    </>
  );
}
