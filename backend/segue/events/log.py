"""The event log of every turn: told once by whoever runs it, followed from any process, ended by whoever ends the turn.

A log is a Redis stream that is kept for an hour. Where a turn runs, its followers are served from memory and Redis is
written behind; elsewhere one connection reads for all. Where Redis is lost, the row still tells how a turn ended.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Self

from segue.db.engine import Database
from segue.db.redis import Batch, Streams
from segue.domain.errors import AppError, NotFound
from segue.domain.session import ChatAnswer, TurnKey
from segue.events import agui
from segue.events.event_buffer import END, LOOK_AT_ROW_S, Entry, Tail
from segue.events.event_publisher import Writer
from segue.turns.queries import Result, open_turns, result_of

WRITE_EVERY_S = 0.03
READ_EVERY_S = 0.01
RETRY_S = 0.25
MAX_EVENT_BYTES = 1_000_000


class EventLog:
    """The logs of all turns, as one process sees them, for as long as it is entered."""

    def __init__(self, streams: Streams, database: Database) -> None:
        self._streams = streams
        self._database = database
        self._tails: dict[str, Tail] = {}
        self._writers: dict[str, Writer] = {}
        self._unwritten: dict[Tail, None] = {}
        self._to_write = asyncio.Event()
        self._to_read = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._leaving = False

    async def __aenter__(self) -> Self:
        work = (self._keep_writing, self._keep_reading, self._keep_looking)
        self._tasks = [asyncio.create_task(each(), name=each.__name__) for each in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True  # redis-py can swallow a cancellation that falls into the end of a pipeline
        for task in self._tasks:
            task.cancel()
        self._to_write.set()
        self._to_read.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._unwritten:
            await self._write()

    def leave(self) -> None:
        """The process goes. Whoever waits for an answer hears that the turn goes on without it, and who comes later."""
        self._leaving = True
        for tail in self._tails.values():
            tail.leave()

    @property
    def alive(self) -> bool:
        return not any(task.done() for task in self._tasks)

    @property
    def followers(self) -> tuple[int, int]:
        """How many wait here for a turn, and how many of them read the model's words as they come."""
        tails = list(self._tails.values())
        return sum(tail.followers for tail in tails), sum(tail.listeners for tail in tails)

    async def open(self, turn: TurnKey, *, epoch: int, stream: bool) -> Writer:
        """For whoever has claimed the turn. `stream`: its words were asked for as they come.

        A later attempt goes on in the log of the one before: what that left open is closed, since a run starts once.
        """
        tail = self._hold(turn)
        if epoch > 1:
            await self._load(tail)
        tail.fed_here = True
        tail.written = len(tail.entries)
        writer = Writer(tail, self._streams, epoch=epoch, asked=stream, told=self._told)
        self._writers[turn.turn_id] = writer
        begin = [agui.run_started(turn)]
        if tail.entries:
            begin = [*agui.left_open([event for _, event in tail.entries]), agui.attempt(epoch)]
        for event in begin:
            writer.say(event)
        return writer

    def close(self, turn: TurnKey, *, epoch: int) -> None:
        """The run is over here; where the turn is not, whoever follows it is served from Redis and the row."""
        writer = self._writers.get(turn.turn_id)
        if writer is not None and writer.epoch == epoch:
            writer.close()
            del self._writers[turn.turn_id]
            self._to_read.set()
            self._release(writer.tail)

    def ended(self, turn: TurnKey, outcome: Result) -> None:
        """For whoever has stored the end of a turn, once it is stored. Saying it twice says it once."""
        event = agui.run_ended(turn, outcome)
        writer = self._writers.get(turn.turn_id)
        if writer is not None:
            writer.end(event)
            return
        alone = Tail(turn)
        alone.add(END, event)
        self._told(alone)

    async def forget(self, session_id: str, turn_ids: Sequence[str]) -> None:
        """The logs of a session that is deleted."""
        for turn_id in turn_ids:
            if tail := self._tails.get(turn_id):
                self._unwritten.pop(tail, None)
                tail.forgotten = True
        await self._streams.delete(session_id, turn_ids)

    async def outcome(self, turn: TurnKey) -> ChatAnswer:
        """Waits for the end of a turn. Raises what it failed with."""
        async with aclosing(self.follow(turn, tokens=False, patient=False)) as entries:
            async for position, event in entries:
                if position == END:
                    outcome = agui.read_outcome(event)
                    if isinstance(outcome, AppError):
                        raise outcome
                    return outcome
        raise AssertionError("a log ends with its terminal event")

    async def follow(
        self, turn: TurnKey, *, after: int = 0, tokens: bool = True, patient: bool = True
    ) -> AsyncGenerator[Entry]:
        """What stands in the log after a position, then what comes; see `Tail.after` for how it ends.

        `tokens`: the follower wants the model's words as they come, not only when they are complete.
        """
        tail = self._hold(turn)
        tail.followers += 1
        tail.listeners += tokens
        try:
            if not tail.fed_here:
                self._to_read.set()
                if tokens:
                    await self._streams.mark_watched(turn.session_id, turn.turn_id)
            async with aclosing(tail.after(after, patient=patient)) as entries:
                async for entry in entries:
                    yield entry
        finally:
            tail.followers -= 1
            tail.listeners -= tokens
            self._release(tail)

    def _hold(self, turn: TurnKey) -> Tail:
        return self._tails.setdefault(turn.turn_id, Tail(turn, left=self._leaving))

    def _release(self, tail: Tail) -> None:
        held = self._tails.get(tail.turn.turn_id) is tail  # an end told by somebody else has a tail of its own
        if held and not (tail.followers or tail.fed_here or tail in self._unwritten):
            del self._tails[tail.turn.turn_id]

    def _told(self, tail: Tail) -> None:
        if not tail.forgotten:
            self._unwritten[tail] = None
            self._to_write.set()

    async def _keep_writing(self) -> None:
        while not self._closed:
            await self._to_write.wait()
            await asyncio.sleep(WRITE_EVERY_S)
            if not await self._write():
                await asyncio.sleep(RETRY_S)

    async def _write(self) -> bool:
        """Everything new of every log, at once. Where Redis is away only what still runs here is kept for later."""
        self._to_write.clear()
        tails = list(self._unwritten)
        sizes = [len(tail.entries) for tail in tails]
        appended = await self._streams.append([_batch(tail) for tail in tails])
        if not appended:
            self._to_write.set()
        for tail, size in zip(tails, sizes, strict=True):
            if appended:
                tail.written = size
            if tail.written == len(tail.entries) or not (appended or tail.fed_here):
                self._unwritten.pop(tail, None)
                self._release(tail)
        return appended

    async def _keep_reading(self) -> None:
        """One connection for every log that is followed here and written elsewhere."""
        while not self._closed:
            await self._to_read.wait()
            await asyncio.sleep(READ_EVERY_S)
            tails = self._written_elsewhere()
            if not tails:
                self._to_read.clear()
                continue
            found = await self._streams.read({tail.key: tail.last for tail in tails})
            for tail in tails:
                tail.loaded, tail.cut_off = True, found is None
                _feed(tail, (found or {}).get(tail.key, ()))
            if found is None:
                await asyncio.sleep(RETRY_S)

    async def _load(self, tail: Tail) -> None:
        while found := await self._streams.read({tail.key: tail.last}):
            _feed(tail, found[tail.key])

    def _written_elsewhere(self) -> list[Tail]:
        return [tail for tail in self._tails.values() if tail.followers and not (tail.fed_here or tail.over)]

    async def _keep_looking(self) -> None:
        """At the rows of turns whose logs have gone quiet: their writers may have died, or Redis may have."""
        while not self._closed:
            await self._to_read.wait()
            await asyncio.sleep(LOOK_AT_ROW_S / 10)
            now = time.monotonic()
            if due := [tail for tail in self._written_elsewhere() if tail.loaded and tail.next_look <= now]:
                await self._look(due)

    async def _look(self, tails: Sequence[Tail]) -> None:
        """A turn that has ended may only just have: its log is given the time until the next look to tell."""
        try:
            async with self._database.read_only() as connection:
                going_on = await open_turns(connection, [tail.turn.turn_id for tail in tails])
                outcomes = {
                    tail: await result_of(connection, tail.turn)
                    for tail in tails
                    if tail.turn.turn_id not in going_on and (tail.seen_ended or tail.cut_off)
                }
        except AppError:
            for tail in tails:
                tail.lose_rows()
            return
        for tail in tails:
            tail.looked_at(ended=tail.turn.turn_id not in going_on)
            outcome = outcomes.get(tail)
            if isinstance(outcome, NotFound):
                await self.forget(tail.turn.session_id, [tail.turn.turn_id])
            if outcome is not None and not tail.fed_here:
                tail.end_from_row(agui.run_ended(tail.turn, outcome))


def _batch(tail: Tail) -> Batch:
    fresh = [entry for entry in tail.entries[tail.written :] if len(entry.event) <= MAX_EVENT_BYTES]
    return Batch(
        *tail.key,
        last=fresh[-1].position if fresh else 0,
        body=b"".join(b"%d %b\n" % entry for entry in fresh),
        opens=tail.written == 0,
    )


def _feed(tail: Tail, bodies: Sequence[bytes]) -> None:
    """What is no line of ours counts as missing."""
    for body in bodies:
        for line in body.splitlines():
            position, _, event = line.partition(b" ")
            if position.isdigit():
                tail.add(int(position), event)
