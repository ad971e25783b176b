/** What is shown of one session: a window of its history, and the turn that runs. The history is what counts. */
import { batch, signal } from "@preact/signals";
import { get, type Listed, newKey, post, Problem, put, type Query, type Schemas } from "../../api";
import { attempt, toast } from "../../components/Toast";
import { type FeedEvent, isPassing, turnEvents } from "../../events";
import { t } from "../../i18n";
import { problemOf } from "../../load";
import { type Draft, EMPTY } from "./drafts";
import { apply, begun, type Live, type Message, type Plan } from "./live";
import { bodyOf, deliverBy, enqueue, post202, type Unsent, writeAgain } from "./outbox";

export type Session = Schemas["Session"];
export type Turn = Schemas["Turn"];
type Page = Listed<Message> & { previous_cursor: string | null };
const PAGE = 40;
/** What lies farther from the reader is taken off the page, and read again when they come back to it. */
const MOST = 6 * PAGE;

/** What the service has accepted and the history does not have yet. */
export interface Sent {
  id: string;
  draft: Draft;
  queued: boolean;
  turnId: string | null;
}

/** What was sent with a message, as it is sent again. */
export function filesOf(message: Message | undefined): Draft["files"] {
  const { attachments = [] } = (message?.metadata ?? {}) as { attachments?: Schemas["Attachment"][] };
  return attachments.map((stored) => ({ key: stored.id, name: stored.name, size: stored.size_bytes, stored, problem: null }));
}

export class Conversation {
  readonly session = signal<Session | null>(null);
  /** Oldest first. */
  readonly messages = signal<Message[]>([]);
  readonly plans = signal<Map<string, Plan>>(new Map());
  readonly attempts = signal<Map<string, number>>(new Map());
  readonly live = signal<Live | null>(null);
  readonly sent = signal<Sent[]>([]);
  readonly problem = signal<Problem | null>(null);
  readonly loading = signal(true);
  readonly branch = signal<string | null>(null);
  /** The cursors to what lies before and behind the messages that are shown; null at an end. */
  readonly older = signal<string | null>(null);
  readonly newer = signal<string | null>(null);
  /** What of the outbox is being sent here. */
  readonly saying = signal<string | null>(null);
  /** The cursors at the ends of the pages that were read, by the seq that stands there. */
  private readonly edges = { older: new Map<number, string | null>(), newer: new Map<number, string | null>() };
  /** What left the history, as far as it was asked for. */
  readonly branches = signal<Schemas["Branch"][]>([]);
  /** The turns that ended while this was shown: only their failures are news. */
  readonly ended = new Set<string>();
  private branchesBefore = 0;
  /** Counts what was asked for, so that an answer that was overtaken is not drawn. */
  private asked = 0;
  private drawn = 0;
  private moves = 0;
  private reading: Promise<boolean> | null = null;
  private opening: Promise<void> = Promise.resolve();
  private readonly stop = new AbortController();
  private readonly undeliver: () => void;
  private frame = 0;
  private running: Live | null = null;

  constructor(readonly id: string) {
    this.undeliver = deliverBy(id, (item) => this.deliver(item));
  }

  get path(): string {
    return `/sessions/${this.id}`;
  }

  /** Reads the newest page, or at first the one around a turn or message, and follows the turn that runs. */
  open(around?: string): Promise<void> {
    return (this.opening = this.read(around));
  }

  /** The same for a session that was just made for a message, which does not wait for it. */
  begin(): void {
    void this.read();
  }

  private async read(around?: string): Promise<void> {
    this.loading.value = this.messages.value.length === 0;
    if (around !== undefined && this.loading.value) await this.show(around);
    await this.refresh();
    this.loading.value = false;
    void this.followOpenTurn();
  }

  leave(): void {
    this.undeliver();
    this.stop.abort();
    cancelAnimationFrame(this.frame);
  }

  /** Reads session, newest messages and plans again, and keeps what was loaded before them. Away from the end it reads no messages. */
  async refresh(): Promise<void> {
    const [asked, branch] = [(this.asked += 1), this.branch.value];
    try {
      const [session, page, plans] = await Promise.all([
        get<Session>(this.path),
        this.newer.value === null ? this.newest() : null,
        get<Listed<Plan>>(`${this.path}/plans`, { limit: 50 }),
      ]);
      if (this.stop.signal.aborted || branch !== this.branch.value || asked < this.drawn) return;
      this.drawn = asked;
      batch(() => {
        this.session.value = session;
        this.plans.value = new Map(plans.items.map((plan) => [plan.id, plan]));
        this.problem.value = null;
        if (page !== null && this.newer.value === null) this.renew(page);
      });
    } catch (error) {
      if (!this.stop.signal.aborted) this.problem.value = problemOf(error);
    }
  }

