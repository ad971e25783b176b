import { effect, untracked } from "@preact/signals";
import { render } from "preact";
import "./styles.css";
import { App } from "./App";
import { followFeed } from "./events";
import { show } from "./i18n";
import { readMe, user } from "./me";
import { sendUnsent } from "./pages/chat/outbox";
import { followWaiting } from "./pages/inbox/waiting";
import { followTitle } from "./title";

// A file that is dropped where none is taken would be opened in the place of the page.
for (const type of ["dragover", "drop"] as const) addEventListener(type, (event) => event.preventDefault());
readMe();
sendUnsent();
followTitle();
followWaiting();
effect(() => {
  const whose = user.value;
  return whose === null ? undefined : untracked(() => followFeed(whose));
});
void show().then(() => {
  const root = document.getElementById("root");
  root?.replaceChildren(); // the shell that stood there while this was loaded
  if (root) render(<App />, root);
});
