import type { Schemas } from "../../api";
import { Badge } from "../../components/parts";
import { t } from "../../i18n";
import { go } from "../../router";
import { Choice, Foreign, Id, List, to, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

export function Feedback({ query }: OpsView) {
  const rating = query.get("rating");
  const said = usePaged<Schemas["Feedback"]>("/feedback", { rating }, 10_000);
  const among = { "": t("ops_all"), up: t("ops_rated_up"), down: t("ops_rated_down") };
  return (
    <>
      <div class="filters"><Choice label={t("ops_rating")} value={rating ?? ""} among={among} onChange={(value) => go(to("ops/feedback", { rating: value }), { replace: true })} /></div>
      <List of={said} label={t("ops_feedback")} icon="star" empty={t("ops_no_feedback")} keyOf={({ message_id }) => message_id} columns={[
        { label: t("ops_when"), cell: ({ created_at }) => <When at={created_at} /> },
        { label: t("ops_rating"), cell: ({ rating: rated }) => <Badge mood={rated === "up" ? "good" : "bad"}>{t(`ops_rated_${rated}`)}</Badge> },
        { label: t("comment"), cell: ({ comment }) => <Foreign text={comment} /> },
        { label: t("user"), cell: ({ user }) => <a href={to("ops/turns", { owner: user })}><Foreign text={user} /></a> },
        { label: t("ops_session"), cell: ({ session_id }) => <a href={`#/ops/sessions/${session_id}`}><Id id={session_id} /></a> },
        { label: t("ops_turn"), cell: ({ turn_id }) => <a href={`#/ops/turns/${turn_id}`}><Id id={turn_id} /></a> },
      ]} />
    </>
  );
}
