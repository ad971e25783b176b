/** Dark or light: as the system says, or as chosen here. */
import { effect, signal } from "@preact/signals";
import { keepTheme, showTheme, storedTheme, type Theme } from "./preferences";

export type { Theme } from "./preferences";
export const theme = signal<Theme>(storedTheme());

effect(() => {
  showTheme(theme.value);
  keepTheme(theme.value);
});
