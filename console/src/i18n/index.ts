/** The texts of the pages in the language that was chosen, or the browser's. English has the names of all; others are read when they are shown. */
import { batch, signal } from "@preact/signals";
import { keepLanguage, known, type Language, showLanguage, storedLanguage } from "../preferences";
import { en } from "./en";

export type Text = keyof typeof en;
export type Texts = Record<Text, string>;
const READ: Record<Language, () => Promise<Texts>> = {
  en: () => Promise.resolve(en),
  it: async () => (await import("./it")).it,
  zh: async () => (await import("./zh")).zh,
  ar: async () => (await import("./ar")).ar,
};
const texts = signal<Texts>(en);
export type { Language };
export const LANGUAGES: Record<Language, string> = { en: "English", it: "Italiano", zh: "中文", ar: "العربية" };

/** The language that is shown. */
export const language = signal<Language>("en");

/** Reads the texts of a language, at first of the one that was chosen before, and shows them. If they cannot be read, what is shown stays. */
export async function show(tag: Language = storedLanguage()): Promise<boolean> {
  const read = await READ[tag]().catch(() => null);
  if (read !== null)
    batch(() => {
      texts.value = read;
      language.value = tag;
    });
  showLanguage(language.value);
  return read !== null;
}

export async function choose(tag: Language): Promise<void> {
  if (await show(tag)) keepLanguage(tag);
}

/** The text of this name, with `{n}` and the like filled in. */
export function t(name: Text, given: Record<string, string | number> = {}): string {
  return texts.value[name].replace(/\{(\w+)\}/g, (_, word: string) => {
    const value = given[word];
    return typeof value === "number" ? number(value) : (value ?? "");
  });
}

/** The browser's own variant of the language, as "en-GB". */
function locale(): string {
  const own = navigator.languages.find((tag) => known(tag) === language.value) ?? language.value;
  return language.value === "ar" ? `${own}-u-nu-latn` : own;
}

export const number = (value: number, options: Intl.NumberFormatOptions = {}): string =>
  new Intl.NumberFormat(locale(), options).format(value);

/** "3 days", "1 day" */
export const units = (value: number, unit: "minute" | "hour" | "day" | "week" | "month"): string =>
  number(value, { style: "unit", unit, unitDisplay: "long" });

/** Who says a message. */
export const roleOf = (role: string): string => (role === "user" ? t("user") : role === "assistant" ? t("agent") : role === "tool" ? t("ops_tool") : role);

/** "12K" */
export const compact = (value: number): string => number(value, { notation: "compact", maximumFractionDigits: 1 });

/** A day in UTC, as "2026-11-24" names it. */
export const day = (date: string, year?: "numeric"): string =>
  new Intl.DateTimeFormat(locale(), { day: "numeric", month: "short", year, timeZone: "UTC" }).format(new Date(date));

/** 0 is Sunday. */
export const weekday = (number: number): string =>
  new Intl.DateTimeFormat(locale(), { weekday: "long", timeZone: "UTC" }).format(new Date(Date.UTC(2023, 0, 1 + number)));

const DAY = 86_400_000;

/** "one, two and three" */
export const listed = (words: string[]): string => new Intl.ListFormat(locale(), { type: "conjunction" }).format(words);

export const time = (at: string): string =>
  new Intl.DateTimeFormat(locale(), { dateStyle: "medium", timeStyle: "short" }).format(new Date(at));

/** To the second, for who looks for it in a log. */
export const exact = (at: string): string =>
  new Intl.DateTimeFormat(locale(), { dateStyle: "medium", timeStyle: "medium" }).format(new Date(at));

/** The time of the day. */
export const clock = (at: string, seconds = false): string =>
  new Intl.DateTimeFormat(locale(), { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(seconds && { second: "2-digit" }) }).format(new Date(at));

/** With the sign before the number in all languages: Arabic would turn "US$" around. */
export const money = (dollars: number): string =>
  new Intl.NumberFormat(language.value === "ar" ? "en" : locale(), { style: "currency", currency: "USD", currencyDisplay: "narrowSymbol", maximumFractionDigits: dollars < 1 ? 4 : 2 }).format(dollars);

export const share = (part: number, whole: number): string =>
  number(whole > 0 ? part / whole : 0, { style: "percent", maximumFractionDigits: 1 });

const midnight = (at: number): number => new Date(at).setHours(0, 0, 0, 0);

/** "now", "5 minutes ago", "yesterday" by the calendar, or the day if it is more than a week. */
export function ago(at: string, now = Date.now()): string {
  const seconds = (new Date(at).getTime() - now) / 1000;
  if (Math.abs(seconds) > 604_800)
    return new Intl.DateTimeFormat(locale(), { day: "numeric", month: "short" }).format(new Date(at));
  const told = new Intl.RelativeTimeFormat(locale(), { numeric: "auto", style: "short" });
  const size = Math.abs(seconds);
  if (size < 60) return told.format(0, "second");
  if (size < 3600) return told.format(Math.round(seconds / 60), "minute");
  if (size < DAY / 1000) return told.format(Math.round(seconds / 3600), "hour");
  return told.format(Math.round((midnight(Date.parse(at)) - midnight(now)) / DAY), "day");
}

const months = new Map<string, string>();

/** "today", "yesterday", the days before, or the month. For long lists: of a month the name is made once. */
export function period(at: string): string {
  const date = new Date(at);
  const days = Math.ceil((new Date().setHours(0, 0, 0, 0) - date.getTime()) / DAY);
  if (days > 1 && days <= 7) return t("last_days");
  const key = days < 2 ? `${locale()} ${days}` : `${locale()} ${date.getFullYear()}-${date.getMonth()}`;
  const name = months.get(key) ?? (days < 2
    ? new Intl.RelativeTimeFormat(locale(), { numeric: "auto" }).format(-Math.max(0, days), "day")
    : new Intl.DateTimeFormat(locale(), { month: "long", year: "numeric" }).format(date));
  months.set(key, name);
  return name;
}

/** "340 ms", "2.1 s", "3 min 5 s". */
export function duration(ms: number): string {
  const unit = (value: number, name: string, digits = 0): string =>
    number(value, { style: "unit", unit: name, unitDisplay: "short", maximumFractionDigits: digits });
  if (Math.round(ms) < 1000) return unit(Math.round(ms), "millisecond");
  if (Math.round(ms / 100) < 600) return unit(ms / 1000, "second", 1);
  const seconds = Math.round(ms / 1000);
  return `${unit(Math.floor(seconds / 60), "minute")} ${unit(seconds % 60, "second")}`;
}

export function bytes(size: number): string {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte"];
  const step = Math.min(Math.floor(Math.log10(Math.max(size, 1)) / 3), 3);
  return number(size / 1000 ** step, { style: "unit", unit: units[step] ?? "byte", unitDisplay: step === 0 ? "long" : "short", maximumFractionDigits: 1 });
}
