/** When a schedule is due: in words of the page's language, and as the form asks for it. Cron and RRULE are the service's. */
import type { Schemas } from "../../api";
import { listed, t, time, units, weekday } from "../../i18n";

type Schedule = Schemas["Schedule"];
type Rule = Pick<Schedule, "at" | "cron" | "rrule" | "time_zone" | "next_at">;
type Period = "minute" | "hour" | "day" | "week" | "month";

/** What comes again: every so many of a period, on these weekdays (0 is Sunday) or this day of the month ("L": the last). */
interface Recurrence {
  every: number;
  period: Period;
  days?: number[];
  monthDay?: string;
  /** "09:00" */
  clock?: string;
}

export const DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"] as const;
const WORKDAYS = "1,2,3,4,5";
const PERIODS: Record<string, Period> = { HOURLY: "hour", DAILY: "day", WEEKLY: "week", MONTHLY: "month" };
const WORDED = /^(FREQ|INTERVAL|WKST|BYDAY|BYMONTHDAY|BYHOUR|BYMINUTE)$/;
const NUMBER = /^\d+$/;

export const ownZone = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** "every Monday at 09:00"; null for a rule that has no words here. */
export function inWords(rule: Rule): string | null {
  if (rule.at !== null) return t("when_once", { when: time(rule.at) });
  const found = recurrence(rule);
  return found === null ? null : [worded(found), found.clock === undefined ? "" : t("when_at", { time: found.clock })].filter(Boolean).join(" ");
}

function worded({ every, period, days, monthDay }: Recurrence): string {
  if (every === 1 && days?.join() === WORKDAYS) return t("when_workdays");
  if (every === 1 && days !== undefined) return t("when_weekly", { days: named(days) });
  const often = every === 1 ? t(`when_${period as Exclude<Period, "minute">}`) : t("when_every", { n: units(every, period) });
  if (days !== undefined) return `${often} ${t("when_on", { days: named(days) })}`;
  if (monthDay !== undefined) return `${often} ${monthDay === "L" ? t("when_last_day") : t("when_on_day", { n: Number(monthDay) })}`;
  return often;
}

const named = (days: number[]): string => listed(days.map((each) => weekday(each)));

const recurrence = (rule: Rule): Recurrence | null =>
  rule.cron !== null ? ofCron(rule.cron) : rule.rrule !== null ? ofRrule(rule.rrule, rule) : null;

function ofCron(cron: string): Recurrence | null {
  const [minute = "", hour = "", day = "", month, weekdays = ""] = cron.trim().toUpperCase().split(/\s+/);
  if (month !== "*") return null;
  const always = day === "*" && weekdays === "*";
  const minutes = stepOf(minute, 60);
  if (always && minutes !== null && hour === "*") return { every: minutes, period: "minute" };
  if (!NUMBER.test(minute)) return null;
  const hours = hour === "*" ? 1 : stepOf(hour, 24);
  if (always && minute === "0" && hours !== null) return { every: hours, period: "hour" };
  if (!NUMBER.test(hour)) return null;
  const clock = clockOf(hour, minute);
  if (always) return { every: 1, period: "day", clock };
  const days = day === "*" ? weekdaysOf(weekdays) : null;
  if (days !== null) return { every: 1, period: "week", days, clock };
  return weekdays === "*" && (NUMBER.test(day) || day === "L") ? { every: 1, period: "month", monthDay: day, clock } : null;
}

/** The 15 of a cron field with a step of 15, if it divides the whole. */
function stepOf(field: string, whole: number): number | null {
  const step = Number(/^\*\/(\d+)$/.exec(field)?.[1]);
  return step > 1 && whole % step === 0 ? step : null;
}

function weekdaysOf(field: string): number[] | null {
  const numbered = (name: string): number => (/^[0-7]$/.test(name) ? Number(name) : DAYS.findIndex((each) => each === name));
  const found = field.split(",").flatMap((part) => {
    const [first = "", last = first] = part.split("-");
    const [from, to] = [numbered(first), numbered(last)];
    return from < 0 || to < from ? [-1] : Array.from({ length: to - from + 1 }, (_, at) => (from + at) % 7);
  });
  return found.includes(-1) ? null : ordered(found);
}

/** Monday first. */
export const ordered = (days: number[]): number[] => [...new Set(days)].sort((one, other) => ((one + 6) % 7) - ((other + 6) % 7));

/** What an RRULE leaves out it takes from when it was given; the next time that it is due tells. */
function ofRrule(rrule: string, { next_at, time_zone }: Rule): Recurrence | null {
  const parts = Object.fromEntries(rrule.split(";").map((part) => part.split("=")));
  const period = PERIODS[parts.FREQ ?? ""];
  const single = [parts.BYHOUR, parts.BYMINUTE, parts.BYMONTHDAY].every((each) => each === undefined || NUMBER.test(each));
  if (period === undefined || !single || !Object.keys(parts).every((name) => WORDED.test(name))) return null;
  const next = next_at === null ? null : localParts(next_at, time_zone);
  const found: Recurrence = { every: Number(parts.INTERVAL ?? 1), period };
  if (period === "hour") return parts.BYDAY === undefined ? found : null;
  const [hour, minute] = [parts.BYHOUR ?? next?.hour, parts.BYMINUTE ?? next?.minute];
  if (hour !== undefined && minute !== undefined) found.clock = clockOf(hour, minute);
  if (parts.BYDAY !== undefined) return onDays(found, parts.BYDAY);
  if (period === "week" && next !== null) found.days = [next.weekday];
  const monthDay = parts.BYMONTHDAY ?? next?.day;
  if (period === "month" && monthDay !== undefined) found.monthDay = monthDay;
  else if (parts.BYMONTHDAY !== undefined) return null;
  return found;
}

