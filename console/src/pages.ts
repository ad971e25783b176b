/** The pages by the first word of their address. One line adds one. The first is shown where the address names none. */
import type { ComponentType } from "preact";
import type { IconName } from "./components/icons";
import type { Text } from "./i18n";
import { isOps, type Me } from "./me";
import type { Command } from "./palette";
import { Chat } from "./pages/chat/Chat";
import { chatCommands, chatsFound } from "./pages/chat/commands";
import { count, decides } from "./pages/inbox/waiting";
import { Inbox } from "./pages/inbox/Inbox";
import { Memory, memoryCommands } from "./pages/memory/Memory";
import { Ops, opsCommands } from "./pages/ops/Ops";
import { Unattended } from "./pages/unattended/Unattended";
import type { Route } from "./router";

export interface Page {
  name: string;
  label: Text;
  icon: IconName;
  view: ComponentType<{ route: Route }>;
  /** Who sees it in the navigation; everybody, if it is not said. */
  shownTo?: (me: Me) => boolean;
  /** How many things there wait for the caller. */
  count?: () => number;
  /** What the palette offers of it from every page, and what it finds by what is typed. */
  commands?: () => Command[];
  find?: (typed: string) => Promise<Command[]>;
}

export const PAGES: Page[] = [
  { name: "sessions", label: "page_chat", icon: "chat", view: Chat, commands: chatCommands, find: chatsFound },
  { name: "inbox", label: "page_inbox", icon: "shield", view: Inbox, shownTo: decides, count: () => count.value },
  { name: "scheduled", label: "page_scheduled", icon: "clock", view: Unattended },
  { name: "memory", label: "page_memory", icon: "brain", view: Memory, commands: memoryCommands },
  { name: "ops", label: "page_ops", icon: "gauge", view: Ops, shownTo: isOps, commands: opsCommands },
  { name: "tools", label: "ops_tools", icon: "tool", view: Ops, shownTo: () => false },
];
