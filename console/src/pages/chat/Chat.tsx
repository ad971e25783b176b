import "./chat.css";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, type Listed, remove, returns, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Ask, Dialog } from "../../components/Dialog";
import { Icon } from "../../components/icons";
import { type Entry, Menu } from "../../components/Menu";
import { EmptyState } from "../../components/parts";
import { attempt, toast } from "../../components/Toast";
import { onFeed } from "../../events";
import { Frame } from "../../Frame";
import { ago, t } from "../../i18n";
import { useLoad } from "../../load";
import { matches, useCommands } from "../../palette";
import { go, href, type Route } from "../../router";
import { copy, visible } from "../../text";
import { isComposing } from "../../typing";
import { chatCommands } from "./commands";
import { Composer, type SlashCommand } from "./Composer";
import { Conversation, type Session } from "./conversation";
import { append, draftOf, EMPTY, NEW } from "./drafts";
import { download } from "../../download";
import { History } from "./History";
import { change, erase } from "./list";
import { usePrompts } from "./Prompts";
import { named, Sessions } from "./Sessions";
import { made, unsentIn, writeAgain } from "./outbox";
import { Said } from "./Turn";
import { VersionsRead } from "./Versions";
import { Welcome } from "./Welcome";

export type Agent = Schemas["AgentDescription"];

/** `#/sessions/{id}`; `#/sessions/new` and `#/` begin one with the first message. */
export function Chat({ route }: { route: Route }) {
  const [id, , place] = route.path;
  const agents = useLoad(() => get<Listed<Agent>>("/agents"), []).value?.items ?? [];
  if (id !== undefined && id !== "new") return <Open key={id} id={id} place={place} agents={agents} />;
  return (
    <Frame title={t("new_chat")} side={<Sessions current={undefined} />}>
      <Welcome agents={agents} preferred={route.query.get("agent")} />
    </Frame>
  );
}

type Asked = "rename" | "delete" | "grants" | "branches" | null;

/** `place` is the turn or message that the address names. */
function Open({ id, place, agents }: { id: string; place: string | undefined; agents: Agent[] }) {
  const conversation = useMemo(() => new Conversation(id), [id]);
  const [asked, setAsked] = useState<Asked>(null);
  useEffect(() => {
    const deaf = onFeed((event) => conversation.heard(event));
    return () => {
      deaf();
      conversation.leave();
    };
  }, [conversation]);
  useEffect(() => {
    if (made.peek()?.session === id && conversation.loading.peek()) conversation.begin();
    else void conversation.open(place);
  }, [conversation, returns.value]);
  useStopKey(conversation);
  const session = conversation.session.value;
  const prompts = usePrompts((text) => append(draftOf(id), text));
  const commands = [...slashCommands(conversation, agents, setAsked), ...prompts.commands];
  useCommands((typed) => commands.filter(({ name, label }) => name !== "new" && matches(label, typed)));
  const agent = agents.find((each) => each.id === session?.agent) ?? agents[0];
  const isEmpty = session !== null && session.message_count === 0 && conversation.sent.value.length === 0 && unsentIn(id).length === 0;
  return (
    <Frame title={session === null ? "" : named(session)} side={<Sessions current={id} />}
      actions={session !== null && <SessionActions conversation={conversation} session={session} agents={agents} onAsk={setAsked} />}>
      {conversation.branch.value !== null && (
        <div class="banner inner"><span class="told"><Icon name="branch" size={16} />{t("reading_branch")}</span> <VersionsRead conversation={conversation} /> <Button class="small" onClick={() => void conversation.showBranch(null)}>{t("back_to_chat")}</Button></div>
      )}
      <History conversation={conversation} place={place} />
      {isEmpty && agent?.greeting && <p class="greeting" dir="auto">{visible(agent.greeting)}</p>}
      {conversation.problem.value?.status === 404 && <LeftDraft chat={id} />}
      {conversation.branch.value === null && conversation.problem.value?.status !== 404 && (
        <Composer busy={conversation.live.value !== null} session={id} onSend={(draft) => conversation.say(draft)} commands={commands}
          onStop={() => void conversation.cancel()} webSearch={agent?.web_search ?? false} chat={id} />
      )}
      {prompts.asking}
      <Questions asked={asked} conversation={conversation} onClose={() => setAsked(null)} />
    </Frame>
  );
}

/** What was being written in a chat that is gone, for one that takes it. */
function LeftDraft({ chat }: { chat: string }) {
  const draft = draftOf(chat);
  const { text, files } = draft.value;
  if (text === "" && files.length === 0) return null;
  const move = (): void => {
    writeAgain(NEW, { ...draft.value, files: files.map((file) => ({ ...file, stored: null })) });
    draft.value = EMPTY;
    go(href("sessions", "new"));
  };
  return (
    <div class="composer"><div class="column">
      {text !== "" && <div class="mine"><Said text={visible(text)} /></div>}
      <div class="note"><span>{t("draft_kept")}</span><Button class="small" kind="primary" icon="edit" onClick={move}>{t("draft_to_new")}</Button></div>
    </div></div>
  );
}

/** Esc stops, wherever the focus is, unless something open takes it. */
function useStopKey(conversation: Conversation): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const isTaken = event.defaultPrevented || isComposing(event) || clearsSearch(event) || document.querySelector("dialog[open], .menu, .editing") !== null;
      if (event.key === "Escape" && !isTaken && conversation.live.value !== null) void conversation.cancel();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [conversation]);
}

const clearsSearch = ({ target }: Event): boolean => target instanceof HTMLInputElement && target.type === "search" && target.value !== "";

