import { useEffect, useState } from "preact/hooks";
import { returns } from "../../api";
import { Button } from "../../components/Button";
import { Ask } from "../../components/Dialog";
import { Icon } from "../../components/icons";
import { type Entry, Menu } from "../../components/Menu";
import { Spinner } from "../../components/parts";
import { Windowed } from "../../components/Windowed";
import { ago, period, t } from "../../i18n";
import { go, href } from "../../router";
import { visible } from "../../text";
import { waitsFor } from "./PlanCard";
import { archived, change, erase, followSessions, type Found, loaded, moreSessions, readSessions, searched, sessions, unread } from "./list";

export function Sessions({ current }: { current: string | undefined }) {
  const [asked, setAsked] = useState<{ kind: "rename" | "delete"; session: Found } | null>(null);
  useEffect(() => followSessions(), []);
  useEffect(() => {
    const timer = setTimeout(() => void readSessions(), searched.value ? 200 : 0);
    return () => clearTimeout(timer);
  }, [searched.value, archived.value, returns.value]);
  const entries = (session: Found): Entry[] => [
    { label: t(session.pinned ? "unpin" : "pin"), icon: "pin", act: () => void change(session.id, { pinned: !session.pinned }) },
    { label: t("rename"), icon: "edit", act: () => setAsked({ kind: "rename", session }) },
    { label: t(session.archived ? "unarchive" : "archive"), icon: "archive", act: () => void change(session.id, { archived: !session.archived }) },
    { label: t("delete"), icon: "trash", danger: true, act: () => setAsked({ kind: "delete", session }) },
  ];
  const isWaiting = !loaded.value || (sessions.value.length === 0 && unread.value);
  return (
    <>
      <div class="side-head">
        <Button kind="primary" icon="plus" class="grow" onClick={() => go(href("sessions", "new"))}>{t("new_chat")}</Button>
      </div>
      <div class="side-search">
        <Icon name="search" size={16} />
        <input class="field" type="search" placeholder={t("search_chats")} aria-label={t("search_chats")} value={searched.value} dir="auto"
          onInput={(event) => (searched.value = event.currentTarget.value)} />
        <Button kind="quiet" icon="archive" label={t("archived")} aria-pressed={archived.value} onClick={() => (archived.value = !archived.value)} />
      </div>
      {isWaiting && <div class="side-note"><Spinner /></div>}
      {!isWaiting && sessions.value.length === 0 && <p class="side-note muted">{t(searched.value || archived.value ? "nothing_found" : "no_chats")}</p>}
      <Windowed label={t("chats")} class="sessions" items={sessions.value} height={54} keyOf={({ id }) => id} onEnd={() => void moreSessions()} group={searched.value ? undefined : groupOf}
        row={(session) => <Row session={session} current={session.id === current} entries={entries(session)} />} />
      {asked?.kind === "rename" && (
        <Ask title={t("rename")} action={t("rename")} value={asked.session.title ?? ""} label={t("title")} onClose={() => setAsked(null)}
          onDone={(title) => change(asked.session.id, { title: title.trim() || null })} />
      )}
      {asked?.kind === "delete" && (
        <Ask title={t("delete_chat")} text={t("delete_chat_text", { title: named(asked.session) })} action={t("delete")} danger
          onClose={() => setAsked(null)} onDone={() => erase(asked.session.id)} />
      )}
    </>
  );
}

const groupOf = ({ pinned, updated_at: at }: Found): string => (pinned ? t("pinned") : period(at));

export const named = ({ title }: { title: string | null }): string => visible(title ?? "") || t("untitled");

function Row({ session, current, entries }: { session: Found; current: boolean; entries: Entry[] }) {
  return (
    <div class="session" data-current={current}>
      <a href={session.message_id ? href("sessions", session.id, "messages", session.message_id) : href("sessions", session.id)} aria-current={current ? "page" : undefined}>
        <span class="name" dir="auto">{named(session)}</span>
        <span class="about">
          {session.running_turn_id !== null && <span class="dot busy" role="img" aria-label={t("running")} title={t("running")} />}
          {session.running_turn_id === null && session.pending_plan != null && <span class="dot warn" role="img" aria-label={waitsFor(session.pending_plan)} title={waitsFor(session.pending_plan)} />}
          {session.pinned && <Icon name="pin" size={12} />}
          <span class="grow"><bdi>{session.snippet && session.snippet !== session.title ? visible(session.snippet) : ago(session.updated_at)}</bdi></span>
        </span>
      </a>
      <Menu label={t("more_of", { title: named(session) })} entries={entries} class="small" />
    </div>
  );
}
