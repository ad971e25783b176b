/** What others ask the caller to decide on, to the letter, and the decision. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { post } from "../../api";
import { Button } from "../../components/Button";
import { Icon } from "../../components/icons";
import { EmptyState, Failure, Spinner } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { Frame } from "../../Frame";
import { ago, roleOf, t, type Text, time } from "../../i18n";
import { me, user } from "../../me";
import { href } from "../../router";
import { visible } from "../../text";
import { Arguments } from "../chat/Arguments";
import { decides, problem, readWaiting, type Waiting, waiting } from "./waiting";

/** A decision, by what it was on. */
type Decided = Map<string, Text>;
const keyOf = ({ plan_id, version }: Waiting): string => `${plan_id} ${version}`;

export function Inbox() {
  const [isRead, setRead] = useState(false);
  useEffect(() => void readWaiting().then(() => setRead(true)), []);
  const isAsked = me.value === null || decides(me.value);
  const found = !isAsked ? [] : isRead ? waiting.value : null;
  return (
    <Frame title={t("page_inbox")}>
      <div class="page unattended">
        <p class="muted">{t("inbox_text")}</p>
        {problem.value !== null && <Failure problem={problem.value} onRetry={() => void readWaiting()} />}
        {found === null && problem.value === null && <Spinner />}
        {found?.length === 0 && <EmptyState icon="shield" title={t("ops_no_approvals")} />}
        {found !== null && found.length > 0 && <Kept found={found} />}
      </div>
    </Frame>
  );
}

/** What is on the page stays in its place until the page is left, and what came since is shown when it is asked for: no other question comes under the hand that decides. */
function Kept({ found }: { found: Waiting[] }) {
  const [kept, setKept] = useState(found);
  const [decided, setDecided] = useState<Decided>(new Map());
  const now = new Map(found.map((each) => [each.plan_id, each]));
  const isOpen = (of: Waiting): boolean => !decided.has(keyOf(of));
  const known = new Set(kept.map((of) => (isOpen(of) ? of.plan_id : keyOf(of))));
  const fresh = found.filter((each) => !known.has(each.plan_id) && !known.has(keyOf(each)));
  const showAgain = (of: Waiting, is: Waiting): void => setKept(kept.map((each) => (each === of ? is : each)));
  return (
    <>
      <div class="fresh" role="status">{fresh.length > 0 && <Button icon="shield" onClick={() => setKept([...fresh, ...kept])}>{t("inbox_new", { n: fresh.length })}</Button>}</div>
      <ul class="asks" aria-label={t("page_inbox")}>
        {kept.map((of) => {
          const is = now.get(of.plan_id);
          const told = decided.get(keyOf(of)) ?? (is === undefined ? "inbox_over" : undefined);
          const isChanged = is !== undefined && is.version !== of.version;
          return (
            <li key={isOpen(of) ? of.plan_id : keyOf(of)}>
              <One of={of} over={told !== undefined}>
                {told !== undefined ? <Over told={t(told)} isOwn={!isOpen(of)} />
                  : isChanged ? <div class="note warn" role="alert"><Icon name="alert" size={15} /><span>{t("inbox_changed")}</span><Button class="small" onClick={() => showAgain(of, is)}>{t("inbox_look_again")}</Button></div>
                  : <Decide of={of} onDone={(what) => setDecided((before) => new Map(before).set(keyOf(of), what))} />}
              </One>
            </li>
          );
        })}
      </ul>
    </>
  );
}

/** What became of a question, in the place of its buttons. The focus that these had goes on from there. */
function Over({ told, isOwn }: { told: string; isOwn: boolean }) {
  const note = useRef<HTMLParagraphElement>(null);
  useLayoutEffect(() => {
    if (isOwn && document.activeElement === document.body) note.current?.focus();
  }, []);
  return <p class="note" ref={note} tabIndex={-1}>{told}</p>;
}

interface OneGiven {
  of: Waiting;
  /** Nothing is left to decide. */
  over: boolean;
  children: ComponentChildren;
}

function One({ of, over, children }: OneGiven) {
  const { asker, session_id, steps, told, messages, since, expires_at, version } = of;
  const card = useRef<HTMLElement>(null);
  const read = useRef(version);
  useLayoutEffect(() => {
    if (read.current !== version) card.current?.focus(); // it is read from its head again
    read.current = version;
  }, [version]);
  return (
    <article ref={card} tabIndex={-1} class={over ? "card over" : "card"} aria-label={[t("inbox_asks", { user: visible(asker) }), ...steps.map(({ description }) => visible(description))].join(": ")}>
      <header class="head">
        <Icon name="shield" size={16} /><h2 class="title">{t("inbox_asks", { user: visible(asker) })}</h2>
        {asker === user.value && <a class="aside" href={href("sessions", session_id)}>{t("ops_open_chat")}</a>}
      </header>
      <div class="body">
        {steps.map((step) => (
          <section key={step.id}>
            <p dir="auto">{visible(step.description)}</p>
            <p><code>{visible(step.tool ?? "")}</code></p>
            <Arguments step={step} asker={asker === user.value ? undefined : asker} />
          </section>
        ))}
        {told && <details><summary>{t("inbox_told", { user: visible(asker) })}</summary><p class="said" dir="auto">{visible(told)}</p></details>}
        {messages?.map(({ role, content, at }) => <p key={at} class="said muted" dir="auto">{roleOf(role)}: {visible(content)}</p>)}
        <small class="muted" title={time(since)}>{ago(since)} · {t("ops_until")}: {time(expires_at)}</small>
        {children}
      </div>
    </article>
  );
}

/** On the version that is shown: if it has changed or was decided, the service says so and nothing happens. */
function Decide({ of: { plan_id, version, status }, onDone }: { of: Waiting; onDone: (what: Text) => void }) {
  const [busy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const decide = async (decision: "confirm" | "reject"): Promise<void> => {
    setBusy(true);
    const more = decision === "reject" && reason.trim() ? { reason: reason.trim() } : {};
    await attempt(async () => {
      const { status } = await post<Waiting>(`/approvals/${plan_id}/decision`, { decision, version, ...more });
      const what = decision === "reject" ? "ops_rejected" : status === "waiting" ? "inbox_one_more" : "ops_approved";
      toast(t(what));
      onDone(what);
    });
    setBusy(false);
    await readWaiting();
  };
  if (status !== "waiting") return null;
  return (
    <div class="buttons">
      <input class="field" dir="auto" maxLength={500} value={reason} placeholder={t("inbox_reason")} aria-label={t("inbox_reason")}
        onInput={(event) => setReason(event.currentTarget.value)} />
      <Button kind="primary" icon="check" disabled={busy} onClick={() => decide("confirm")}>{t("approve")}</Button>
      <Button disabled={busy} onClick={() => decide("reject")}>{t("reject")}</Button>
    </div>
  );
}