function slashCommands(conversation: Conversation, agents: Agent[], ask: (asked: Asked) => void): SlashCommand[] {
  const { id } = conversation;
  const turn = async (agent: string): Promise<void> => {
    await change(id, { agent });
    await conversation.refresh();
  };
  return [
    ...chatCommands().map((command) => ({ ...command, name: "new" })),
    ...(conversation.live.value === null ? [] : [{ name: "stop", label: t("stop"), icon: "stop" as const, hint: "Esc", act: () => void conversation.cancel() }]),
    ...(agents.length < 2 ? [] : agents.map((agent): SlashCommand => ({ name: `agent-${agent.id}`, label: t("answered_by", { name: visible(agent.name) }), icon: "user", act: () => void turn(agent.id) }))),
    { name: "rename", label: t("rename"), icon: "edit", act: () => ask("rename") },
    { name: "export", label: t("export_markdown"), icon: "download", act: () => void download(`/sessions/${id}/export`, { format: "markdown" }, `${id}.md`) },
    { name: "export-json", label: t("export_json"), icon: "download", act: () => void download(`/sessions/${id}/export`, { format: "json" }, `${id}.json`) },
    { name: "branches", label: t("branches"), icon: "branch", act: () => ask("branches") },
    { name: "grants", label: t("grants"), icon: "check", act: () => ask("grants") },
    { name: "delete", label: t("delete_chat_command"), icon: "trash", act: () => ask("delete") },
  ];
}

interface ActionsGiven {
  conversation: Conversation;
  session: Session;
  agents: Agent[];
  onAsk: (asked: Asked) => void;
}

function SessionActions({ conversation, session, agents, onAsk }: ActionsGiven) {
  const own = slashCommands(conversation, agents, onAsk).filter(({ name }) => !/^(new|stop|agent-)/.test(name));
  const toggle = async (changes: Schemas["SessionChanges"]): Promise<void> => {
    await change(session.id, changes);
    await conversation.refresh();
  };
  const share = async (): Promise<void> => {
    const did = await copy(location.href);
    toast(t(did ? "link_copied" : "copy_failed"), !did);
  };
  const entries: Entry[] = [
    { label: t(session.pinned ? "unpin" : "pin"), icon: "pin", act: () => void toggle({ pinned: !session.pinned }) },
    { label: t(session.archived ? "unarchive" : "archive"), icon: "archive", act: () => void toggle({ archived: !session.archived }) },
    { label: t("copy_link"), icon: "copy", act: () => void share() },
    ...own.map(({ label, icon, act, name }) => ({ label, icon, act, danger: name === "delete" })),
  ];
  const agent = agents.find(({ id }) => id === session.agent);
  return (
    <>
      {agents.length > 1 && (
        <Menu label={t("agent")} entries={agents.map(({ id, name }) => ({ label: visible(name), icon: "user" as const, chosen: id === session.agent, act: () => void toggle({ agent: id }) }))}>
          <Icon name="user" size={16} /><span dir="auto">{visible(agent?.name ?? session.agent)}</span>
        </Menu>
      )}
      <Menu label={t("more_of", { title: named(session) })} entries={entries} />
    </>
  );
}

function Questions({ asked, conversation, onClose }: { asked: Asked; conversation: Conversation; onClose: () => void }) {
  const session = conversation.session.value;
  if (session === null || asked === null) return null;
  if (asked === "grants") return <Grants conversation={conversation} onClose={onClose} />;
  if (asked === "branches") return <Branches conversation={conversation} onClose={onClose} />;
  if (asked === "delete") return <Ask title={t("delete_chat")} text={t("delete_chat_text", { title: named(session) })} action={t("delete")} danger onClose={onClose} onDone={() => erase(session.id)} />;
  const rename = async (title: string): Promise<void> => {
    await change(session.id, { title: title.trim() || null });
    await conversation.refresh();
  };
  return <Ask title={t("rename")} action={t("rename")} value={session.title ?? ""} label={t("title")} onClose={onClose} onDone={rename} />;
}

function Grants({ conversation, onClose }: { conversation: Conversation; onClose: () => void }) {
  const { value, reload } = useLoad(() => get<Listed<Schemas["Grant"]>>(`${conversation.path}/grants`), [conversation.id]);
  const revoke = async (tool: string): Promise<void> => {
    if (await attempt(() => remove(`${conversation.path}/grants/${encodeURIComponent(tool)}`))) reload();
  };
  return (
    <Dialog title={t("grants")} onClose={onClose}>
      {value?.items.length === 0 && <EmptyState icon="check" title={t("no_grants")} />}
      <ul class="list">
        {value?.items.map(({ tool, in_force, created_at }) => (
          <li key={tool}>
            <span class="grow"><code>{visible(tool)}</code> <span class="muted">{in_force ? ago(created_at) : t("grant_over")}</span></span>
            <Button class="small" onClick={() => void revoke(tool)}>{t("revoke")}</Button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

function Branches({ conversation, onClose }: { conversation: Conversation; onClose: () => void }) {
  const { value } = useLoad(() => get<Listed<Schemas["Branch"]>>(`${conversation.path}/branches`), [conversation.id]);
  const show = (branch: string): void => {
    onClose();
    void conversation.showBranch(branch);
  };
  return (
    <Dialog title={t("branches")} onClose={onClose}>
      {value?.items.length === 0 && <EmptyState icon="branch" title={t("no_branches")} />}
      <ul class="list">
        {value?.items.map(({ id, first_words, created_at, message_count }) => (
          <li key={id}>
            <span class="grow"><span dir="auto">{visible(first_words)}</span> <span class="muted">{t("n_messages", { n: message_count })} · {ago(created_at)}</span></span>
            <Button class="small" onClick={() => show(id)}>{t("read")}</Button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
