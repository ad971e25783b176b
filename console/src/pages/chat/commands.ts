/** What the palette does and finds of chats from every page. */
import { get, type Listed } from "../../api";
import { ago, t } from "../../i18n";
import type { Command } from "../../palette";
import { go, href } from "../../router";
import { visible } from "../../text";
import type { Found } from "./list";
import { named } from "./Sessions";

const MOST = 20;
const RECENT = 5;
let latest = "";

export const chatCommands = (): Command[] => [{ label: t("new_chat"), icon: "plus", act: () => go(href("sessions", "new")) }];

/** The newest chats, or those that the service finds by the words: in titles and messages, also in the archive. */
export async function chatsFound(typed: string): Promise<Command[]> {
  latest = typed;
  const query = typed.trim();
  if (query !== "") await new Promise((resolve) => setTimeout(resolve, 150));
  if (latest !== typed || query.length === 1) return [];
  const read = (archived: boolean) => get<Listed<Found>>("/sessions", { query, archived, limit: query === "" ? RECENT : MOST }).catch(() => ({ items: [] as Found[] }));
  const [own, archived] = await Promise.all([read(false), query === "" ? { items: [] } : read(true)]);
  const command = (session: Found): Command => ({
    label: named(session), icon: session.archived ? "archive" : "chat", hint: session.snippet ? visible(session.snippet) : ago(session.updated_at),
    act: () => go(href("sessions", session.id)),
  });
  return [...own.items, ...archived.items].map(command);
}
