import type { Schemas } from "../../api";
import { number, share, t } from "../../i18n";
import { go } from "../../router";
import { Choice, dollars, Foreign, List, to, usePaged } from "./parts";
import type { OpsView } from "./Ops";

const GROUPS = ["day", "model", "user", "session"] as const;

/** What the last thirty days took. By user it is of all, else of one: the caller, or the one asked for. */
export function Usage({ query }: OpsView) {
  const group = GROUPS.find((each) => each === query.get("group")) ?? "user";
  const user = query.get("user");
  const totals = usePaged<Schemas["UsageTotal"]>("/usage", { group, user });
  const set = (given: Record<string, string>): void => go(to("ops/usage", { ...Object.fromEntries(query), ...given }), { replace: true });
  return (
    <>
      <div class="filters">
        <Choice label={t("ops_by")} value={group} among={Object.fromEntries(GROUPS.map((each) => [each, t(`ops_by_${each}`)]))} onChange={(value) => set({ group: value })} />
        <p class="muted">{user === null ? t(group === "user" ? "ops_usage_all" : "ops_usage_own") : <>{t("ops_user")}: <Foreign text={user} /></>}</p>
      </div>
      <List of={totals} label={t("ops_usage")} icon="gauge" empty={t("nothing_found")} keyOf={({ key }) => key ?? ""} columns={[
        { label: t(`ops_by_${group}`), cell: ({ key }) => key !== null && group === "user" ? <a href={to("ops/usage", { group: "day", user: key })}><Foreign text={key} /></a> : <Foreign text={key ?? t("ops_deleted_sessions")} /> },
        { label: t("ops_model_calls"), end: true, cell: ({ llm_calls }) => number(llm_calls) },
        { label: t("ops_sent"), end: true, cell: ({ input_tokens }) => number(input_tokens) },
        { label: t("ops_cached"), end: true, cell: ({ cached_tokens, input_tokens }) => share(cached_tokens, input_tokens) },
        { label: t("ops_received"), end: true, cell: ({ output_tokens }) => number(output_tokens) },
        { label: t("ops_cost"), end: true, cell: ({ cost, cost_complete }) => dollars(cost, cost_complete) },
      ]} />
    </>
  );
}
