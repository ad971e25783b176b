/** Runs in the head of the page, before its style sheet is used and the pages are there. */
import { showLanguage, showTheme, storedLanguage, storedTheme } from "./preferences";

showTheme(storedTheme());
showLanguage(storedLanguage());
