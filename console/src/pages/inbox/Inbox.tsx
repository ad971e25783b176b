/** What others ask the caller to decide on, to the letter, and the decision. */
import { useEffect, useState } from "preact/hooks";
import { post } from "../../api";
import { Button } from "../../components/Button";
import { Icon } from "../../components/icons";
import { EmptyState, Failure, Spinner } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { Frame } from "../../Frame";
import { ago, roleOf, t, time } from "../../i18n";
import { me, user } from "../../me";
import { href } from "../../router";
import { visible } from "../../text";
import { Arguments } from "../chat/Arguments";
import { decides, problem, readWaiting, type Waiting, waiting } from "./waiting";

export function Inbox() {
  useEffect(() => void readWaiting(), []);
  const found = me.value !== null && !decides(me.value) ? [] : waiting.value;
  return (
    <Frame title={t("page_inbox")}>
      <div class="page unattended">
        <p class="muted">{t("inbox_text")}</p>
        {problem.value !== null && <Failure problem={problem.value} onRetry={() => void readWaiting()} />}
        {found === null && problem.value === null && <Spinner />}
        {found?.length === 0 && <EmptyState icon="shield" title={t("ops_no_approvals")} />}
        <ul class="asks" aria-label={t("page_inbox")}>
          {found?.map((each) => <li key={`${each.plan_id} ${each.version}`}><One of={each} /></li>)}
        </ul>
      </div>
    </Frame>
  );
}

function One({ of }: { of: Waiting }) {
  const { asker, session_id, steps, told, messages, since, expires_at } = of;
  return (
    <article class="card" aria-label={t("inbox_asks", { user: visible(asker) })}>
      <header class="head">
        <Icon name="shield" size={16} /><h2 class="title">{t("inbox_asks", { user: visible(asker) })}</h2>
        {asker === user.value && <a class="aside" href={href("sessions", session_id)}>{t("ops_open_chat")}</a>}
      </header>
      <div class="body">
        {steps.map((step) => (
          <section key={step.id}>
            <p dir="auto">{visible(step.description)}</p>
            <p><code>{visible(step.tool ?? "")}</code></p>
            <Arguments step={step} before={undefined} />
          </section>
        ))}
        {told && <details><summary>{t("inbox_told", { user: visible(asker) })}</summary><p class="said" dir="auto">{visible(told)}</p></details>}
        {messages?.map(({ role, content, at }) => <p key={at} class="said muted" dir="auto">{roleOf(role)}: {visible(content)}</p>)}
        <small class="muted" title={time(since)}>{ago(since)} · {t("ops_until")}: {time(expires_at)}</small>
        <Decide of={of} />
      </div>
    </article>
  );
}

/** On the version that is shown: if it has changed or was decided, the service says so and nothing happens. */
function Decide({ of: { plan_id, version, status } }: { of: Waiting }) {
  const [busy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const decide = async (decision: "confirm" | "reject"): Promise<void> => {
    setBusy(true);
    const more = decision === "reject" && reason.trim() ? { reason: reason.trim() } : {};
    const done = await attempt(async () => {
      const { status } = await post<Waiting>(`/approvals/${plan_id}/decision`, { decision, version, ...more });
      toast(t(decision === "reject" ? "ops_rejected" : status === "waiting" ? "inbox_one_more" : "ops_approved"));
    });
    setBusy(false);
    await readWaiting();
    if (done) setReason("");
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
