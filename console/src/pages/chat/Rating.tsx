/** What the user thinks of an answer: a thumb, and a comment on it. Pressing the thumb again takes both back. */
import { useState } from "preact/hooks";
import type { Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Ask } from "../../components/Dialog";
import { t } from "../../i18n";
import { visible } from "../../text";
import type { Conversation } from "./conversation";
import type { Message } from "./live";

export function Rating({ message, conversation }: { message: Message; conversation: Conversation }) {
  const [asked, setAsked] = useState(false);
  const given = (message.metadata as { feedback?: Schemas["MessageFeedback"] } | undefined)?.feedback;
  const thumb = (rating: "up" | "down") => {
    const pressed = given?.rating === rating;
    return (
      <Button kind="quiet" class="small" icon={rating} label={t(`rate_${rating}`)} aria-pressed={pressed}
        onClick={() => void conversation.rate(message.id, { rating: pressed ? null : rating })} />
    );
  };
  return (
    <>
      {thumb("up")}
      {thumb("down")}
      {given && <Button kind="quiet" class="small" icon="chat" label={t("comment")} onClick={() => setAsked(true)} />}
      {given?.comment && <span class="muted comment" dir="auto" title={visible(given.comment)}>{visible(given.comment)}</span>}
      {asked && given && (
        <Ask title={t("comment")} action={t("send")} value={given.comment ?? ""} atMost={2000} onClose={() => setAsked(false)}
          onDone={(comment) => conversation.rate(message.id, { ...given, comment: comment.trim() || null })} />
      )}
    </>
  );
}
