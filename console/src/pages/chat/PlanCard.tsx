/** A plan: its steps, and for the one that waits exactly what would be done, with the ways to decide. */
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Button, CopyButton } from "../../components/Button";
import { Icon, type IconName } from "../../components/icons";
import { Badge, Card, type Mood } from "../../components/parts";
import { number, t, time } from "../../i18n";
import { pretty, visible } from "../../text";
import { useFirstField } from "../../typing";
import { Arguments, NotYours } from "./Arguments";
import { type AskedBefore, askedBefore } from "./question";
import { Asked } from "./Asked";
import type { Conversation } from "./conversation";
import { parsed, type Plan } from "./live";
import { turnsOf } from "./turns";

type Step = Plan["steps"][number];
const PLAN_MOODS: Record<Plan["status"], Mood> = {
  active: "busy", waiting: "warn", completed: "good", failed: "bad", cancelled: "neutral", expired: "neutral", superseded: "neutral",
};
const STEP_ICONS: Record<NonNullable<Step["status"]>, IconName> = {
  pending: "clock", running: "play", waiting: "alert", complete: "check", failed: "cross", skipped: "chevron", unknown: "alert",
};

/** Whom a plan waits for: the user, or a group in which others decide. */
export function waitsFor({ steps }: Plan): string {
  const asked = steps.find(({ status }) => status === "waiting")?.waits_for ?? "self";
  return asked === "self" ? t("waits_for_you") : t("waits_for_group", { group: visible(asked.group) });
}

interface Given {
  plan: Plan;
  conversation: Conversation;
  /** Whether it is the open plan of the session and no turn runs: only then it can be decided on. */
  open: boolean;
  /** Whether something was sent and not accepted yet. If it is refused, what was typed here still stands. */
  busy?: boolean;
}

export function PlanCard({ plan, conversation, open, busy = false }: Given) {
  const waiting = plan.steps.filter(({ status }) => status === "waiting");
  const asks = open && plan.status === "waiting" && waiting.length > 0;
  const done = plan.steps.filter(({ status }) => status === "complete").length;
  return (
    <Card icon="plan" mood={asks ? "warn" : "neutral"} {...(!asks && plan.status !== "active" && { folded: true })}
      title={<>{t("plan")} <span class="muted goal" dir="auto">{visible(plan.goal)}</span></>}
      aside={<><span>{number(done)}/{number(plan.steps.length)}</span><Badge mood={PLAN_MOODS[plan.status]}>{plan.status === "waiting" ? waitsFor(plan) : t(`plan_${plan.status}` as const)}</Badge></>}>
      <ol class="steps">
        {plan.steps.map((step) => (
          <li key={step.id} data-status={step.status ?? "pending"}>
            <Icon name={STEP_ICONS[step.status ?? "pending"]} size={15} />
            <div>
              <span dir="auto">{visible(step.description)}</span>
              <span class="muted"> {t(`step_${step.status ?? "pending"}` as const)}</span>
              {step.status === "complete" && step.result_preview && <p class="muted" dir="auto">{visible(step.result_preview)}</p>}
              {step.error && <p class="note bad" dir="auto">{visible(step.error)}</p>}
            </div>
          </li>
        ))}
      </ol>
      {asks && <fieldset class="deciding" disabled={busy}><Question key={`${plan.id}-${plan.version}`} plan={plan} steps={waiting} conversation={conversation} /></fieldset>}
    </Card>
  );
}