  /** The newest page, with those before it as far as the messages that are shown: a turn may bring more than one. */
  private async newest(): Promise<Page> {
    let page = await this.page({});
    while (this.isBeyond(page) && page.items.length < MOST) {
      const before = await this.page({ cursor: page.next_cursor });
      page = { ...page, items: [...before.items, ...page.items], next_cursor: before.next_cursor };
    }
    return page;
  }

  /** Whether there may be messages between those that are shown and the page, so that they cannot stand beside each other. */
  private isBeyond({ items, next_cursor }: Page): boolean {
    const [last, first] = [this.messages.value.at(-1)?.seq, items[0]?.seq ?? 0];
    return next_cursor !== null && last !== undefined && last < first;
  }

  private renew(page: Page): void {
    const newest = page.items;
    const first = newest[0]?.seq ?? 0;
    const before = this.messages.value.filter(({ seq }) => seq < first);
    const isGap = this.isBeyond(page);
    if (before.length === 0 || isGap) this.older.value = page.next_cursor;
    this.messages.value = isGap ? newest : [...before, ...newest];
    const stored = new Set(newest.flatMap(({ turn_id, role, content }) => (role === "user" ? [turn_id, content] : [turn_id])));
    this.sent.value = this.sent.value.filter(({ turnId, draft }) => !(stored.has(turnId ?? "") || stored.has(draft.text)));
  }

  /** Reads on before or behind what is shown; who asks while it is read waits for it. False if there is no more, or it failed. */
  more(way: "older" | "newer"): Promise<boolean> {
    return (this.reading ??= this.readMore(way).finally(() => (this.reading = null)));
  }

  private readMore(way: "older" | "newer"): Promise<boolean> {
    const cursor = this[way].value;
    if (cursor === null) return Promise.resolve(false);
    return attempt(async () => {
      const page = await this.page({ cursor, order: way === "older" ? "desc" : "asc" });
      if (this[way].value !== cursor) return;
      batch(() => {
        const all = way === "older" ? [...page.items, ...this.messages.value] : [...this.messages.value, ...page.items];
        this[way].value = way === "older" ? page.next_cursor : page.previous_cursor;
        this.messages.value = this.within(all, way);
      });
    });
  }

  /** At most MOST messages of these: what is cut off at the other end is whole pages, so that a cursor leads back. */
  private within(all: Message[], grown: "older" | "newer"): Message[] {
    if (all.length <= MOST) return all;
    const { older, newer } = this.edges;
    const at = grown === "older" ? all.findLastIndex(({ seq }, index) => index < MOST && newer.get(seq)) : all.findIndex(({ seq }, index) => index >= all.length - MOST && older.get(seq));
    if (at === -1) return all;
    const seq = all[at]?.seq ?? 0;
    if (grown === "older") this.newer.value = newer.get(seq) ?? null;
    else this.older.value = older.get(seq) ?? null;
    return grown === "older" ? all.slice(0, at + 1) : all.slice(at);
  }

  /** Shows the page around a message or a turn, unless it is shown or another was asked for meanwhile; false if it is not in the history. */
  async show(around: string): Promise<boolean> {
    if (this.turnOf(around) !== undefined) return true;
    const [moved, branch] = [(this.moves += 1), this.branch.value];
    try {
      const page = await this.page({ around });
      if (moved !== this.moves || branch !== this.branch.value) return true;
      batch(() => {
        [this.older.value, this.newer.value] = [page.next_cursor, page.previous_cursor];
        this.messages.value = page.items;
      });
      return true;
    } catch (error) {
      if (problemOf(error).status !== 404) this.problem.value = problemOf(error);
      return false;
    }
  }

  /** The turn of this id, or with the message of this id, if it is shown. */
  turnOf(around: string): string | undefined {
    return this.messages.value.find(({ id, turn_id }) => id === around || turn_id === around)?.turn_id;
  }

  /** Shows the newest messages. */
  async toEnd(): Promise<void> {
    if (this.newer.value === null) return;
    this.clear();
    await this.refresh();
  }

  private clear(): void {
    this.moves += 1;
    batch(() => {
      this.messages.value = [];
      this.older.value = this.newer.value = null;
    });
  }

