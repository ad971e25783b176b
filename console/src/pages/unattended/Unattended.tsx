/** What happens while nobody watches: what waits for the caller's yes, their schedules, promises and triggers. */
import "./unattended.css";
import { useState } from "preact/hooks";
import { get, type Listed, patch, post, remove, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Ask } from "../../components/Dialog";
import { Icon } from "../../components/icons";
import { Menu } from "../../components/Menu";
import { Badge, EmptyState, Failure, type Mood, Spinner } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { Frame } from "../../Frame";
import { ago, t, time } from "../../i18n";
import { useLoad } from "../../load";
import { user } from "../../me";
import { href } from "../../router";
import { visible } from "../../text";
import { Place, type Schedule, type Session, useAll } from "./parts";
import { ScheduleForm } from "./ScheduleForm";
import { Triggers } from "./Triggers";
import { inWords, ownZone } from "./when";

type Asked = { kind: "edit"; schedule: Schedule | null } | { kind: "delete"; schedule: Schedule };

const MOODS: Record<Schedule["status"], Mood> = { active: "good", paused: "warn", ended: "neutral" };
const RUNS: Record<NonNullable<NonNullable<Schedule["last"]>["status"]>, Mood> =
  { queued: "neutral", running: "busy", completed: "good", failed: "bad", cancelled: "neutral" };

export function Unattended() {
  const schedules = useAll<Schedule>("/schedules");
  const sessions = useLoad(async (signal) => (await get<Listed<Session>>("/sessions", { limit: 100 }, signal)).items, []).value ?? [];
  const [asked, setAsked] = useState<Asked | null>(null);
  const close = (): void => setAsked(null);
  const edit = (schedule: Schedule | null): void => setAsked({ kind: "edit", schedule });
  const done = async (act: () => Promise<unknown>): Promise<void> => {
    if (await attempt(act)) schedules.reload();
  };
  return (
    <Frame title={t("page_scheduled")} actions={<Button icon="plus" onClick={() => edit(null)}>{t("new_schedule")}</Button>}>
      <div class="page unattended">
        <p class="muted">{t("scheduled_text")}</p>
        <Waiting />
        {schedules.problem !== null && <Failure problem={schedules.problem} onRetry={schedules.reload} />}
        {schedules.value === null && schedules.problem === null && <Spinner />}
        {schedules.value?.length === 0 && <EmptyState icon="clock" title={t("no_schedules")} />}
        <ul class="due" aria-label={t("page_scheduled")}>
          {schedules.value?.map((each) => (
            <One key={each.id} schedule={each} sessions={sessions} onEdit={() => edit(each)} onDelete={() => setAsked({ kind: "delete", schedule: each })} onDo={done} />
          ))}
        </ul>
        <Triggers sessions={sessions} />
      </div>
      {asked?.kind === "edit" && <ScheduleForm schedule={asked.schedule} sessions={sessions} onClose={close} onDone={schedules.reload} />}
      {asked?.kind === "delete" && (
        <Ask title={t("delete_schedule")} text={t("delete_schedule_text", { message: visible(asked.schedule.message) })} action={t("delete")} danger
          onClose={close} onDone={() => done(() => remove(`/schedules/${asked.schedule.id}`))} />
      )}
    </Frame>
  );
}

/** "3 wait for you", each with its words and its chat. */
function Waiting() {
  const plans = (useAll<Schemas["Approval"]>("/approvals").value ?? []).filter(({ asker }) => asker === user.value);
  if (plans.length === 0) return null;
  const title = plans.length === 1 ? t("one_waits_for_you") : t("n_wait_for_you", { n: plans.length });
  return (
    <section class="card warn" aria-label={title}>
      <header class="head"><Icon name="shield" size={16} /><h2 class="title">{title}</h2></header>
      <ul class="body">
        {plans.map(({ plan_id, session_id, step, since }) => (
          <li key={plan_id}>
            <a href={href("sessions", session_id)} dir="auto">{visible(step?.description ?? "") || t("waits_for_you")}</a>
            <small class="muted" title={time(since)}>{ago(since)}</small>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface OneGiven {
  schedule: Schedule;
  sessions: Session[];
  onEdit: () => void;
  onDelete: () => void;
  onDo: (act: () => Promise<unknown>) => Promise<void>;
}

function One({ schedule, sessions, onEdit, onDelete, onDo }: OneGiven) {
  const { id, message, status, made_by, next_at } = schedule;
  const [busy, setBusy] = useState(false);
  const change = (to: "active" | "paused") => () => void onDo(() => patch(`/schedules/${id}`, { status: to }));
  const run = async (): Promise<void> => {
    setBusy(true);
    await onDo(async () => { await post(`/schedules/${id}/run`); toast(t("runs_now")); });
    setBusy(false);
  };
  return (
    <li class={`one ${status}`}>
      <div class="grow">
        <p dir="auto">{visible(message)}</p>
        <p class="when"><Icon name="clock" size={14} /><When of={schedule} /></p>
        <p class="about">
          <Badge mood={MOODS[status]}>{t(`state_${status}`)}</Badge>
          <span>{t(`made_by_${made_by}`)}</span>
          {next_at !== null && <span>{t("due_next", { when: time(next_at) })}</span>}
          <Last of={schedule} />
          <Place of={schedule} sessions={sessions} />
        </p>
      </div>
      <Button class="small" icon="play" label={`${t("run_now")}: ${visible(message)}`} disabled={busy} onClick={run}>{t("run_now")}</Button>
      <Menu label={t("more_of", { title: visible(message) })} entries={[
        { label: t("edit"), icon: "edit", act: onEdit },
        ...(status === "active" ? [{ label: t("pause"), icon: "pause" as const, act: change("paused") }] : []),
        ...(status === "paused" ? [{ label: t("resume"), icon: "redo" as const, act: change("active") }] : []),
        { label: t("delete"), icon: "trash", danger: true, act: onDelete },
      ]} />
    </li>
  );
}

function When({ of }: { of: Schedule }) {
  const words = inWords(of);
  const rest = [
    of.at === null && of.time_zone !== ownZone() ? `(${visible(of.time_zone)})` : "",
    of.until === null ? "" : t("mandate_until", { when: time(of.until) }),
  ].filter(Boolean).join(" ");
  return <span title={of.cron ?? of.rrule ?? undefined}>{words ?? <code dir="ltr">{visible(of.cron ?? of.rrule ?? "")}</code>} {rest}</span>;
}

/** The answer that it began last, where it still is. */
function Last({ of: { last } }: { of: Schedule }) {
  if (last === null) return null;
  const when = t("due_last", { when: time(last.at) });
  return (
    <>
      {last.session_id === null ? <span>{when}</span> : <a href={href("sessions", last.session_id, "turns", last.turn_id)}>{when}</a>}
      {last.status !== null && last.status !== "completed" && <Badge mood={RUNS[last.status]}>{t(`turn_${last.status}`)}</Badge>}
    </>
  );
}
