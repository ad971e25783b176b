import { useState } from "preact/hooks";
import { get, pages, post, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Icon } from "../../components/icons";
import { EmptyState, Failure } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { t } from "../../i18n";
import { problemOf, useLoad } from "../../load";
import { me } from "../../me";
import { visible } from "../../text";
import { Arguments, NotYours } from "../chat/Arguments";
import { Foreign, Id, Shown, to, ToolName, usePaged, WhenSaid } from "./parts";
import type { OpsView } from "./Ops";

type Waiting = Schemas["OpsApproval"];
type Step = Schemas["Step"];
const EVERY_MS = 5000;

async function own(signal: AbortSignal): Promise<Map<string, Schemas["Approval"]>> {
  const found = new Map<string, Schemas["Approval"]>();
  for await (const page of pages<Schemas["Approval"]>("/approvals", { limit: 200 }, Infinity, signal)) for (const each of page) if (each.asker === me.value?.user) found.set(each.plan_id, each);
  return found;
}

/** What waits for anybody's yes. The caller's own has its words and is decided here; those of others are read on demand. */
export function Approvals(_: OpsView) {
  const waiting = usePaged<Waiting>("/ops/approvals", {}, EVERY_MS);
  const mine = useLoad(own, [], EVERY_MS);
  const reload = (): void => {
    waiting.list.reload();
    mine.reload();
  };
  return (
    <Shown of={waiting.list}>
      {(found) => found.length === 0 ? <EmptyState icon="shield" title={t("ops_no_approvals")} /> : (
        <>
          <ul class="asks" aria-label={t("ops_approvals")}>
            {found.map((each) => <li key={`${each.plan_id} ${each.version}`}><One of={each} step={stepOf(mine.value?.get(each.plan_id), each)} onDone={reload} /></li>)}
          </ul>
          {waiting.more !== null && <div class="more"><Button onClick={waiting.more}>{t("ops_more")}</Button></div>}
        </>
      )}
    </Shown>
  );
}

/** Of the version that is shown, or null. */
const stepOf = (approval: Schemas["Approval"] | undefined, { version }: Waiting): Step | null => (approval?.version === version ? approval.step : null);

function One({ of, step, onDone }: { of: Waiting; step: Step | null; onDone: () => void }) {
  const { session_id, user, tool, since, expires_at } = of;
  return (
    <article class="card">
      <header class="head">
        <Icon name="shield" size={16} />
        <span class="title">{tool === null ? <Foreign text={null} /> : <ToolName name={tool} />}</span>
        <span class="aside"><a href={to("ops/turns", { owner: user })}><Foreign text={user} /></a><a href={`#/ops/sessions/${session_id}`}><Id id={session_id} /></a></span>
      </header>
      <div class="body">
        {step !== null ? <Words step={step} /> : me.value?.scopes.includes("ops:content") && <OfOthers session={session_id} user={user} />}
        <footer class="lead">
          <small class="muted"><WhenSaid at={since} as="ops_asked" /> · <WhenSaid at={expires_at} as="ops_expires" /></small><span class="grow" />
          {user === me.value?.user && <a class="button small" href={`#/sessions/${session_id}`}>{t("ops_open_chat")}</a>}
          {step !== null && <Decide of={of} onDone={onDone} />}
        </footer>
      </div>
    </article>
  );
}

const Words = ({ step, asker }: { step: Step; asker?: string }) => (
  <>
    <p dir="auto">{visible(step.description)}</p>
    <Arguments step={step} asker={asker} />
    <NotYours steps={[step]} asker={asker} />
  </>
);

/** Reading what another user said is in the audit, so it is asked for. */
function OfOthers({ session, user }: { session: string; user: string }) {
  const [found, setFound] = useState<Step | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const read = async (): Promise<void> => {
    try {
      const plan = (await get<Schemas["OpsSession"]>(`/ops/sessions/${session}`)).content?.plan;
      setFound(plan && "steps" in plan ? (plan.steps.find(({ status }) => status === "waiting") ?? null) : null);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  if (found !== null) return <Words step={found} asker={user} />;
  return <>{problem !== null && <Failure problem={problemOf(problem)} />}<p><Button class="small" icon="eye" title={t("ops_words_hint")} onClick={read}>{t("ops_show_words")}</Button></p></>;
}

function Decide({ of: { session_id, version }, onDone }: { of: Waiting; onDone: () => void }) {
  const [busy, setBusy] = useState(false);
  const decide = async (decision: "confirm" | "reject"): Promise<void> => {
    setBusy(true);
    if (await attempt(() => post("/approvals/decisions", { items: [{ session_id, version, decision }] }))) toast(t(decision === "confirm" ? "ops_approved" : "ops_rejected"));
    setBusy(false);
    onDone();
  };
  return (
    <>
      <Button class="small" disabled={busy} onClick={() => decide("reject")}>{t("reject")}</Button>
      <Button class="small" kind="primary" icon="check" disabled={busy} onClick={() => decide("confirm")}>{t("approve")}</Button>
    </>
  );
}
