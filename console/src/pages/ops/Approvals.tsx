import type { Schemas } from "../../api";
import { t } from "../../i18n";
import { me } from "../../me";
import { Foreign, Id, List, to, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

/** What waits for anybody's yes, without its words. The caller's own is given in the chat. */
export function Approvals(_: OpsView) {
  const waiting = usePaged<Schemas["OpsApproval"]>("/ops/approvals", {}, 5000);
  return (
    <>
      <p class="muted">{t("ops_approvals_text")}</p>
      <List of={waiting} label={t("ops_approvals")} icon="check" empty={t("ops_no_approvals")} keyOf={({ plan_id }) => plan_id} columns={[
        { label: t("ops_user"), cell: ({ user }) => <a href={to("ops/turns", { owner: user })}><Foreign text={user} /></a> },
        { label: t("ops_session"), cell: ({ session_id }) => <a href={`#/ops/sessions/${session_id}`}><Id id={session_id} /></a> },
        { label: t("ops_tool"), cell: ({ tool }) => <Foreign text={tool} /> },
        { label: t("ops_since"), cell: ({ since }) => <When at={since} /> },
        { label: t("ops_until"), cell: ({ expires_at }) => <When at={expires_at} /> },
        { label: t("ops_acts"), unsaid: true, end: true, cell: ({ session_id, user }) => user === me.value?.user && <a class="button small" href={`#/sessions/${session_id}`}>{t("ops_open_chat")}</a> },
      ]} />
    </>
  );
}