/** Also for calls outside a plan: they are a plan of their own, and one yes is for all of them. */
function Question({ plan, steps, conversation }: { plan: Plan; steps: Step[]; conversation: Conversation }) {
  const [step, ...others] = steps as [Step, ...Step[]];
  const [mode, setMode] = useState<"ask" | "args" | "words">("ask");
  const [remember, setRemember] = useState(false);
  const before = useMemo(() => askedBefore(turnsOf(conversation.messages.value, null), plan, step.tool ?? ""), []);
  const buttons = useRef<HTMLDivElement>(null);
  const left = useRef("");
  useLayoutEffect(() => {
    if (mode === "ask") buttons.current?.querySelector<HTMLElement>(`[data-opens="${left.current}"]`)?.focus();
    left.current = mode;
  }, [mode]);
  const isOwn = (step.waits_for ?? "self") === "self";
  const approve = (args?: Record<string, unknown>): void =>
    void conversation.decide(plan, { decision: "confirm", ...(args && { args }), ...(remember && { remember: "session" }) });
  return (
    <section class="question" aria-label={waitsFor(plan)}>
      <Call step={step} shown={mode !== "args"} before={before} />
      {others.map((other) => <Call key={other.id} step={other} shown />)}
      {step.asks != null && (
        <Asked asks={step.asks} onDecline={() => void conversation.decide(plan, { decision: "reject" })}
          onAnswer={(answer) => void conversation.decide(plan, { decision: "confirm", ...(answer && { answer }) })} />
      )}
      {mode === "ask" && step.asks == null && (
        <>
          {step.tool !== null && isOwn && (
            <label class="check"><input type="checkbox" checked={remember} onChange={(event) => setRemember(event.currentTarget.checked)} />{t("for_session")}</label>
          )}
          <NotYours steps={steps} />
          {!isOwn && <p class="note">{waitsFor(plan)}: {t("yes_does_nothing")}</p>}
          <div class="buttons" ref={buttons}>
            {isOwn && <Button kind="primary" icon="check" onClick={() => approve()}>{t("approve")}</Button>}
            {step.args != null && isOwn && <Button icon="edit" data-opens="args" onClick={() => setMode("args")}>{t("change_arguments")}</Button>}
            <Button icon="chat" data-opens="words" onClick={() => setMode("words")}>{t("change_in_words")}</Button>
            <Button kind="danger" icon="cross" onClick={() => void conversation.decide(plan, { decision: "reject" })}>{t("reject")}</Button>
          </div>
          <p class="muted until">{t("waits_until", { time: time(plan.expires_at) })}</p>
        </>
      )}
      {mode === "args" && <ArgumentsForm args={step.args ?? {}} onDone={approve} onCancel={() => setMode("ask")} />}
      {mode === "words" && <WordsForm onDone={(message) => void conversation.decide(plan, { decision: "amend", message })} onCancel={() => setMode("ask")} />}
    </section>
  );
}

function Call({ step, shown, before }: { step: Step; shown: boolean; before?: AskedBefore | undefined }) {
  return (
    <>
      <h2>
        {step.tool === null ? t("waits_for_you") : <>{t("asks_to_call")} <code>{visible(step.tool)}</code></>}
        {step.args != null && <CopyButton text={() => pretty(step.args)} />}
      </h2>
      {shown && step.args != null && <Arguments step={step} before={before} />}
    </>
  );
}

interface Form<T> {
  onDone: (value: T) => void;
  onCancel: () => void;
}

/** A field for each argument; what is no text is typed as JSON. */
function ArgumentsForm({ args, onDone, onCancel }: Form<Record<string, unknown>> & { args: Record<string, unknown> }) {
  const form = useFirstField<HTMLFormElement>();
  const [typed, setTyped] = useState(() => Object.fromEntries(Object.entries(args).map(([name, value]) => [name, pretty(value)])));
  const value = (name: string): unknown => (typeof args[name] === "string" ? typed[name] : parsed(typed[name] ?? ""));
  const wrong = Object.keys(args).filter((name) => typeof args[name] !== "string" && typed[name]?.trim() !== "null" && value(name) === null);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (wrong.length === 0) onDone(Object.fromEntries(Object.keys(args).map((name) => [name, value(name)])));
  };
  return (
    <form ref={form} onSubmit={submit}>
      {Object.keys(args).map((name) => (
        <label key={name} class="argument">
          <code>{visible(name)}</code>
          <textarea class="field" dir="auto" rows={Math.min(10, (typed[name] ?? "").split("\n").length)} value={typed[name] ?? ""} aria-invalid={wrong.includes(name)}
            onInput={(event) => { const text = event.currentTarget.value; setTyped((before) => ({ ...before, [name]: text })); }} />
          {wrong.includes(name) && <span class="note bad">{t("not_json")}</span>}
        </label>
      ))}
      <div class="buttons">
        <Button kind="primary" icon="check" type="submit" disabled={wrong.length > 0}>{t("approve_changed")}</Button>
        <Button onClick={onCancel}>{t("cancel")}</Button>
      </div>
    </form>
  );
}

function WordsForm({ onDone, onCancel }: Form<string>) {
  const form = useFirstField<HTMLFormElement>();
  const [text, setText] = useState("");
  const submit = (event: Event): void => {
    event.preventDefault();
    if (text.trim()) onDone(text.trim());
  };
  return (
    <form ref={form} onSubmit={submit}>
      <textarea class="field" dir="auto" rows={2} value={text} placeholder={t("what_to_change")} aria-label={t("what_to_change")}
        onInput={(event) => setText(event.currentTarget.value)} />
      <div class="buttons">
        <Button kind="primary" type="submit" disabled={!text.trim()}>{t("send")}</Button>
        <Button onClick={onCancel}>{t("cancel")}</Button>
      </div>
    </form>
  );
}
