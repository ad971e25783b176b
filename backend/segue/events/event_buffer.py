"""The part of one turn's event log that this process holds in memory, and its followers here. Does no I/O."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import NamedTuple

from segue.domain.errors import app_error
from segue.domain.session import TurnKey
from segue.events import agui_encoding

# Positions are ids of the Redis stream. Redis refuses an id that is not above the last: also those of a stale owner.
ATTEMPT = 1_000_000  # positions from one attempt's first to the next one's
END = 10**12  # of every terminal event, in the first run of its turn: Redis refuses a second entry with this id
CHECK_ROW_S = 1.0
WOKEN_AT_ONCE = 16


class Entry(NamedTuple):
    """Positions grow by one within an attempt, so a missing event shows."""

    position: int
    event: bytes


def end_of(turn: TurnKey) -> int:
    """Returns the position of the terminal event of this run of a turn. The next run begins behind it."""
    return END * (turn.run + 1)


class Wakeups:
    """Wakes the followers of all logs of a process, WOKEN_AT_ONCE in each pass of the event loop. A thousand in one
    pass would let everything else wait for a tenth of a second, and that for each step it makes.
    """

    def __init__(self) -> None:
        self._due: deque[asyncio.Future[None]] = deque()

    def wake(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        is_at_work = bool(self._due)
        self._due.extend(waiting)
        if not is_at_work:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(WOKEN_AT_ONCE, len(self._due))):
            waiting = self._due.popleft()
            if not waiting.done():
                waiting.set_result(None)
        if self._due:
            asyncio.get_running_loop().call_soon(self._wake_some)


class EventBuffer:
    """Of one run of a turn. `published_here`: it runs in this process. `loaded`: Redis has been read once, or is lost.
    `followers` counts all that wait for events, `token_followers` those that also want the answer token by token.
    """

    def __init__(self, turn: TurnKey, wakeups: Wakeups, *, shutting_down: bool = False) -> None:
        self.turn = turn
        self.end = end_of(turn)
        self.entries: list[Entry] = []
        self.saved = 0  # how many of the entries are in Redis
        self.passed = 0  # the position of what was last read there, also if it was no event
        self.renew_at = 0.0  # from when on the log is to be kept for longer
        self.followers = 0
        self.token_followers = 0
        self.published_here = False
        self.let_go = False  # by the attempt that was published here
        self.loaded = False
        self.redis_lost = False
        self.deleted = False
        self.ended_in_row = False
        self.next_check = 0.0
        self._postgres_lost = False
        self._postgres_lost_at: float | None = None
        self._shutting_down = shutting_down
        self._wakeups = wakeups
        self._waiting: dict[asyncio.Future[None], int] = {}  # for entries after a position

    @property
    def last(self) -> int:
        """The position of the last entry; that before the first one if there is none."""
        return self.entries[-1].position if self.entries else self.end - END

    @property
    def read_to(self) -> int:
        return max(self.last, self.passed)

    @property
    def complete(self) -> bool:
        return self.last == self.end

    def append(self, position: int, event: bytes) -> None:
        """Ignores a position that is there already, or another run's. Inserts a `replay_gap` if some before it miss."""
        last = self.last
        if not last < position <= self.end:
            return
        if self.let_go and last // ATTEMPT < position // ATTEMPT:
            if agui_encoding.closes(event):  # what was open in the log as far as the next attempt's process had read it
                return
            closing = agui_encoding.closing_events([each.event for each in self.entries])
            self.entries += [Entry(at, each) for at, each in enumerate(closing, start=position - len(closing))]
            self.let_go = False
        elif position not in (last + 1, self.end) and position % ATTEMPT != 1:
            self.entries.append(Entry(position - 1, agui_encoding.replay_gap()))
        self.entries.append(Entry(position, event))
        self.next_check = time.monotonic() + CHECK_ROW_S
        self._notify(position)

    def end_from_row(self, event: bytes) -> None:
        """Appends the terminal event that Postgres knows, after a gap: Redis has lost the events before it. What they
        would have closed is closed, and a run whose events are all lost has a start: AG-UI knows no other streams.
        """
        if not self.complete:
            known = [each.event for each in self.entries]
            if not known:
                self.entries.append(Entry(self.end - END + 1, agui_encoding.run_started(self.turn)))
            lost = [*agui_encoding.closing_events(known), agui_encoding.replay_gap()]
            self.entries += [Entry(at, each) for at, each in enumerate(lost, start=self.end - len(lost))]
            self.append(self.end, event)

    def row_checked(self, *, ended: bool) -> None:
        """Postgres answered. If the turn has ended there, the log gets a moment to deliver its end first."""
        self._postgres_lost, self._postgres_lost_at = False, None
        self.ended_in_row = ended
        self.next_check = time.monotonic() + CHECK_ROW_S / (5 if ended else 1)

    def lose_postgres(self, *, outage_s: float) -> None:
        """Postgres did not answer. It counts as lost after `outage_s`, since a turn waits for it too."""
        now = time.monotonic()
        self._postgres_lost_at = self._postgres_lost_at or now
        self._postgres_lost = now - self._postgres_lost_at >= outage_s
        self.next_check = now + CHECK_ROW_S
        self._notify(self.end)

    def shut_down(self) -> None:
        """The process stops; the turn may go on in another one."""
        self._shutting_down = True
        self._notify(self.end)

    async def after(self, position: int, *, patient: bool) -> AsyncGenerator[list[Entry]]:
        """Yields the entries after a position up to the terminal event, all that there are at a time. A reader that is
        slow, or one of very many, gets them in fewer and larger parts. Unless `patient` it raises StorageUnavailable if
        Postgres is lost too, and `turn_interrupted` if this process shuts down before the turn has ended.
        """
        read = 0
        while True:
            fresh = [entry for entry in self.entries[read:] if entry.position > position]
            read = len(self.entries)
            if fresh:
                yield fresh
            if read < len(self.entries):
                continue
            if self.complete:
                return
            if self._shutting_down and not patient:
                raise app_error("turn_interrupted")
            if self._postgres_lost and not patient and not self.published_here:
                raise app_error("storage_lost")
            change = asyncio.get_running_loop().create_future()
            self._waiting[change] = min(position, self.end - 1)  # the end is told to all
            try:
                await change
            finally:
                self._waiting.pop(change, None)

    def _notify(self, position: int) -> None:
        """Wakes the followers that have not read up to this position."""
        due = [waiting for waiting, read in self._waiting.items() if read < position]
        for waiting in due:
            del self._waiting[waiting]
        self._wakeups.wake(due)
