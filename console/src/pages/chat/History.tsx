/** The turns of a conversation, the newest at the foot. It follows what is written until the reader scrolls up, and reads on where they come near an end. */
import { useComputed } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { returns } from "../../api";
import { Button } from "../../components/Button";
import { EmptyState, Failure, Spinner } from "../../components/parts";
import { toast } from "../../components/Toast";
import { t } from "../../i18n";
import type { Conversation, Sent } from "./conversation";
import { unsentIn } from "./outbox";
import { waitsFor } from "./PlanCard";
import { LiveTurn, Turn } from "./Turn";
import { liveBlocks, type Shown, turnsOf } from "./turns";
import { Mine, Unsent, Waiting } from "./Unsent";

interface Given {
  conversation: Conversation;
  /** The turn or message that the address names. */
  place: string | undefined;
}

export function History({ conversation, place }: Given) {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(place === undefined);
  const last = useRef(0);
  const [away, setAway] = useState(false);
  const { problem, loading, messages, live, sent, older, newer, id } = conversation;
  const onScroll = (): void => {
    const shown = box.current;
    if (shown === null) return;
    const [from, to] = [last.current, foot(shown)];
    last.current = shown.scrollTop;
    // what was added since it was brought to its foot is no reason to leave it: only the reader goes up
    const isLeft = !atEnd.current || shown.scrollTop < from || shown.scrollTop > to;
    atEnd.current = newer.value === null && (!isLeft || Math.abs(to - shown.scrollTop) < 60);
    keepsAnchor(shown, !atEnd.current);
    seeHowFar(shown);
  };
  const seeHowFar = (shown: HTMLElement): void => setAway(!atEnd.current && (newer.value !== null || shown.scrollHeight - shown.scrollTop - shown.clientHeight > 600));
  const toEnd = async (): Promise<void> => {
    await conversation.toEnd();
    atEnd.current = true;
    if (box.current === null) return;
    keepsAnchor(box.current, false);
    box.current.scrollTo({ top: box.current.scrollHeight });
  };
  useAim(conversation, place, box, atEnd);
  useFollow(box, atEnd, seeHowFar);
  usePlaceKept(conversation, box, atEnd);
  useFocusKept(box);
  const own = unsentIn(id).length + sent.value.length;
  useEffect(() => {
    if (own > 0) void toEnd();
  }, [own]);
  const isEmpty = messages.value.length === 0 && live.value === null && own === 0;
  const near = { box, on: [messages.value, returns.value] };
  return (
    <div class="history-frame">
      <div class="history" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label={t("messages")} aria-live="off">
        <div class="column">
          {problem.value !== null && (messages.value.length > 0 || problem.value.status !== 404) && <Failure problem={problem.value} onRetry={() => void conversation.open()} />}
          {problem.value?.status === 404 && isEmpty && <EmptyState icon="search" title={t("chat_not_found")} />}
          {loading.value && isEmpty && <div class="older"><Spinner /></div>}
          {older.value !== null && <Edge {...near} onNear={() => void conversation.more("older")} />}
          <Past conversation={conversation} place={place} />
          {newer.value === null ? <Now conversation={conversation} place={place} /> : <Edge {...near} onNear={() => void conversation.more("newer")} />}
        </div>
      </div>
      {away && <Button class="to-end" icon="chevron" label={t("to_end")} onClick={() => void toEnd()} />}
      <Told conversation={conversation} />
    </div>
  );
}

/** Read aloud: that an answer is under way, what became of it, and whom it waits for. Nothing on opening. */
function Told({ conversation: { live, messages, session } }: { conversation: Conversation }) {
  const ran = useRef(false);
  ran.current ||= live.value !== null;
  const ended = messages.value.findLast(({ turn }) => turn != null)?.turn?.status;
  const asks = session.value?.pending_plan;
  const outcome = asks != null ? waitsFor(asks) : ended === undefined ? "" : t(`turn_${ended}`);
  return <p class="unseen" role="status">{live.value !== null ? t("working") : ran.current ? outcome : ""}</p>;
}

