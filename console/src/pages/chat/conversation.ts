/** What is shown of one session: its history from the newest on, and the turn that runs. The history is what counts. */
import { signal } from "@preact/signals";
import { get, type Listed, newKey, post, Problem, put, type Query, type Schemas } from "../../api";
import { attempt, toast } from "../../components/Toast";
import { type FeedEvent, turnEvents } from "../../events";
import { t } from "../../i18n";
import { problemOf } from "../../load";
import { apply, begun, type Live, type Message, type Plan } from "./live";

export type Session = Schemas["Session"];
export type Turn = Schemas["Turn"];
const PAGE = 40;

/** What the user is about to say. */
export interface Draft {
  text: string;
  files: Schemas["Attachment"][];
  search: boolean;
  whileBusy: "steer" | "enqueue";
}

/** What the user sent and the history does not have yet. */
export interface Sent {
  id: string;
  draft: Draft;
  state: "sending" | "queued" | "refused";
  turnId: string | null;
  problem: Problem | null;
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
  /** What left the history, as far as it was asked for. */
  readonly branches = signal<Schemas["Branch"][]>([]);
  private branchesBefore = 0;
  private cursor: string | null = null;
  private reading: Promise<boolean> | null = null;
  private readonly stop = new AbortController();
  private frame = 0;
  private running: Live | null = null;

  constructor(readonly id: string) {}

  get path(): string {
    return `/sessions/${this.id}`;
  }

  get hasOlder(): boolean {
    return this.cursor !== null;
  }

  /** Reads the newest page and follows the turn that runs. */
  async open(): Promise<void> {
    this.loading.value = true;
    await this.refresh();
    this.loading.value = false;
    void this.followOpenTurn();
  }

  /** The same for a session that was just made: its first message goes out at once. */
  async begin(draft: Draft): Promise<void> {
    this.loading.value = false;
    get<Session>(this.path).then((found) => (this.session.value ??= found), () => {});
    await this.say(draft);
  }

  leave(): void {
    this.stop.abort();
    cancelAnimationFrame(this.frame);
  }

  /** Reads session, newest messages and plans again, and keeps what was loaded before them. */
  async refresh(): Promise<void> {
    try {
      const [session, page, plans] = await Promise.all([
        get<Session>(this.path),
        this.read({}),
        get<Listed<Plan>>(`${this.path}/plans`, { limit: 50 }),
      ]);
      if (this.stop.signal.aborted) return;
      const newest = page.items.toReversed();
      const first = newest[0]?.seq ?? 0;
      const older = this.messages.value.filter(({ seq }) => seq < first);
      const isGap = older.length > 0 && page.next_cursor !== null && (older.at(-1)?.seq ?? 0) < first - 2 * PAGE;
      if (older.length === 0 || isGap) this.cursor = page.next_cursor;
      this.session.value = session;
      this.messages.value = isGap ? newest : [...older, ...newest];
      this.plans.value = new Map(plans.items.map((plan) => [plan.id, plan]));
      this.problem.value = null;
      const stored = new Set(newest.flatMap(({ turn_id, role, content }) => (role === "user" ? [turn_id, content] : [turn_id])));
      this.sent.value = this.sent.value.filter(({ turnId, draft, state }) => state === "refused" || !(stored.has(turnId ?? "") || stored.has(draft.text)));
    } catch (error) {
      if (!this.stop.signal.aborted) this.problem.value = problemOf(error);
    }
  }

  /** Reads the page before those that are shown; whoever asks while it is read waits for it. False if it could not be. */
  older(): Promise<boolean> {
    return (this.reading ??= this.readOlder().finally(() => (this.reading = null)));
  }

  private async readOlder(): Promise<boolean> {
    if (this.cursor === null) return false;
    this.loading.value = true;
    const isRead = await attempt(async () => {
      const page = await this.read({ cursor: this.cursor });
      this.cursor = page.next_cursor;
      this.messages.value = [...page.items.toReversed(), ...this.messages.value];
    });
    this.loading.value = false;
    return isRead;
  }

  /** Shows the messages that an edit took out of the history; null for the history. */
  async showBranch(branch: string | null): Promise<void> {
    this.branch.value = branch;
    this.messages.value = [];
    this.cursor = null;
    await this.refresh();
  }

  /** Reads what left the history before a message. Only a newer one can have more before it. */
  async readBranches(before: number): Promise<void> {
    if (before <= this.branchesBefore) return;
    this.branchesBefore = before;
    const { items } = await get<Listed<Schemas["Branch"]>>(`${this.path}/branches`, { limit: 200 }).catch(() => ({ items: this.branches.value }));
    this.branches.value = items;
  }

  /** Loads older messages until those of a turn are there; false if they are not in the history. */
  async find(turn: string): Promise<boolean> {
    const has = (): boolean => this.messages.value.some(({ turn_id }) => turn_id === turn);
    while (!has() && !this.stop.signal.aborted && (await this.older())) continue;
    return has();
  }

