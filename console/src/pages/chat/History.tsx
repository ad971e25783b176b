/** The turns of a conversation, the newest at the foot. It follows what is written until the reader scrolls up. */
import { useComputed } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "../../components/Button";
import { EmptyState, Failure, Spinner } from "../../components/parts";
import { explained, toast } from "../../components/Toast";
import { t } from "../../i18n";
import { visible } from "../../text";
import type { Conversation, Sent } from "./conversation";
import { FileChip, LiveTurn, Turn } from "./Turn";
import { liveBlocks, type Shown, turnsOf } from "./turns";

interface Given {
  conversation: Conversation;
  /** The turn that the address names. */
  aimed: string | undefined;
}

export function History({ conversation, aimed }: Given) {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(aimed === undefined);
  const [away, setAway] = useState(false);
  const { problem, loading, messages, live, sent } = conversation;
  const onScroll = (): void => {
    const shown = box.current;
    if (shown === null) return;
    atEnd.current = Math.abs(foot(shown) - shown.scrollTop) < 60;
    setAway(!atEnd.current && shown.scrollHeight - shown.scrollTop - shown.clientHeight > 600);
    if (shown.scrollTop < 300) void conversation.older();
  };
  const toEnd = (): void => {
    atEnd.current = true;
    box.current?.scrollTo({ top: box.current.scrollHeight });
  };
  useAim(conversation, aimed, box);
  useFollow(box, atEnd);
  useEffect(() => {
    if (sent.value.length > 0) toEnd();
  }, [sent.value.length]);
  const isEmpty = messages.value.length === 0 && live.value === null && sent.value.length === 0;
  return (
    <div class="history-frame">
      <div class="history" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label={t("messages")} aria-live="off">
        <div class="column">
          {problem.value !== null && (messages.value.length > 0 || problem.value.status !== 404) && <Failure problem={problem.value} onRetry={() => void conversation.open()} />}
          {problem.value?.status === 404 && isEmpty && <EmptyState icon="search" title={t("chat_not_found")} />}
          {loading.value && conversation.hasOlder && <div class="older"><Spinner /></div>}
          {loading.value && isEmpty && <div class="older"><Spinner /></div>}
          <Past conversation={conversation} aimed={aimed} />
          <Now conversation={conversation} />
        </div>
      </div>
      {away && <Button class="to-end" icon="chevron" label={t("to_end")} onClick={toEnd} />}
      <p class="unseen" role="status">{live.value === null ? "" : t("working")}</p>
    </div>
  );
}

function Past({ conversation, aimed }: Given) {
  const running = conversation.live.value?.turnId ?? null;
  const turns = useComputed(() => turnsOf(conversation.messages.value, conversation.live.value?.turnId ?? null)).value;
  const last = new Map<string, string>();
  for (const turn of turns) if (turn.summary?.plan_id) last.set(turn.summary.plan_id, turn.id);
  return (
    <>
      {turns.filter((turn) => turn.id !== running || turn.blocks.length > 0).map((turn) => (
        <Turn key={turn.id} turn={turn} conversation={conversation} aimed={turn.id === aimed} plan={planOf(turn, last, conversation)} />
      ))}
    </>
  );
}

const planOf = ({ id, summary }: Shown, last: Map<string, string>, { plans }: Conversation) =>
  summary?.plan_id && last.get(summary.plan_id) === id ? (plans.value.get(summary.plan_id) ?? null) : null;

/** What was sent and is answered now stands above what the turn brings, what waits for its end stands below. */
function Now({ conversation }: { conversation: Conversation }) {
  const live = conversation.live.value;
  const isAnswered = ({ state, turnId }: Sent): boolean => state === "sending" || (live !== null && turnId === live.turnId);
  const draw = (each: Sent) => <SentMessage key={each.id} sent={each} conversation={conversation} />;
  return (
    <>
      {conversation.sent.value.filter(isAnswered).map(draw)}
      {live !== null && <LiveTurn live={live} blocks={liveBlocks(live)} conversation={conversation} />}
      {conversation.sent.value.filter((each) => !isAnswered(each)).map(draw)}
    </>
  );
}

function SentMessage({ sent, conversation }: { sent: Sent; conversation: Conversation }) {
  const again = (): void => {
    conversation.dropSent(sent);
    void conversation.say(sent.draft);
  };
  return (
    <div class="mine" data-state={sent.state}>
      <div class="bubble" dir="auto">{visible(sent.draft.text)}</div>
      {sent.draft.files.map((file) => <FileChip key={file.id} name={file.name} size={file.size_bytes} />)}
      {sent.state === "queued" && <span class="muted small-note">{t(sent.draft.whileBusy === "steer" ? "will_steer" : "queued")}</span>}
      {sent.problem !== null && (
        <div class="note bad" role="alert">
          <span dir="auto">{explained(sent.problem)}</span>
          <Button class="small" icon="redo" onClick={again}>{t("try_again")}</Button>
          <Button class="small" kind="quiet" icon="cross" label={t("drop_message")} onClick={() => conversation.dropSent(sent)} />
        </div>
      )}
    </div>
  );
}

/** Scrolls to the turn of the address once it is loaded. */
function useAim(conversation: Conversation, aimed: string | undefined, box: RefObject<HTMLDivElement | null>): void {
  const loaded = !conversation.loading.value;
  useEffect(() => {
    if (aimed === undefined || !loaded) return;
    void conversation.find(aimed).then((found) => {
      if (found) requestAnimationFrame(() => box.current?.querySelector(`[id="${CSS.escape(aimed)}"]`)?.scrollIntoView({ block: "start" }));
      else toast(t("turn_not_found"), true);
    });
  }, [conversation, aimed, loaded]);
}

/** Where to scroll for the newest: to the end, or to the head of a card that asks if the end is more than a window below. */
function foot(shown: HTMLElement): number {
  const card = shown.querySelector(".card:has(.question)");
  const end = shown.scrollHeight - shown.clientHeight;
  return card === null ? end : Math.min(end, card.getBoundingClientRect().top - shown.getBoundingClientRect().top + shown.scrollTop - 12);
}

/** Keeps the foot in sight while it is, and what is read in its place when older turns come in above. */
function useFollow(box: RefObject<HTMLDivElement | null>, atEnd: { current: boolean }): void {
  useEffect(() => {
    const shown = box.current;
    const column = shown?.firstElementChild;
    if (!shown || !column) return undefined;
    const watched = new ResizeObserver(() => {
      if (atEnd.current) shown.scrollTop = foot(shown);
    });
    watched.observe(column);
    watched.observe(shown);
    return () => watched.disconnect();
  }, []);
}