  /** Shows the messages that an edit took out of the history; null for the history. */
  async showBranch(branch: string | null): Promise<void> {
    this.branch.value = branch;
    this.clear();
    await this.refresh();
  }

  /** Reads what left the history before a message. Only a newer one can have more before it. */
  async readBranches(before: number): Promise<void> {
    if (before <= this.branchesBefore) return;
    this.branchesBefore = before;
    const { items } = await get<Listed<Schemas["Branch"]>>(`${this.path}/branches`, { limit: 200 }).catch(() => ({ items: this.branches.value }));
    this.branches.value = items;
  }

  /** A page with its messages in their order: `next_cursor` leads to older ones, `previous_cursor` to newer ones. */
  private async page(query: Query): Promise<Page> {
    const asked: Query = { order: "desc", limit: PAGE, include: "turn", branch: this.branch.value, ...query };
    const { items, next_cursor, previous_cursor } = await get<Page>(`${this.path}/messages`, asked);
    const page = asked["order"] === "asc" ? { items, next_cursor: previous_cursor, previous_cursor: next_cursor } : { items: items.toReversed(), next_cursor, previous_cursor };
    this.edges.older.set(page.items[0]?.seq ?? 0, page.next_cursor);
    this.edges.newer.set(page.items.at(-1)?.seq ?? 0, page.previous_cursor);
    return page;
  }

  /** Says it once the service is there; while a turn runs it steers that turn, or waits for its end. */
  say(draft: Draft): void {
    enqueue(this.id, draft);
  }

  private async deliver(item: Unsent): Promise<boolean> {
    await this.opening;
    await this.toEnd();
    if (this.stop.signal.aborted) return false;
    if (this.live.value !== null) {
      const { turn_id } = await post202(item);
      this.accepted(item, turn_id, true);
      void this.followOpenTurn();
      return true;
    }
    this.saying.value = item.key;
    const [, replaced] = /^messages\/([^/]+)/.exec(item.path) ?? [];
    if (replaced !== undefined) this.cut(replaced);
    const begin = { path: `${this.path}/${item.path}`, body: bodyOf(item), key: item.key };
    return new Promise((resolve, reject) => {
      void this.run({ begin }, null, (turn) => {
        this.saying.value = null;
        if (typeof turn === "string") this.accepted(item, turn, false);
        if (turn instanceof Problem) reject(turn);
        else resolve(turn !== null);
      });
    });
  }

  private accepted({ key, draft }: Unsent, turnId: string, queued: boolean): void {
    this.sent.value = [...this.sent.value, { id: key, draft, queued, turnId }];
  }

  edit(message: string, text: string, files: string[] = []): void {
    const said = this.messages.value.find(({ id }) => id === message);
    enqueue(this.id, { ...EMPTY, text, files: filesOf(said).filter(({ key }) => files.includes(key)) }, { path: `messages/${message}/edit` });
  }

  regenerate(message: string): Promise<boolean> {
    return this.anew(`messages/${message}/regenerate`, {}, message);
  }

  retry(turn: string): Promise<boolean> {
    return this.anew(`turns/${turn}/retry`, {});
  }

  rate(message: string, feedback: Schemas["MessageFeedback"]): Promise<boolean> {
    return attempt(async () => {
      const { metadata = {} } = await put<Schemas["Message"]>(`${this.path}/messages/${message}/feedback`, feedback);
      this.messages.value = this.messages.value.map((each) => (each.id === message ? { ...each, metadata } : each));
    });
  }

  decide(plan: Plan, decision: Omit<Schemas["PlanDecision"], "version">): Promise<boolean> {
    return this.anew("plan/decision", { ...decision, version: plan.version });
  }

  /** Runs a turn that begins otherwise than with a message. What it `replaces` is taken off the page at once. */
  private anew(path: string, body: object, replaces?: string): Promise<boolean> {
    const said = replaces === undefined ? undefined : this.cut(replaces);
    const id = newKey();
    if (said !== undefined) this.sent.value = [...this.sent.value, { id, draft: { ...EMPTY, text: said }, queued: false, turnId: null }];
    return this.run({ begin: { path: `${this.path}/${path}`, body } }, null, (turn) => {
      this.sent.value = this.sent.value.flatMap((each) => (each.id !== id ? [each] : typeof turn === "string" ? [{ ...each, turnId: turn }] : []));
    });
  }