  private read(query: Query): Promise<Listed<Message>> {
    const asked: Query = { order: "desc", limit: PAGE, include: "turn", branch: this.branch.value, ...query };
    return get<Listed<Message>>(`${this.path}/messages`, asked);
  }

  /** Says it; while a turn runs it steers that turn, or waits for its end. */
  async say(draft: Draft): Promise<boolean> {
    const { text, files, search, whileBusy } = draft;
    const body = { message: text, attachments: files.map(({ id }) => id), ...(search && { force_web_search: true }) };
    const sent: Sent = { id: newKey(), draft, state: "sending", turnId: null, problem: null };
    this.sent.value = [...this.sent.value, sent];
    if (this.live.value === null) return this.run({ begin: { path: `${this.path}/chat`, body: body } }, sent);
    try {
      const accepted = await post<{ turn_id: string }>(`${this.path}/chat`, { ...body, background: true, on_busy: whileBusy });
      this.change(sent, { state: "queued", turnId: accepted.turn_id });
      void this.followOpenTurn();
      return true;
    } catch (error) {
      this.change(sent, { state: "refused", problem: problemOf(error) });
      return false;
    }
  }

  private change(sent: Sent, to: Partial<Sent>): void {
    Object.assign(sent, to);
    this.sent.value = [...this.sent.value];
  }

  dropSent(sent: Sent): void {
    this.sent.value = this.sent.value.filter((each) => each !== sent);
  }

  edit(message: string, text: string, files: string[] = []): Promise<boolean> {
    return this.anew(`messages/${message}/edit`, { message: text, attachments: files }, message, text);
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
  private anew(path: string, body: object, replaces?: string, text?: string): Promise<boolean> {
    const begin = { path: `${this.path}/${path}`, body };
    const turn = this.messages.value.find(({ id }) => id === replaces)?.turn_id;
    const from = this.messages.value.findIndex(({ turn_id }) => turn_id === turn);
    if (turn === undefined) return this.run({ begin });
    const said = this.messages.value.slice(from).find(({ role }) => role === "user")?.content;
    this.messages.value = this.messages.value.slice(0, from);
    const draft: Draft = { text: text ?? String(said ?? ""), files: [], search: false, whileBusy: "enqueue" };
    const sent: Sent = { id: newKey(), draft, state: "sending", turnId: null, problem: null };
    this.sent.value = [...this.sent.value, sent];
    return this.run({ begin }, sent);
  }

  async cancel(): Promise<void> {
    const live = this.running;
    if (live === null || live.turnId === null) return;
    live.stopping = true;
    this.draw(live);
    await attempt(() => post(`${this.path}/turns/${live.turnId}/cancel`));
  }

  /** Follows the oldest turn that is open, if none is followed yet. */
  async followOpenTurn(): Promise<void> {
    if (this.live.value !== null || this.branch.value !== null) return;
    try {
      const { items } = await get<Listed<Turn>>(`${this.path}/turns`, { limit: 10 });
      this.attempts.value = new Map(items.map(({ turn_id, attempts }) => [turn_id, attempts]));
      const open = items.findLast(({ status }) => status === "running" || status === "queued");
      if (open === undefined || this.live.value !== null || this.stop.signal.aborted) return;
      await this.run({ events: `${this.path}/turns/${open.turn_id}/events` }, null, open.turn_id);
    } catch (error) {
      this.problem.value = problemOf(error);
    }
  }

  private async run(from: Parameters<typeof turnEvents>[0], sent: Sent | null = null, turnId: string | null = null): Promise<boolean> {
    const live = begun(turnId);
    this.running = live;
    this.live.value = live;
    let accepted = false;
    try {
      for await (const event of turnEvents(from, this.stop.signal)) {
        apply(live, event);
        if (!accepted && live.turnId !== null) {
          accepted = true;
          if (sent !== null) this.change(sent, { turnId: live.turnId });
        }
        this.draw(live);
      }
    } catch (error) {
      if (sent !== null) this.change(sent, { state: "refused", problem: problemOf(error) });
      else await attempt(() => Promise.reject(problemOf(error)));
    }
    if (this.stop.signal.aborted) return accepted;
    await this.refresh();
    this.running = null;
    this.live.value = null;
    if (live.error !== null && live.error.code !== "turn_cancelled" && document.hidden) toast(t("turn_failed"), true);
    void this.followOpenTurn();
    return accepted;
  }

  /** At most once a frame: a stream may bring a hundred events a second. */
  private draw(live: Live): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      if (this.running === live) this.live.value = { ...live };
    });
  }

  /** What the caller's feed tells of this session. */
  heard(event: FeedEvent): void {
    if (event.type !== "replay_gap" && event.session_id !== this.id) return;
    if (this.live.value !== null) {
      if (event.type === "session_titled") void get<Session>(this.path).then((found) => (this.session.value = found), () => {});
      return;
    }
    if (event.type === "turn_ended" && this.messages.value.some(({ turn_id, turn }) => turn_id === event.turn_id && turn?.status === event.status)) return;
    if (event.type === "turn_started") void this.followOpenTurn();
    else if (event.type !== "fact_noted") void this.refresh().then(() => this.followOpenTurn());
  }
}
