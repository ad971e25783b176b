import { useState } from "preact/hooks";
import { post, remove, type Schemas } from "../../api";
import { Button, CopyButton, useBusy } from "../../components/Button";
import { Ask, Dialog } from "../../components/Dialog";
import { Badge, EmptyState } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { t } from "../../i18n";
import { visible } from "../../text";
import { Filters, Foreign, Id, List, NONE, usePaged, When } from "./parts";
import type { OpsView } from "./Ops";

type Key = Schemas["OpsKey"];
type New = Schemas["OpsNewKey"];
const SCOPES = ["ops", "ops:content", "act_as"] as const;
const OVERLAP_S = 3600;

export function Keys({ query }: OpsView) {
  const keys = usePaged<Key>("/ops/keys", { user: query.get("user") }, 10_000);
  const [asked, setAsked] = useState<{ act: "revoke" | "rotate"; key: Key } | "new" | null>(null);
  const [made, setMade] = useState<New | null>(null);
  if (keys.list.problem?.code === "no_api_keys") return <EmptyState icon="key" title={t("ops_no_api_keys")}><p>{t("ops_no_api_keys_text")}</p></EmptyState>;
  const done = async (act: () => Promise<New | null>): Promise<boolean> => {
    const did = await attempt(async () => setMade(await act()));
    keys.list.reload();
    return did;
  };
  const close = (): void => setAsked(null);
  return (
    <>
      <Filters path="ops/keys" query={query} names={{ user: t("user") }}><Button kind="primary" icon="plus" onClick={() => setAsked("new")}>{t("ops_new_key")}</Button></Filters>
      <List of={keys} label={t("ops_keys")} icon="key" empty={t("ops_no_keys")} keyOf={({ id }) => id} columns={[
        { label: t("ops_key"), cell: ({ id, name }) => <span class="stacked"><Foreign text={name} /><small><Id id={id} /></small></span> },
        { label: t("user"), cell: ({ user, groups }) => <span class="stacked"><Foreign text={user} />{groups.length > 0 && <small>{t("ops_groups")}: <Foreign text={groups.join(", ")} /></small>}</span> },
        { label: t("ops_scopes"), cell: ({ scopes }) => (scopes.length === 0 ? NONE : scopes.map((scope) => <code key={scope} class="scope">{visible(scope)}</code>)) },
        { label: t("status"), cell: ({ works, revoked_at }) => <Badge mood={works ? "good" : "neutral"}>{t(works ? "ops_key_works" : revoked_at ? "ops_key_revoked" : "ops_key_ended")}</Badge> },
        { label: t("ops_made"), cell: ({ created_at }) => <When at={created_at} /> },
        { label: t("ops_last_used"), cell: ({ last_used_at }) => <When at={last_used_at} /> },
        { label: t("ops_ends_at"), cell: ({ revoked_at, expires_at }) => <When at={revoked_at ?? expires_at} /> },
        { label: t("ops_acts"), unsaid: true, end: true, cell: (key) => key.works && <Acts key_={key} onAct={(act) => setAsked({ act, key })} /> },
      ]} />
      {asked === "new" && <NewKey onClose={close} onDone={(body) => done(() => post<New>("/ops/keys", body))} />}
      {asked !== null && asked !== "new" && asked.act === "revoke" && (
        <Ask title={t("ops_revoke_title")} text={t("ops_revoke_text")} action={t("ops_revoke")} danger onClose={close}
          onDone={() => done(async () => { await remove(`/ops/keys/${asked.key.id}`); toast(t("ops_key_revoked")); return null; })} />
      )}
      {asked !== null && asked !== "new" && asked.act === "rotate" && (
        <Ask title={t("ops_rotate_title")} text={t("ops_rotate_text")} action={t("ops_rotate")} onClose={close}
          onDone={() => done(() => post<New>(`/ops/keys/${asked.key.id}/rotate`, { overlap_s: OVERLAP_S }))} />
      )}
      {made !== null && <Secret of={made} onClose={() => setMade(null)} />}
    </>
  );
}

const Acts = ({ key_, onAct }: { key_: Key; onAct: (act: "revoke" | "rotate") => void }) => {
  const name = visible(key_.name ?? key_.id);
  return (
    <span class="acts">
      <Button class="small" icon="swap" label={`${t("ops_rotate")}: ${name}`} onClick={() => onAct("rotate")} />
      <Button class="small" kind="danger" icon="trash" label={`${t("ops_revoke")}: ${name}`} onClick={() => onAct("revoke")} />
    </span>
  );
};

function NewKey({ onClose, onDone }: { onClose: () => void; onDone: (body: Schemas["KeyToMake"]) => Promise<boolean> }) {
  const [user, setUser] = useState("");
  const [name, setName] = useState("");
  const [until, setUntil] = useState("");
  const [scopes, setScopes] = useState<(typeof SCOPES)[number][]>([]);
  const [busy, once] = useBusy();
  const make = async (): Promise<void> => {
    if (await onDone({ user: user.trim(), name: name.trim() || null, scopes, expires_at: until === "" ? null : new Date(until).toISOString() })) onClose();
  };
  const submit = (event: Event): void => {
    event.preventDefault();
    void once(make);
  };
  return (
    <Dialog title={t("ops_new_key")} onClose={onClose}>
      <form onSubmit={submit}>
        <label class="named">{t("user")}<input class="field" value={user} required autoFocus dir="auto" onInput={(event) => setUser(event.currentTarget.value)} /></label>
        <label class="named">{t("ops_key_name")}<input class="field" value={name} dir="auto" onInput={(event) => setName(event.currentTarget.value)} /></label>
        <fieldset class="choices">
          <legend>{t("ops_scopes")}</legend>
          {SCOPES.map((scope) => (
            <label key={scope}>
              <input type="checkbox" checked={scopes.includes(scope)} onChange={() => setScopes(scopes.includes(scope) ? scopes.filter((each) => each !== scope) : [...scopes, scope])} />
              <code dir="ltr">{scope}</code>
            </label>
          ))}
        </fieldset>
        <label class="named">{t("ops_ends_at")}<input class="field" type="datetime-local" value={until} onInput={(event) => setUntil(event.currentTarget.value)} /><small>{t("ops_never_hint")}</small></label>
        <footer><Button onClick={onClose}>{t("cancel")}</Button><Button kind="primary" type="submit" disabled={busy || !user.trim()}>{t("ops_make")}</Button></footer>
      </form>
    </Dialog>
  );
}

/** Only its button closes it: what it shows is not shown again. */
const Secret = ({ of, onClose }: { of: New; onClose: () => void }) => (
  <Dialog title={t("ops_secret")}>
    <p>{t("ops_secret_text", { user: visible(of.key.user) })}</p>
    <p class="secret"><code dir="ltr">{of.secret}</code><CopyButton text={of.secret} /></p>
    <footer class="end"><Button kind="primary" onClick={onClose}>{t("ops_secret_kept")}</Button></footer>
  </Dialog>
);
