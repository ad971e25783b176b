/** The caller's triggers: the address of each, and its secret, which is shown once. */
import { useMemo, useState } from "preact/hooks";
import { newKey, patch, post, remove, type Schemas } from "../../api";
import { Button, CopyButton } from "../../components/Button";
import { Ask, Dialog } from "../../components/Dialog";
import { Menu } from "../../components/Menu";
import { Badge, Failure } from "../../components/parts";
import { attempt } from "../../components/Toast";
import { t } from "../../i18n";
import { visible } from "../../text";
import { Message, NOWHERE, Place, PlaceFields, placeOf, type Session, useAll } from "./parts";

type Trigger = Schemas["Trigger"];
type Made = Schemas["TriggerWithSecret"];
type Asked = { kind: "edit"; trigger: Trigger | null } | { kind: "roll" | "delete"; trigger: Trigger };

export function Triggers({ sessions }: { sessions: Session[] }) {
  const triggers = useAll<Trigger>("/triggers");
  const [asked, setAsked] = useState<Asked | null>(null);
  const [made, setMade] = useState<Made | null>(null);
  const key = useMemo(newKey, [asked]); // for a save that is tried again
  const close = (): void => setAsked(null);
  const done = async (act: () => Promise<unknown>): Promise<boolean> => {
    const did = await attempt(act);
    if (did) triggers.reload();
    return did;
  };
  const save = (body: { message: string }): Promise<boolean> =>
    done(async () => asked?.trigger == null ? setMade(await post<Made>("/triggers", body, { "Idempotency-Key": key })) : await patch(`/triggers/${asked.trigger.id}`, body));
  return (
    <section class="triggers" aria-label={t("triggers")}>
      <header><h2>{t("triggers")}</h2><Button class="small" icon="plus" onClick={() => setAsked({ kind: "edit", trigger: null })}>{t("new_trigger")}</Button></header>
      <p class="muted">{t("triggers_text")}</p>
      {triggers.problem !== null && <Failure problem={triggers.problem} onRetry={triggers.reload} />}
      <ul class="due">
        {triggers.value?.map((each) => (
          <One key={each.id} trigger={each} sessions={sessions} onAsk={(kind) => setAsked({ kind, trigger: each })}
            onTurn={(status) => done(() => patch(`/triggers/${each.id}`, { status }))} />
        ))}
      </ul>
      {asked?.kind === "edit" && <TriggerForm trigger={asked.trigger} sessions={sessions} onClose={close} onDone={save} />}
      {asked?.kind === "roll" && (
        <Ask title={t("new_secret")} text={t("roll_text")} action={t("new_secret")} onClose={close}
          onDone={() => done(async () => setMade(await post<Made>(`/triggers/${asked.trigger.id}/roll`)))} />
      )}
      {asked?.kind === "delete" && (
        <Ask title={t("delete_trigger")} text={t("delete_trigger_text")} action={t("delete")} danger onClose={close}
          onDone={() => done(() => remove(`/triggers/${asked.trigger.id}`))} />
      )}
      {made !== null && <Secret of={made} onClose={() => setMade(null)} />}
    </section>
  );
}

interface OneGiven {
  trigger: Trigger;
  sessions: Session[];
  onAsk: (kind: Asked["kind"]) => void;
  onTurn: (status: Trigger["status"]) => Promise<unknown>;
}

function One({ trigger, sessions, onAsk, onTurn }: OneGiven) {
  const { message, url, status } = trigger;
  const isOn = status === "active";
  return (
    <li class={`one ${status}`}>
      <div class="grow">
        <p dir="auto">{visible(message)}</p>
        <p class="address"><code dir="ltr">{visible(url)}</code><CopyButton text={url} label={t("copy_address")} /></p>
        <p class="about"><Badge mood={isOn ? "good" : "warn"}>{t(`state_${status}`)}</Badge><Place of={trigger} sessions={sessions} /></p>
      </div>
      <Menu label={t("more_of", { title: visible(message) })} entries={[
        { label: t("edit"), icon: "edit", act: () => onAsk("edit") },
        { label: t("new_secret"), icon: "swap", act: () => onAsk("roll") },
        { label: t(isOn ? "pause" : "resume"), icon: isOn ? "pause" : "redo", act: () => void onTurn(isOn ? "paused" : "active") },
        { label: t("delete"), icon: "trash", danger: true, act: () => onAsk("delete") },
      ]} />
    </li>
  );
}

interface FormGiven {
  trigger: Trigger | null;
  sessions: Session[];
  onClose: () => void;
  onDone: (body: { message: string }) => Promise<boolean>;
}

function TriggerForm({ trigger, sessions, onClose, onDone }: FormGiven) {
  const [message, setMessage] = useState(trigger?.message ?? "");
  const [place, setPlace] = useState(NOWHERE);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    const saved = await onDone({ message: message.trim(), ...(trigger === null && placeOf(place)) });
    setBusy(false);
    if (saved) onClose();
  };
  return (
    <Dialog title={t(trigger === null ? "new_trigger" : "change_trigger")} onClose={onClose}>
      <form onSubmit={submit}>
        <Message value={message} onChange={setMessage} />
        {trigger === null && <PlaceFields place={place} sessions={sessions} onChange={setPlace} />}
        <footer><Button onClick={onClose}>{t("cancel")}</Button><Button kind="primary" type="submit" disabled={busy || !message.trim()}>{t("save")}</Button></footer>
      </form>
    </Dialog>
  );
}

/** Only its button closes it: what it shows is not shown again. */
const Secret = ({ of, onClose }: { of: Made; onClose: () => void }) => (
  <Dialog title={t("the_secret")}>
    <p>{t("secret_once")}</p>
    <p class="secret"><code dir="ltr">{of.secret}</code><CopyButton text={of.secret} /></p>
    <p class="secret"><code dir="ltr">{visible(of.url)}</code><CopyButton text={of.url} label={t("copy_address")} /></p>
    <footer class="end"><Button kind="primary" onClick={onClose}>{t("secret_kept")}</Button></footer>
  </Dialog>
);
