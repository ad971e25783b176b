"""The event log of every turn: published by the process that runs it, followed from any process, ended exactly once.

A log is a Redis stream, kept for an hour. The process that runs the turn serves followers from memory and saves in the
background; others read Redis, all logs over one connection. If Redis loses a log, the turn's row has the outcome.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

from structlog.contextvars import get_contextvars

from segue.db.outages import OutageLog
from segue.db.redis_keys import Batch, Streams
from segue.domain.errors import AppError, NotFound
from segue.domain.events import ArgumentsAdded, CallEnded, Event, ReasoningAdded, TextAdded
from segue.domain.session import EPOCHS, TurnAnswer, TurnKey
from segue.events import agui_encoding
from segue.events.event_buffer import ATTEMPT, CHECK_ROW_S, END, Entry, EventBuffer, Wakeups, end_of
from segue.events.user_feed import GAP, turn_ended
from segue.log import log
from segue.watch import end_tasks

TEXT_INTERVAL_S = 0.03
TEXTS_PER_SLOWDOWN = 512  # after as many the interval grows by TEXT_INTERVAL_S, so that no answer fills a log
UNKNOWN_S = 0.05  # after its claim only the client that sent the message can know of a turn
SAVE_EVERY_S = 0.03
READ_EVERY_S = 0.01
RENEW_EVERY_S = 60.0
RETRY_S = 0.25
MAX_EVENT_BYTES = 1_000_000
MAX_DIGITS = 19  # of a position

OutcomesOf = Callable[[Sequence[str]], Awaitable[Mapping[str, TurnAnswer]]]


@dataclass(eq=False, repr=False)
class EventPublisher:
    """Publishes the events of one run of a turn: gives them positions, joins tokens, appends them to the turn's buffer.
    `on_append` tells the event log that the buffer has grown. `emit` never waits and never raises.
    """

    buffer: EventBuffer
    streams: Streams
    _: KW_ONLY
    epoch: int
    stream_tokens: bool
    on_append: Callable[[EventBuffer], None]

    def __post_init__(self) -> None:
        self._position = (self.epoch - 1) * ATTEMPT
        self._encoder = agui_encoding.EventEncoder(self.buffer.turn)
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._held: list[TextAdded | ReasoningAdded | ArgumentsAdded] = []
        self._texts = 0
        self._next_text_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.cut_off: dict[str, str] = {}  # names of the tools, by id, of calls that an earlier attempt had begun

    def give_up_calls(self, made: Collection[str] = ()) -> None:
        """Says of the calls that an earlier attempt had begun which were not `made`."""
        for call_id, name in self.cut_off.items():
            if call_id not in made:
                self.append(agui_encoding.unmade_result(call_id, name))
        self.cut_off = {}

    def emit(self, event: Event) -> None:
        if self._closed:
            return
        if not isinstance(event, (TextAdded, ReasoningAdded, ArgumentsAdded)):
            self._flush_text()
            self._encode(event)
            return
        if self._held and _id_in(self._held[0]) != _id_in(event):
            self._flush_text()
        self._held.append(event)
        wait = self._next_text_at - self._loop.time()
        if wait <= 0:
            self._flush_text()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait, self._flush_text)

    async def wants_tokens(self) -> bool:
        """Whether a client of any process reads the answer word by word; else the model is asked for all at once."""
        if self.stream_tokens or self.buffer.token_followers:
            return True
        if self.buffer.followers and self._loop.time() < self._opened_at + UNKNOWN_S:
            return False
        self.stream_tokens = await self.streams.is_watched(self.buffer.turn)
        return self.stream_tokens

    def append(self, event: bytes) -> None:
        self._position += 1
        self.buffer.append(self._position, event)
        self.on_append(self.buffer)

    def end(self, event: bytes) -> None:
        self._flush_text()
        self.give_up_calls()
        for each in self._encoder.unmade_calls():
            self.append(each)
        self.buffer.append(self.buffer.end, event)
        self.on_append(self.buffer)

    def close(self) -> None:
        self._flush_text()
        self._closed = self.buffer.let_go = True
        self.buffer.published_here = False

    def _encode(self, event: Event) -> None:
        try:
            encoded = self._encoder.encode(event)
        except (TypeError, ValueError) as error:  # JSON cannot hold it
            log.warning("event_dropped", kind=type(event).__name__, error=type(error).__name__)
            return
        for each in encoded:
            self.append(each)

    def _flush_text(self) -> None:
        """Publishes the text held since the last text event, as one event. It is all of one message or call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._held:
            return
        pending, self._held = self._held, []
        self._texts += 1
        self._next_text_at = self._loop.time() + TEXT_INTERVAL_S * (1 + self._texts // TEXTS_PER_SLOWDOWN)
        self._encode(replace(pending[0], text="".join(each.text for each in pending)))


def _id_in(event: TextAdded | ReasoningAdded | ArgumentsAdded) -> str:
    return event.tool_call_id if isinstance(event, ArgumentsAdded) else event.message_id


class EventLog:
    """The logs of all turns as one process sees them, while it is entered. `outcomes_of` gives the outcome of those of
    the turns, by id, that have ended: `NotFound` for a turn whose session was deleted. It raises AppError if Postgres
    is away: those who wait for an answer hear of it after `outage_s`.
    """

    def __init__(self, streams: Streams, outcomes_of: OutcomesOf, *, outage_s: float) -> None:
        self._streams = streams
        self._outcomes_of = outcomes_of
        self._outage_s = outage_s
        self._outage = OutageLog("ends_not_read", "ends_read")
        self._buffers: dict[tuple[str, int], EventBuffer] = {}  # by the turn's id and run
        self._publishers: dict[str, EventPublisher] = {}
        self._wakeups = Wakeups()
        self._unsaved: dict[EventBuffer, float] = {}  # and since when
        self._for_feeds: list[tuple[str, bytes]] = []
        self._something_unsaved = asyncio.Event()
        self._someone_follows = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._shutting_down = False

    async def __aenter__(self) -> Self:
        work = (self._keep_saving, self._keep_reading, self._keep_checking_rows)
        self._tasks = [asyncio.create_task(each(), name=each.__name__) for each in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(*self._tasks)
        if self._unsaved or self._for_feeds:
            await self._save(everything=True)

    def shut_down(self) -> None:
        """From now on waiting for an answer raises `turn_interrupted`: its turn goes on in another process."""
        self._shutting_down = True
        for buffer in self._buffers.values():
            buffer.shut_down()

    @property
    def alive(self) -> bool:
        return not any(task.done() for task in self._tasks)

    @property
    def awaits_others(self) -> bool:
        """Whether a request waits here for a turn that has begun in another process."""
        return any(each.followers and each.entries and not each.published_here for each in self._buffers.values())

    @property
    def followers(self) -> tuple[int, int]:
        """Returns how many wait here for events of a turn, and how many of them read the answer token by token."""
        buffers = list(self._buffers.values())
        return sum(buffer.followers for buffer in buffers), sum(buffer.token_followers for buffer in buffers)

    async def open(self, turn: TurnKey, *, epoch: int, stream: bool) -> EventPublisher:
        """Returns the publisher of a turn that this process has claimed. `stream`: the client reads token by token. A
        later attempt continues the log of the one before and closes what that left open, since a run starts once.
        """
        buffer = self._buffer(turn)
        while epoch > 1 and (found := await self._streams.read({turn: buffer.read_to})):
            _append_lines(buffer, found[turn])
        buffer.published_here, buffer.let_go = True, False
        buffer.saved = len(buffer.entries)
        publisher = EventPublisher(buffer, self._streams, epoch=epoch, stream_tokens=stream, on_append=self._save_soon)
        self._publishers[turn.turn_id] = publisher
        opening = [agui_encoding.run_started(turn)]
        if buffer.entries:
            passed = [event for _, event in buffer.entries]
            opening = [*agui_encoding.closing_events(passed), agui_encoding.attempt(epoch % EPOCHS)]
            publisher.cut_off = agui_encoding.open_calls(passed)
        for event in opening:
            publisher.append(event)
        return publisher

    def close(self, turn: TurnKey, *, epoch: int) -> None:
        """The run is over in this process. If the turn goes on elsewhere, its followers here read Redis and the row."""
        publisher = self._publishers.get(turn.turn_id)
        if publisher is not None and publisher.epoch == epoch:
            publisher.close()
            del self._publishers[turn.turn_id]
            self._someone_follows.set()
            self._release(publisher.buffer)

    def end(
        self, turn: TurnKey, outcome: TurnAnswer, calls: Sequence[CallEnded] = (), *, user: str | None = None
    ) -> None:
        """Emits the calls that ended with the turn, and the terminal event, and adds the end to the feed of its user.
        Call it after the outcome is committed; a second call changes nothing in the log. An error names the request.
        """
        if user is not None:
            self.tell(user, *turn_ended(turn, outcome))
        event = agui_encoding.run_ended(turn, outcome, request_id=get_contextvars().get("request_id"))
        publisher = self._publishers.get(turn.turn_id)
        if publisher is not None and publisher.buffer.turn.run == turn.run:  # else it runs again by now
            for call in calls:
                publisher.emit(call)
            publisher.end(event)
            return
        buffer = EventBuffer(turn, self._wakeups)
        for position, call in enumerate(calls, start=buffer.end - ATTEMPT + 1):  # as if of a last attempt
            buffer.append(position, agui_encoding.call_ended(call))
        buffer.append(buffer.end, event)
        self._save_soon(buffer)

    def tell(self, user: str, *events: bytes) -> None:
        """Adds to the user's feed, if a client follows it. Call it after what happened is committed."""
        self._for_feeds += [(user, event) for event in events]
        self._something_unsaved.set()

    async def delete(self, session_id: str, turn_ids: Sequence[str], *, user: str | None = None) -> None:
        """Deletes the logs of a session, and what the user's feed says of it."""
        if user is not None:
            self._for_feeds = [each for each in self._for_feeds if each[0] != user]
            await self._streams.clear_feed(user, GAP)
        for buffer in self._buffers.values():
            if buffer.turn.turn_id in turn_ids:
                self._unsaved.pop(buffer, None)
                buffer.deleted = True
        await self._streams.delete(session_id, turn_ids)

    async def answer(self, turn: TurnKey) -> bytes:
        """Waits for the end of a turn and returns its ChatAnswer as JSON. Raises the AppError the turn ended with."""
        last = end_of(turn) - 1  # a follower behind it is woken once, for the terminal event
        try:
            async with aclosing(self._follow(turn, after=last, tokens=False, patient=False)) as parts:
                [(_, ended)] = await anext(parts)
            if (reader := agui_encoding.read_by(ended)) is None:
                return agui_encoding.answer_json(ended)
        except AppError as error:
            error.with_extra(turn_id=turn.turn_id)
            raise
        return await self.answer(reader)

    async def follow(self, turn: TurnKey, *, after: int = 0, patient: bool = True) -> AsyncGenerator[Sequence[Entry]]:
        """Yields the entries after a position, then what is new; `EventBuffer.after` says how it ends. If another turn
        reads the message of this one, they are that turn's, from its start.
        """
        while True:
            reader: TurnKey | None = None
            async with aclosing(self._follow(turn, after=after, tokens=True, patient=patient)) as parts:
                async for entries in parts:
                    if (reader := agui_encoding.read_by(entries[-1].event)) is None:
                        yield entries
            if reader is None:
                return
            turn, after = reader, 0

    async def _follow(self, turn: TurnKey, *, after: int, tokens: bool, patient: bool) -> AsyncGenerator[list[Entry]]:
        """`tokens`: the follower wants the answer token by token, not only when it is complete."""
        buffer = self._buffer(turn)
        buffer.followers += 1
        buffer.token_followers += tokens
        try:
            if not buffer.published_here:
                self._someone_follows.set()
                if tokens:
                    await self._streams.mark_watched(turn)
            async with aclosing(buffer.after(after, patient=patient)) as parts:
                async for entries in parts:
                    yield entries
        finally:
            buffer.followers -= 1
            buffer.token_followers -= tokens
            self._release(buffer)

    def _buffer(self, turn: TurnKey) -> EventBuffer:
        buffer = EventBuffer(turn, self._wakeups, shutting_down=self._shutting_down)
        return self._buffers.setdefault((turn.turn_id, turn.run), buffer)

    def _release(self, buffer: EventBuffer) -> None:
        key = buffer.turn.turn_id, buffer.turn.run
        is_current = self._buffers.get(key) is buffer  # end() without a publisher makes a buffer of its own
        if is_current and not (buffer.followers or buffer.published_here or buffer in self._unsaved):
            del self._buffers[key]

    def _save_soon(self, buffer: EventBuffer) -> None:
        if not buffer.deleted:
            self._unsaved.setdefault(buffer, time.monotonic())
            self._something_unsaved.set()

    async def _keep_saving(self) -> None:
        while True:
            await self._something_unsaved.wait()
            await asyncio.sleep(SAVE_EVERY_S)
            if not await self._save():
                await asyncio.sleep(RETRY_S)

    async def _save(self, *, everything: bool = False) -> bool:
        """Writes the entries that are due to Redis in one round trip. False if Redis is lost. Then only the turns that
        still run here are tried again: the others end in their rows.
        """
        self._something_unsaved.clear()
        buffers = list(self._unsaved) if everything else due_to_save(self._unsaved, now=time.monotonic())
        if len(buffers) < len(self._unsaved):
            self._something_unsaved.set()
        for_feeds, self._for_feeds = self._for_feeds, []
        sizes = [len(buffer.entries) for buffer in buffers]
        batches = [_batch(buffer) for buffer in buffers]
        saved = await self._streams.append(batches, for_feeds)
        if not saved:
            self._for_feeds = [*dict.fromkeys((user, GAP) for user, _ in for_feeds), *self._for_feeds]
            self._something_unsaved.set()
        for buffer, size, batch in zip(buffers, sizes, batches, strict=True):
            if saved:
                buffer.saved = size
                buffer.renew_at = time.monotonic() + RENEW_EVERY_S if batch.renews else buffer.renew_at
            if buffer.saved == len(buffer.entries) or not (saved or buffer.published_here):
                self._unsaved.pop(buffer, None)
                self._release(buffer)
        return saved

    async def _keep_reading(self) -> None:
        """Reads every log that is followed here and published elsewhere, over one connection."""
        while True:
            await self._someone_follows.wait()
            await asyncio.sleep(READ_EVERY_S)
            buffers = self._published_elsewhere()
            if not buffers:
                self._someone_follows.clear()
                continue
            # blocks for 50 ms at most: a log that is followed from now on needs no way to interrupt the read
            found = await self._streams.read({buffer.turn: buffer.read_to for buffer in buffers})
            for buffer in buffers:
                buffer.loaded, buffer.redis_lost = True, found is None
                _append_lines(buffer, (found or {}).get(buffer.turn, ()))
            if found is None:
                await asyncio.sleep(RETRY_S)

    def _published_elsewhere(self) -> list[EventBuffer]:
        buffers = self._buffers.values()
        return [each for each in buffers if each.followers and not (each.published_here or each.complete)]

    async def _keep_checking_rows(self) -> None:
        """Reads the rows of turns whose logs are silent: their publisher may have died, or Redis may be lost."""
        while True:
            await self._someone_follows.wait()
            await asyncio.sleep(CHECK_ROW_S / 10)
            now = time.monotonic()
            silent = [each for each in self._published_elsewhere() if each.loaded and each.next_check <= now]
            if silent:
                await self._check_rows(silent)

    async def _check_rows(self, buffers: Sequence[EventBuffer]) -> None:
        """A turn may have ended a moment ago: its log has until the next check to deliver the end itself."""
        try:
            outcomes = await self._outcomes_of([buffer.turn.turn_id for buffer in buffers])
        except Exception as error:  # noqa: BLE001 (what an outage does not explain may be over by the next look)
            self._outage.fails(error)
            for buffer in buffers:
                buffer.lose_postgres(outage_s=self._outage_s)
            return
        self._outage.works()
        for buffer in buffers:
            outcome = outcomes.get(buffer.turn.turn_id)
            due = buffer.ended_in_row or buffer.redis_lost
            buffer.row_checked(ended=outcome is not None)
            if outcome is None or not due:
                continue
            if isinstance(outcome, NotFound):
                await self.delete(buffer.turn.session_id, [buffer.turn.turn_id])
            if not buffer.published_here:
                buffer.end_from_row(agui_encoding.run_ended(buffer.turn, outcome))


def due_to_save(unsaved: Mapping[EventBuffer, float], *, now: float) -> list[EventBuffer]:
    """Returns logs that are complete or unsaved for SAVE_EVERY_S: a short turn's is written once, not by halves."""
    return [each for each, since in unsaved.items() if each.complete or since + SAVE_EVERY_S <= now]


def _batch(buffer: EventBuffer) -> Batch:
    fresh = [entry for entry in buffer.entries[buffer.saved :] if len(entry.event) <= MAX_EVENT_BYTES]
    return Batch(
        buffer.turn,
        last=fresh[-1].position if fresh else 0,
        body=b"".join(b"%d %b\n" % entry for entry in fresh),
        opens=buffer.saved == 0,
        renews=time.monotonic() >= buffer.renew_at,
    )


def _append_lines(buffer: EventBuffer, batches: Sequence[tuple[int, bytes]]) -> None:
    """Skips a line that is not `position event`, or whose event cannot be read: it counts as missing."""
    for position_read, body in batches:
        buffer.passed = position_read
        for line in body.splitlines():
            position, _, event = line.partition(b" ")
            at = int(position) if position.isdigit() and len(position) <= MAX_DIGITS else None
            if at is not None and agui_encoding.is_readable(event, is_last=at % END == 0):
                buffer.append(at, event)
