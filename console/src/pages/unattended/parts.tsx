/** What the lists and forms of this page share: reading, and where something is said. */
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { get, type Listed, pages, type Schemas } from "../../api";
import { onFeed } from "../../events";
import { t } from "../../i18n";
import { type Loaded, useLoad } from "../../load";
import { href } from "../../router";
import { visible } from "../../text";

export type Schedule = Schemas["Schedule"];
export type Session = Schemas["Session"];

const MOST = 1000;

async function all<T>(path: string, signal: AbortSignal): Promise<T[]> {
  const found: T[] = [];
  for await (const page of pages<T>(path, { limit: 200 }, MOST, signal)) found.push(...page);
  return found;
}

/** All of a list, read again when something happens in one of the caller's sessions. */
export function useAll<T>(path: string): Loaded<T[]> {
  const list = useLoad((signal) => all<T>(path, signal), [path]);
  useEffect(() => onFeed(({ type }) => type !== "fact_noted" && type !== "mandate_changed" && list.reload()), [list.reload]);
  return list;
}

/** Where something is said: in a chat, with a link to it, or in a new one each time. */
export function Place({ of: { session_id }, sessions }: { of: { session_id: string | null }; sessions: Session[] }) {
  if (session_id === null) return <span>{t("in_new_chat")}</span>;
  const title = sessions.find(({ id }) => id === session_id)?.title;
  return <a href={href("sessions", session_id)} dir="auto">{visible(title ?? "") || t("in_a_chat")}</a>;
}

export const Named = ({ label, children }: { label: string; children: ComponentChildren }) => <label class="named">{label}{children}</label>;

export const Message = ({ value, onChange }: { value: string; onChange: (message: string) => void }) => (
  <Named label={t("to_be_said")}>
    <textarea class="field" rows={3} value={value} dir="auto" autoFocus onInput={(event) => onChange(event.currentTarget.value)} />
  </Named>
);

/** Empty: a new session each time, with the agent that is given or the first. */
export interface NewPlace {
  session: string;
  agent: string;
}
export const NOWHERE: NewPlace = { session: "", agent: "" };

export const placeOf = ({ session, agent }: NewPlace): { session_id?: string; new_session?: boolean; agent?: string } =>
  session !== "" ? { session_id: session } : { new_session: true, ...(agent !== "" && { agent }) };

export function PlaceFields({ place, sessions, onChange }: { place: NewPlace; sessions: Session[]; onChange: (place: NewPlace) => void }) {
  const agents = useLoad((signal) => get<Listed<Schemas["AgentDescription"]>>("/agents", {}, signal), []).value?.items ?? [];
  return (
    <>
      <Named label={t("where")}>
        <select class="field" value={place.session} onChange={(event) => onChange({ ...place, session: event.currentTarget.value })}>
          <option value="">{t("in_new_chat")}</option>
          {sessions.map(({ id, title }) => <option key={id} value={id}>{visible(title ?? "") || t("untitled")}</option>)}
        </select>
      </Named>
      {place.session === "" && agents.length > 1 && (
        <Named label={t("agent")}>
          <select class="field" value={place.agent || agents[0]?.id} onChange={(event) => onChange({ ...place, agent: event.currentTarget.value })}>
            {agents.map(({ id, name }) => <option key={id} value={id}>{visible(name)}</option>)}
          </select>
        </Named>
      )}
    </>
  );
}