  /** Takes the turn of a message, and what came after it, off the page; returns what the user had said in it. */
  private cut(message: string): string | undefined {
    const turn = this.turnOf(message);
    const from = this.messages.value.findIndex(({ turn_id }) => turn_id === turn);
    if (turn === undefined) return undefined;
    const said = this.messages.value.slice(from).find(({ role }) => role === "user")?.content;
    const kept = new Set(this.messages.value.slice(0, from).map(({ turn_id }) => turn_id));
    this.messages.value = this.messages.value.filter(({ turn_id }) => kept.has(turn_id));
    this.newer.value = null;
    return String(said ?? "");
  }

  async cancel(): Promise<void> {
    const live = this.running;
    if (live === null || live.turnId === null) return;
    live.stopping = true;
    this.draw(live);
    await attempt(() => post(`${this.path}/turns/${live.turnId}/cancel`));
  }

  /** Takes a message that waits out of the queue. If it is to be changed, it goes back to where it is written. */
  takeBack(turnId: string, draft: Draft | null): Promise<boolean> {
    return attempt(async () => {
      const { status } = await post<Turn>(`${this.path}/turns/${turnId}/cancel`);
      if (draft !== null && status === "cancelled") writeAgain(this.id, draft);
      this.sent.value = this.sent.value.filter((each) => each.turnId !== turnId);
      await this.refresh();
    });
  }

  /** Follows the oldest turn that is open, if none is followed yet. */
  async followOpenTurn(): Promise<void> {
    if (this.live.value !== null || this.branch.value !== null) return;
    try {
      const { items } = await get<Listed<Turn>>(`${this.path}/turns`, { limit: 10 });
      this.attempts.value = new Map(items.map(({ turn_id, attempts }) => [turn_id, attempts]));
      const open = items.findLast(({ status }) => status === "running" || status === "queued");
      const [newest] = items;
      if (open === undefined && newest !== undefined && !this.shows(newest)) await this.refresh(); // it ended while another was followed
      if (open === undefined || this.live.value !== null || this.stop.signal.aborted) return;
      await this.run({ events: `${this.path}/turns/${open.turn_id}/events` }, open.turn_id);
    } catch (error) {
      this.problem.value = problemOf(error);
    }
  }

  /** `begun` is told the turn that was accepted, or why none was; null if the page was left. */
  private async run(from: Parameters<typeof turnEvents>[0], turnId: string | null = null, told: (turn: string | Problem | null) => void = () => {}): Promise<boolean> {
    const live = begun(turnId);
    this.running = live;
    this.live.value = live;
    let accepted = false;
    let refused: Problem | null = null;
    try {
      for await (const event of turnEvents(from, this.stop.signal)) {
        apply(live, event);
        if (!accepted && live.turnId !== null) {
          accepted = true;
          told(live.turnId);
        }
        this.draw(live);
      }
    } catch (error) {
      refused = problemOf(error);
    }
    if (!accepted) told(refused);
    if (live.turnId !== null) this.ended.add(live.turnId);
    if (this.stop.signal.aborted) return accepted;
    const isKept = "begin" in from && from.begin.key !== undefined && !accepted;
    if (refused !== null && !isKept) await attempt(() => Promise.reject(refused));
    if (refused === null || !isPassing(refused)) await this.refresh();
    this.running = null;
    this.live.value = null;
    if (live.error !== null && live.error.code !== "turn_cancelled" && document.hidden) toast(t("turn_failed"), true);
    if (refused === null || !isPassing(refused)) void this.followOpenTurn();
    return accepted;
  }

  /** At most once a frame: a stream may bring a hundred events a second. */
  private draw(live: Live): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      if (this.running === live) this.live.value = { ...live };
    });
  }

  /** Whether the turn is shown with what became of it. */
  private shows(ended: Pick<FeedEvent, "turn_id" | "status">): boolean {
    return this.messages.value.some(({ turn_id, turn }) => turn_id === ended.turn_id && turn?.status === ended.status);
  }

  /** What the caller's feed tells of this session. */
  heard(event: FeedEvent): void {
    if (event.type !== "replay_gap" && event.session_id !== this.id) return;
    if (this.live.value !== null) {
      if (event.type === "session_titled") void get<Session>(this.path).then((found) => (this.session.value = found), () => {});
      return;
    }
    if (event.type === "turn_ended" && this.shows(event)) return;
    if (event.type === "fact_noted") return;
    // not while it opens: before the place that the address names is shown, this would read the newest messages
    void this.opening.then(async () => {
      if (event.type !== "turn_started") await this.refresh();
      await this.followOpenTurn();
    });
  }
}
