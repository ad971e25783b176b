/** The caller's yeses that last: what each allows, how much of it is used, and a button to take it back. */
import { useEffect } from "preact/hooks";
import { get, type Listed, remove, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { attempt } from "../../components/Toast";
import { onFeed } from "../../events";
import { t, time } from "../../i18n";
import { useLoad } from "../../load";
import { visible } from "../../text";

type Mandate = Schemas["Mandate"];

const SIGNS: Record<string, string> = { equals: "=", one_of: "∈", max: "≤", prefix: "^=", origin: "←" };
const written = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));
const counted = (used: number, most: number | null | undefined): string => (most == null ? `${used}` : `${used}/${most}`);

export function Mandates() {
  const mandates = useLoad(async (signal) => (await get<Listed<Mandate>>("/mandates", { limit: 200 }, signal)).items, []);
  useEffect(() => onFeed((event) => event.type === "mandate_changed" && mandates.reload()), [mandates.reload]);
  if (!mandates.value?.length) return null;
  const revoke = async ({ id }: Mandate): Promise<void> => {
    if (await attempt(() => remove(`/mandates/${id}`))) mandates.reload();
  };
  return (
    <section class="usage" aria-label={t("mandates")}>
      <h2>{t("mandates")}</h2>
      <dl class="mandates">
        {mandates.value.map((each) => (
          <div key={each.id}>
            <dt><code>{visible(each.tool)}</code> <Bounds mandate={each} /></dt>
            <dd><Button class="small" onClick={() => void revoke(each)}>{t("revoke")}</Button></dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Bounds({ mandate: { args, scope, agent, uses, used, sum, unattended, valid_until, in_force } }: { mandate: Mandate }) {
  const bounds = Object.entries(args).flatMap(([path, bound]) =>
    Object.entries(bound).map(([kind, value]) => `${path} ${SIGNS[kind] ?? kind} ${written(value)}`));
  const told = [
    t(`mandate_${scope}`, { agent: agent ?? "" }),
    t("mandate_uses", { total: counted(used.total, uses.total), today: counted(used.today, uses.per_day) }),
    sum ? `Σ ${sum.path}: ${counted(used.sum, sum.max)}` : "",
    unattended ? t("mandate_unattended") : "",
    valid_until ? t("mandate_until", { when: time(valid_until) }) : "",
    in_force ? "" : t("mandate_over"),
  ];
  return (
    <span class="muted">
      {bounds.map((bound) => <><code dir="auto">{visible(bound)}</code> </>)}
      {told.filter(Boolean).map(visible).join(" · ")}
    </span>
  );
}