interface EdgeGiven {
  box: RefObject<HTMLDivElement | null>;
  onNear: () => void;
  /** It looks again when one of these has changed. */
  on: unknown[];
}

/** Stands where there is more to read, and asks for it before it is seen. */
function Edge({ box, onNear, on }: EdgeGiven) {
  const mark = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (mark.current === null) return undefined;
    const watched = new IntersectionObserver((seen) => seen.some(({ isIntersecting }) => isIntersecting) && onNear(), { root: box.current, rootMargin: "1200px 0px" });
    watched.observe(mark.current);
    return () => watched.disconnect();
  }, on);
  return <div class="older" ref={mark}><Spinner /></div>;
}

/** The turns up to the one that runs; `behind` it, those that wait for its end. */
function Past({ conversation, place, behind = false }: Given & { behind?: boolean }) {
  const runs = useComputed(() => conversation.live.value?.turnId ?? null);
  const turns = useComputed(() => turnsOf(conversation.messages.value, runs.value, conversation.newer.value === null)).value;
  const aimed = place === undefined ? undefined : conversation.turnOf(place);
  const last = new Map<string, string>();
  for (const turn of turns) if (turn.summary?.plan_id) last.set(turn.summary.plan_id, turn.id);
  const end = turns.findIndex(({ id }) => id === runs.value) + 1 || turns.length;
  return (
    <>
      {turns.slice(behind ? end : 0, behind ? turns.length : end).filter((turn) => turn.id !== runs.value || turn.blocks.length > 0).map((turn) => (
        <Turn key={turn.id} turn={turn} conversation={conversation} aimed={turn.id === aimed} plan={planOf(turn, last, conversation)} />
      ))}
    </>
  );
}

const planOf = ({ id, summary }: Shown, last: Map<string, string>, { plans }: Conversation) =>
  summary?.plan_id && last.get(summary.plan_id) === id ? (plans.value.get(summary.plan_id) ?? null) : null;

/** What was sent and is answered now stands above what the turn brings, what waits stands below. */
function Now({ conversation, place }: Given) {
  const live = conversation.live.value;
  const sent = conversation.sent.value;
  const waiting = unsentIn(conversation.id).filter(({ key }) => !sent.some(({ id }) => id === key));
  const isAnswered = ({ queued, turnId }: Sent): boolean => !queued || (live !== null && turnId === live.turnId);
  const draw = (each: Sent) => (
    <Mine key={each.id} draft={each.draft} state={isAnswered(each) ? undefined : "queued"}>
      {!isAnswered(each) && each.turnId !== null && <Waiting conversation={conversation} turnId={each.turnId} draft={each.draft} steers={each.draft.whileBusy === "steer"} />}
    </Mine>
  );
  const isBegun = ({ key }: { key: string }): boolean => key === conversation.saying.value;
  return (
    <>
      {sent.filter(isAnswered).map(draw)}
      {waiting.filter(isBegun).map((item) => <Mine key={item.key} draft={item.draft} />)}
      {live !== null && <LiveTurn live={live} blocks={liveBlocks(live)} conversation={conversation} />}
      <Past conversation={conversation} place={place} behind />
      {sent.filter((each) => !isAnswered(each)).map(draw)}
      {waiting.filter((item) => !isBegun(item)).map((item) => <Unsent key={item.key} item={item} />)}
    </>
  );
}

/** Goes to the place that the address names: one page is read if it is not shown. */
function useAim(conversation: Conversation, place: string | undefined, box: RefObject<HTMLDivElement | null>, atEnd: { current: boolean }): void {
  const loaded = !conversation.loading.value;
  useEffect(() => {
    if (place === undefined || !loaded) return;
    atEnd.current = false;
    void conversation.show(place).then((found) => {
      const turn = conversation.turnOf(place);
      if (!found) toast(t("turn_not_found"), true);
      else if (turn !== undefined) requestAnimationFrame(() => box.current?.querySelector(`[id="${CSS.escape(turn)}"]`)?.scrollIntoView({ block: "start" }));
    });
  }, [conversation, place, loaded]);
}