/** As of a week. Null where the days are counted, as in a month, or are those of every second day. */
function onDays(found: Recurrence, byDay: string): Recurrence | null {
  const days = byDay.split(",").map((each) => DAYS.findIndex((name) => name.slice(0, 2) === each));
  const weekly = found.period === "week" || (found.period === "day" && found.every === 1);
  return weekly && !days.includes(-1) ? { ...found, period: "week", days: ordered(days) } : null;
}

const clockOf = (hour: string, minute: string): string => `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;

function localParts(at: string, timeZone: string) {
  const options = { timeZone, hourCycle: "h23", hour: "2-digit", minute: "2-digit", day: "numeric", weekday: "short" } as const;
  const parts = new Intl.DateTimeFormat("en", options).formatToParts(new Date(at));
  const of = (type: string): string => parts.find((part) => part.type === type)?.value ?? "";
  return { hour: of("hour"), minute: of("minute"), day: of("day"), weekday: DAYS.findIndex((each) => each === of("weekday").toUpperCase()) };
}

/** What the form holds: all kinds at once, so that changing the kind and back loses nothing. */
export interface Draft {
  kind: "at" | "day" | "week" | "cron" | "rrule";
  /** As a `datetime-local` field has it, in the browser's zone. */
  moment: string;
  clock: string;
  days: number[];
  cron: string;
  rrule: string;
  zone: string;
  /** As the field has it too, but by the clock of `zone`. */
  until: string;
}

export const KINDS: Draft["kind"][] = ["at", "day", "week", "cron", "rrule"];

/** Of a schedule, or of a new one: tomorrow at nine. */
export function draftOf(schedule: Schedule | null): Draft {
  const tomorrow = new Date(new Date().setHours(33, 0, 0, 0)).toISOString();
  const found = schedule?.cron == null ? null : ofCron(schedule.cron);
  const simple = found?.every === 1 && (found.period === "day" || found.period === "week") ? found : null;
  return {
    kind: schedule === null ? "day" : schedule.at !== null ? "at" : simple !== null ? (simple.period as "day" | "week") : schedule.cron !== null ? "cron" : "rrule",
    moment: local(schedule?.at ?? tomorrow),
    clock: simple?.clock ?? "09:00",
    days: simple?.days ?? [1],
    cron: schedule?.cron ?? "0 9 1 * *",
    rrule: schedule?.rrule ?? "FREQ=MONTHLY;BYDAY=1MO;BYHOUR=9;BYMINUTE=0",
    zone: schedule?.time_zone ?? ownZone(),
    until: schedule?.until == null ? "" : clockIn(schedule.time_zone, Date.parse(schedule.until)),
  };
}

const local = (at: string): string => {
  const date = new Date(at);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};

/** What the clock of a zone shows, as a `datetime-local` field has it. Swedish writes dates so. */
const clockIn = (timeZone: string, at: number): string =>
  new Intl.DateTimeFormat("sv", { timeZone, dateStyle: "short", timeStyle: "short" }).format(at).replace(" ", "T");

/** When the clock of a zone shows this. Asked twice, as the offset may change between the guess and the moment. */
function momentIn(timeZone: string, shown: string): string {
  const wanted = Date.parse(`${shown}Z`);
  const ahead = (at: number): number => Date.parse(`${clockIn(timeZone, at)}Z`) - at;
  return new Date(wanted - ahead(wanted - ahead(wanted))).toISOString();
}

/** The rule as the API takes it. */
export function ruleOf(draft: Draft): Pick<Schemas["ScheduleChanges"], "at" | "cron" | "rrule" | "time_zone" | "until"> {
  if (draft.kind === "at") return { at: new Date(draft.moment).toISOString(), time_zone: draft.zone, until: null };
  const rest = { time_zone: draft.zone, until: draft.until === "" ? null : momentIn(draft.zone, draft.until) };
  if (draft.kind === "rrule") return { rrule: draft.rrule.trim(), ...rest };
  if (draft.kind === "cron") return { cron: draft.cron.trim(), ...rest };
  const [hour = "", minute = ""] = draft.clock.split(":");
  const days = draft.kind === "day" ? "*" : ordered(draft.days).map((each) => DAYS[each]).join();
  return { cron: `${Number(minute)} ${Number(hour)} * * ${days}`, ...rest };
}

/** Whether all that its kind needs is there. */
export const isWhole = ({ kind, moment, clock, days, cron, rrule }: Draft): boolean =>
  ({ at: moment !== "", day: clock !== "", week: clock !== "" && days.length > 0, cron: cron.trim() !== "", rrule: rrule.trim() !== "" })[kind];
