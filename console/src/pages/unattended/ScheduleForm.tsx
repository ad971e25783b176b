/** Makes a schedule, or changes one: only what was changed is sent, as an RRULE counts anew from when it is given. */
import { useState } from "preact/hooks";
import { newKey, patch, post, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Dialog } from "../../components/Dialog";
import { attempt } from "../../components/Toast";
import { t, weekday } from "../../i18n";
import { Message, Named, type NewPlace, NOWHERE, PlaceFields, placeOf, type Schedule, type Session } from "./parts";
import { type Draft, draftOf, isWhole, KINDS, ordered, ownZone, ruleOf } from "./when";

const WEEK = ordered([0, 1, 2, 3, 4, 5, 6]);

interface Given {
  schedule: Schedule | null;
  sessions: Session[];
  onClose: () => void;
  onDone: () => void;
}

export function ScheduleForm({ schedule, sessions, onClose, onDone }: Given) {
  const [message, setMessage] = useState(schedule?.message ?? "");
  const [draft, setDraft] = useState(() => draftOf(schedule));
  const [place, setPlace] = useState<NewPlace>(NOWHERE);
  const [key] = useState(newKey); // for a save that is tried again
  const [busy, setBusy] = useState(false);
  const set = (changes: Partial<Draft>): void => setDraft({ ...draft, ...changes });
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    const said = { message: message.trim() };
    const saved = await attempt(() => schedule === null
      ? post("/schedules", { ...said, ...ruleOf(draft), ...placeOf(place) }, { "Idempotency-Key": key })
      : patch(`/schedules/${schedule.id}`, { ...(said.message !== schedule.message && said), ...changed(schedule, draft) }));
    setBusy(false);
    if (!saved) return;
    onClose();
    onDone();
  };
  return (
    <Dialog title={t(schedule === null ? "new_schedule" : "change_schedule")} onClose={onClose}>
      <form onSubmit={submit}>
        <Message value={message} onChange={setMessage} />
        <Named label={t("when")}>
          <select class="field" value={draft.kind} onChange={(event) => set({ kind: event.currentTarget.value as Draft["kind"] })}>
            {KINDS.map((kind) => <option key={kind} value={kind}>{t(`way_${kind}`)}</option>)}
          </select>
        </Named>
        <When draft={draft} onChange={set} />
        {draft.kind !== "at" && (
          <>
            <Named label={t("time_zone")}>
              <select class="field" value={draft.zone} onChange={(event) => set({ zone: event.currentTarget.value })}>
                {zones(draft.zone).map((zone) => <option key={zone} value={zone}>{zone}</option>)}
              </select>
            </Named>
            <Named label={t("until_optional")}><input class="field" type="datetime-local" value={draft.until} onInput={(event) => set({ until: event.currentTarget.value })} /></Named>
          </>
        )}
        {schedule === null && <PlaceFields place={place} sessions={sessions} onChange={setPlace} />}
        <footer>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button kind="primary" type="submit" disabled={busy || !message.trim() || !isWhole(draft)}>{t("save")}</Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** The members of the rule that are not as they were. */
function changed(schedule: Schedule, draft: Draft): Schemas["ScheduleChanges"] {
  const before = new Map(Object.entries(ruleOf(draftOf(schedule))));
  return Object.fromEntries(Object.entries(ruleOf(draft)).filter(([name, value]) => before.get(name) !== value));
}

const zones = (chosen: string): string[] => [...new Set([chosen, ownZone(), "UTC", ...Intl.supportedValuesOf("timeZone")])];

function When({ draft, onChange }: { draft: Draft; onChange: (changes: Partial<Draft>) => void }) {
  const { kind, moment, clock, days, cron, rrule } = draft;
  const toggled = (each: number): number[] => (days.includes(each) ? days.filter((other) => other !== each) : [...days, each]);
  if (kind === "at") return <Named label={t("the_moment")}><input class="field" type="datetime-local" required value={moment} onInput={(event) => onChange({ moment: event.currentTarget.value })} /></Named>;
  if (kind === "cron") return <Named label={t("cron_fields")}><input class="field mono" dir="ltr" maxLength={100} value={cron} onInput={(event) => onChange({ cron: event.currentTarget.value })} /></Named>;
  if (kind === "rrule") return <Named label={t("rrule")}><input class="field mono" dir="ltr" maxLength={500} value={rrule} onInput={(event) => onChange({ rrule: event.currentTarget.value })} /></Named>;
  return (
    <>
      {kind === "week" && (
        <fieldset class="choices weekdays">
          <legend>{t("on_days")}</legend>
          {WEEK.map((each) => <label key={each}><input type="checkbox" checked={days.includes(each)} onChange={() => onChange({ days: toggled(each) })} />{weekday(each)}</label>)}
        </fieldset>
      )}
      <Named label={t("the_time")}><input class="field" type="time" required value={clock} onInput={(event) => onChange({ clock: event.currentTarget.value })} /></Named>
    </>
  );
}
