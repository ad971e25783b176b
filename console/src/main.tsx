import { render } from "preact";
import "./styles.css";
import { App } from "./App";
import { followFeed } from "./events";
import { readMe } from "./me";
import { sendUnsent } from "./pages/chat/outbox";

// A file that is dropped where none is taken would be opened in the place of the page.
for (const type of ["dragover", "drop"] as const) addEventListener(type, (event) => event.preventDefault());
readMe();
sendUnsent();
void followFeed();
const root = document.getElementById("root");
if (root) render(<App />, root);