/** Where to scroll for the newest: to the end, or to the head of a card that asks, with nothing said after it, if the end is more than a window below. */
function foot(shown: HTMLElement): number {
  const card = shown.querySelector(".turn:not(:has(~ .mine)) .card:has(.question)");
  const end = shown.scrollHeight - shown.clientHeight;
  return card === null ? end : Math.min(end, card.getBoundingClientRect().top - shown.getBoundingClientRect().top + shown.scrollTop - 12);
}

/** Whether the browser holds on to what is seen when the rest changes. At the foot it would hold on to the answer under way, and lose a message that is refused and then stands below it. */
const keepsAnchor = (shown: HTMLElement, does: boolean): void => void (shown.style.overflowAnchor = does ? "" : "none");

/** Keeps the foot in sight while it is, and tells what has grown below a reader who left it. */
function useFollow(box: RefObject<HTMLDivElement | null>, atEnd: { current: boolean }, onGrown: (shown: HTMLElement) => void): void {
  useEffect(() => {
    const shown = box.current;
    const column = shown?.firstElementChild;
    if (!shown || !column) return undefined;
    const watched = new ResizeObserver(() => {
      if (atEnd.current) shown.scrollTop = foot(shown);
      onGrown(shown);
    });
    watched.observe(column);
    watched.observe(shown);
    return () => watched.disconnect();
  }, []);
}

/** What has the focus goes with what was decided or taken back. Then it is where one writes, or, where that opens a keyboard, on the whole. */
function useFocusKept(box: RefObject<HTMLDivElement | null>): void {
  useEffect(() => {
    const shown = box.current;
    if (shown === null) return undefined;
    let last: EventTarget | null = null;
    const come = ({ target }: FocusEvent): void => void (last = target);
    const left = (event: PointerEvent): void => void (shown.contains(event.target as Node) || (last = null));
    const watched = new MutationObserver(() => {
      if (!(last instanceof Element) || last.isConnected || document.activeElement !== document.body) return;
      last = null;
      const writes = matchMedia("(hover: hover)").matches ? document.querySelector<HTMLElement>(".composer textarea") : null;
      (writes ?? shown).focus({ preventScroll: true });
    });
    shown.addEventListener("focusin", come);
    addEventListener("pointerdown", left);
    watched.observe(shown, { childList: true, subtree: true });
    return () => {
      watched.disconnect();
      shown.removeEventListener("focusin", come);
      removeEventListener("pointerdown", left);
    };
  }, []);
}

/** Keeps what is read in its place when messages come in above it, or leave. */
function usePlaceKept({ messages }: Conversation, box: RefObject<HTMLDivElement | null>, atEnd: { current: boolean }): void {
  const held = useRef<{ element: Element; top: number } | null>(null);
  useEffect(() => messages.subscribe(() => (held.current = topmost(box.current))), [messages]);
  useLayoutEffect(() => {
    const { element, top } = held.current ?? {};
    if (box.current !== null && element?.isConnected && top !== undefined && !atEnd.current) box.current.scrollTop += element.getBoundingClientRect().top - top;
    held.current = null;
  }, [messages.value]);
}

/** The first part of a turn that is seen, and where. */
function topmost(box: HTMLElement | null): { element: Element; top: number } | null {
  if (box === null) return null;
  const edge = box.getBoundingClientRect().top;
  const isSeen = (element: Element): boolean => element.getBoundingClientRect().bottom > edge;
  const turn = [...box.querySelectorAll(".turn")].find(isSeen);
  const element = turn && ([...turn.children].find(isSeen) ?? turn);
  return element ? { element, top: element.getBoundingClientRect().top } : null;
}
