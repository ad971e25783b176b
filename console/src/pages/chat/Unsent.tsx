/** A message on its way: waiting for the service, or refused, with why and what to do. */
import { Problem, reachable } from "../../api";
import { Button, useBusy } from "../../components/Button";
import { Icon } from "../../components/icons";
import { explained } from "../../components/Toast";
import { t } from "../../i18n";
import { isOps } from "../../me";
import { visible } from "../../text";
import type { Conversation } from "./conversation";
import type { Draft } from "./drafts";
import { discard, dropFile, takeBack, takeBackAsFile, tryAgain, type Unsent as Item } from "./outbox";
import { FileChip, Said } from "./Turn";

/** Shorter ones are taken by every service: a MAX_MESSAGE_CHARS is no smaller. */
const LONG = 1000;

export function Unsent({ item }: { item: Item }) {
  const { refused, draft } = item;
  const isStuck = refused !== null || !reachable.value;
  const isLong = refused?.code === "invalid_request" && item.path === "chat" && draft.text.length >= LONG;
  return (
    <Mine draft={draft} state={refused === null ? "queued" : "refused"} onDrop={refused === null ? undefined : (file) => dropFile(item, file)}>
      {refused === null && <span class="muted small-note" role="status">{t(reachable.value ? "sending" : "sent_when_back")}</span>}
      {isStuck && (
        <div class={refused === null ? "note" : "note bad"} role={refused === null ? undefined : "alert"}>
          {refused !== null && !draft.files.some(({ problem }) => problem !== null) && <span dir="auto">{isLong ? `${t("message_long", { n: draft.text.length })} ${isOps() ? visible(refused.detail) : ""}` : explained(new Problem(refused.code, refused.status, refused.title, refused.detail))}</span>}
          {isLong && <Button class="small" icon="clip" onClick={() => takeBackAsFile(item)}>{t("as_file")}</Button>}
          {refused !== null && !isLong && <Button class="small" icon="redo" onClick={() => tryAgain(item)}>{t("try_again")}</Button>}
          {item.path === "chat" && <Button class="small" kind="quiet" icon="edit" label={t("edit")} onClick={() => takeBack(item)} />}
          <Button class="small" kind="quiet" icon="cross" label={t("drop_message")} onClick={() => discard(item)} />
        </div>
      )}
    </Mine>
  );
}

/** Of a message that the service has and has not begun with: that it waits, and the ways to take it back. */
export function Waiting({ conversation, turnId, draft, steers = false }: { conversation: Conversation; turnId: string; draft: Draft; steers?: boolean }) {
  const [busy, once] = useBusy();
  const takeBack = (kept: Draft | null): void => void once(() => conversation.takeBack(turnId, kept));
  return (
    <div class="note waits">
      <Icon name="clock" size={15} />{t(steers ? "will_steer" : "queued")}
      <Button class="small" kind="quiet" icon="edit" label={t("edit")} disabled={busy} onClick={() => takeBack(draft)} />
      <Button class="small" kind="quiet" icon="cross" label={t("drop_message")} disabled={busy} onClick={() => takeBack(null)} />
    </div>
  );
}

interface MineGiven {
  draft: Draft;
  state?: "queued" | "refused" | undefined;
  onDrop?: ((file: Draft["files"][number]) => void) | undefined;
  children?: preact.ComponentChildren;
}

/** What the user said, as it was sent. */
export const Mine = ({ draft, state, onDrop, children }: MineGiven) => (
  <div class="mine" data-state={state}>
    <Said text={visible(draft.text)} />
    {draft.files.map((file) => (
      <FileChip key={file.key} name={file.name} size={file.size} busy={file.stored === null} problem={file.problem} onDrop={onDrop && (() => onDrop(file))} />
    ))}
    {children}
  </div>
);
