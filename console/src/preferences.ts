/** What was chosen in this browser before: read before anything is drawn, so that nothing flashes. Imports nothing. */

export type Theme = "system" | "light" | "dark";
export type Language = "en" | "it" | "zh" | "ar";
const THEME = "segue.theme";
const LANGUAGE = "segue.language";
const KNOWN: string[] = ["en", "it", "zh", "ar"] satisfies Language[];

export const known = (tag: string | null): Language | null => KNOWN.find((each) => each === tag?.slice(0, 2)) as Language ?? null;

export function storedTheme(): Theme {
  const given = localStorage.getItem(THEME);
  return given === "light" || given === "dark" ? given : "system";
}

export const storedLanguage = (): Language =>
  known(localStorage.getItem(LANGUAGE)) ?? navigator.languages.map(known).find((tag) => tag !== null) ?? "en";

export const keepTheme = (theme: Theme): void => localStorage.setItem(THEME, theme);
export const keepLanguage = (language: Language): void => localStorage.setItem(LANGUAGE, language);

export function showTheme(theme: Theme): void {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme;
}

export function showLanguage(language: Language): void {
  document.documentElement.lang = language;
  document.documentElement.dir = language === "ar" ? "rtl" : "ltr";
}
