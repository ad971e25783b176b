/** ‹ 2/3 ›: the versions of a message that was edited or answered anew, the oldest first. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Schemas } from "../../api";
import { Button } from "../../components/Button";
import { number, t } from "../../i18n";
import type { Conversation } from "./conversation";

type Branch = Schemas["Branch"];

/** The versions that one of is read: branches, and null for the history. */
const read = signal<{ conversation: Conversation; versions: (string | null)[] } | null>(null);

/** Of what left the history between these `seq`s. What is shown first has none while there may be more before it. */
export function Versions({ conversation, after, before }: { conversation: Conversation; after: number; before: number }) {
  useEffect(() => void conversation.readBranches(before), [conversation, before]);
  const left = conversation.branches.value.filter(({ from_seq: seq }) => after < seq && seq < before);
  const isKnown = after > 0 || conversation.older.value === null;
  const versions = isKnown && left.length > 0 ? [...alternatives(left).map(({ id }) => id), null] : [];
  return <Pager conversation={conversation} versions={versions} />;
}

/** The same while an earlier one is read. */
export const VersionsRead = ({ conversation }: { conversation: Conversation }) =>
  read.value?.conversation === conversation ? <Pager conversation={conversation} versions={read.value.versions} /> : null;

function Pager({ conversation, versions }: { conversation: Conversation; versions: (string | null)[] }) {
  const at = versions.indexOf(conversation.branch.value);
  if (versions.length < 2 || at < 0) return null;
  const show = (version: string | null | undefined): void => {
    if (version === undefined) return;
    read.value = { conversation, versions };
    void conversation.showBranch(version);
  };
  return (
    <div class="versions" role="group" aria-label={t("version_of", { n: at + 1, total: versions.length })}>
      <Button kind="quiet" class="small back" icon="chevron" label={t("version_before")} disabled={at === 0} onClick={() => show(versions[at - 1])} />
      <span class="nums">{number(at + 1)}/{number(versions.length)}</span>
      <Button kind="quiet" class="small" icon="chevron" label={t("version_after")} disabled={at === versions.length - 1 || conversation.live.value !== null} onClick={() => show(versions[at + 1])} />
    </div>
  );
}

/** Without those that were in a later one, which left with more than they are. */
function alternatives(left: Branch[]): Branch[] {
  let first = Infinity;
  const newest = left.toSorted((one, other) => other.created_at.localeCompare(one.created_at));
  return newest.filter(({ from_seq: seq }) => seq <= first && ((first = seq), true)).toReversed();
}
