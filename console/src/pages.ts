/** The pages by the first word of their address. One line adds one. The first is shown where the address names none. */
import type { ComponentType } from "preact";
import type { IconName } from "./components/icons";
import type { Text } from "./i18n";
import { isOps, type Me } from "./me";
import { Chat } from "./pages/chat/Chat";
import { Memory } from "./pages/memory/Memory";
import { Ops } from "./pages/ops/Ops";
import { Unattended } from "./pages/unattended/Unattended";
import type { Route } from "./router";

export interface Page {
  name: string;
  label: Text;
  icon: IconName;
  view: ComponentType<{ route: Route }>;
  /** Who sees it in the navigation; everybody, if it is not said. */
  shownTo?: (me: Me) => boolean;
}

export const PAGES: Page[] = [
  { name: "sessions", label: "page_chat", icon: "chat", view: Chat },
  { name: "scheduled", label: "page_scheduled", icon: "clock", view: Unattended },
  { name: "memory", label: "page_memory", icon: "brain", view: Memory },
  { name: "ops", label: "page_ops", icon: "gauge", view: Ops, shownTo: isOps },
  { name: "tools", label: "ops_tools", icon: "tool", view: Ops, shownTo: () => false },
];
