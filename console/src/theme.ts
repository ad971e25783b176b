/** Dark or light: as the system says, or as chosen here. */
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const STORED = "segue.theme";
const given = localStorage.getItem(STORED);

export const theme = signal<Theme>(given === "light" || given === "dark" ? given : "system");

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme.value;
  localStorage.setItem(STORED, theme.value);
});
