/** What operators do to tools: try them again, and hold them for everyone. */
import { useState } from "preact/hooks";
import { post, put, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Dialog } from "../../components/Dialog";
import { attempt, toast } from "../../components/Toast";
import { t } from "../../i18n";
import { visible } from "../../text";

interface Given {
  onClose: () => void;
  onDone: () => void;
}

const SCOPES = ["all", "fleet", "sessions"] as const;

export function Reset({ tool, onClose, onDone }: Given & { tool: string | null }) {
  const [scope, setScope] = useState<(typeof SCOPES)[number]>("all");
  const [session, setSession] = useState("");
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body: Schemas["FleetReset"] = { scope, all: tool === null, tool_name: tool, session_id: scope === "sessions" && session.trim() !== "" ? session.trim() : null };
    if (!(await attempt(() => post("/tool-states/reset", body)))) return;
    toast(t("ops_was_reset"));
    onDone();
    onClose();
  };
  return (
    <Dialog title={tool === null ? t("ops_reset_all") : t("ops_reset_one", { name: visible(tool) })} onClose={onClose}>
      <form onSubmit={submit}>
        <p>{t("ops_reset_text")}</p>
        <fieldset class="choices">
          <legend>{t("ops_where")}</legend>
          {SCOPES.map((each) => (
            <label key={each}><input type="radio" name="scope" checked={scope === each} onChange={() => setScope(each)} />{t(`ops_scope_${each}`)}</label>
          ))}
        </fieldset>
        {scope === "sessions" && (
          <label class="named">{t("ops_only_session")}
            <input class="field" value={session} placeholder="ses_…" dir="ltr" onInput={(event) => setSession(event.currentTarget.value)} />
          </label>
        )}
        <footer><Button onClick={onClose}>{t("cancel")}</Button><Button kind="primary" type="submit">{t("ops_reset")}</Button></footer>
      </form>
    </Dialog>
  );
}

const STATUSES = ["maintenance", "unavailable", "available"] as const;

/** `held` if operators hold it now: then lifting that is the first choice. */
export function Maintain({ tool, held, onClose, onDone }: Given & { tool: string; held: boolean }) {
  const [status, setStatus] = useState<(typeof STATUSES)[number]>(held ? "available" : "maintenance");
  const [reason, setReason] = useState("");
  const [until, setUntil] = useState("");
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const holds = status !== "available";
    const body: Schemas["FleetStatusChange"] = { status, reason: reason.trim() || null, until: holds && until !== "" ? new Date(until).toISOString() : null };
    if (!(await attempt(() => put(`/tool-states/${encodeURIComponent(tool)}`, body)))) return;
    toast(t("ops_was_set"));
    onDone();
    onClose();
  };
  return (
    <Dialog title={t("ops_maintain_one", { name: visible(tool) })} onClose={onClose}>
      <form onSubmit={submit}>
        <fieldset class="choices">
          <legend>{t("status")}</legend>
          {STATUSES.map((each) => (
            <label key={each}><input type="radio" name="status" checked={status === each} onChange={() => setStatus(each)} />{t(`ops_set_${each}`)}</label>
          ))}
        </fieldset>
        <label class="named">{t("ops_reason")}
          <input class="field" value={reason} maxLength={500} dir="auto" placeholder={t("ops_reason_hint")} onInput={(event) => setReason(event.currentTarget.value)} />
        </label>
        {status !== "available" && (
          <label class="named">{t("ops_ends")}
            <input class="field" type="datetime-local" value={until} onInput={(event) => setUntil(event.currentTarget.value)} />
            <small class="muted">{t("ops_ends_hint")}</small>
          </label>
        )}
        <footer><Button onClick={onClose}>{t("cancel")}</Button><Button kind="primary" type="submit">{t("ops_set")}</Button></footer>
      </form>
    </Dialog>
  );
}
