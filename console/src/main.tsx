import { render } from "preact";
import "./styles.css";
import { App } from "./App";
import { followFeed } from "./events";
import { readMe } from "./me";

readMe();
void followFeed();
const root = document.getElementById("root");
if (root) render(<App />, root);
