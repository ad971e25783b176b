"""The part of a turn's event log that this process holds, and those who follow it here.

Positions grow by one within an attempt, so what is missing shows. Fed by whoever runs the turn, or from Redis, in
`turn/events.py`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import NamedTuple

import structlog

from segue.domain import turn_errors
from segue.domain.session import TurnKey
from segue.events import agui

ATTEMPT = 1_000_000  # positions from one attempt's first to the next one's
END = 10**12  # of the terminal event, in every log: a second one would be refused, and so would anything after it
MAX_LAG = 256
LOOK_AT_ROW_S = 1.0

log = structlog.get_logger()


class Entry(NamedTuple):
    position: int
    event: bytes


class Tail:
    """`fed_here`: the turn runs in this process. `loaded`: what Redis holds has been read, or it is `cut_off`.

    `followers` wait for what comes, `listeners` among them for every word of the model's.
    """

    def __init__(self, turn: TurnKey, *, left: bool = False) -> None:
        self.turn = turn
        self.entries: list[Entry] = []
        self.written = 0  # how many of the entries are in Redis
        self.followers = 0
        self.listeners = 0
        self.fed_here = False
        self.loaded = False
        self.cut_off = False
        self.forgotten = False
        self.seen_ended = False
        self.next_look = 0.0
        self._rows_lost = False
        self._left = left
        self._news = asyncio.Event()

    @property
    def key(self) -> tuple[str, str]:
        return self.turn.session_id, self.turn.turn_id

    @property
    def last(self) -> int:
        return self.entries[-1].position if self.entries else 0

    @property
    def over(self) -> bool:
        return self.last == END

    def add(self, position: int, event: bytes) -> None:
        """Takes what is new, and says where something is missing before it."""
        last = self.last
        if position <= last:
            return
        if position not in (last + 1, END) and position % ATTEMPT != 1:
            self.entries.append(Entry(position - 1, agui.replay_gap()))
        self.entries.append(Entry(position, event))
        self.next_look = time.monotonic() + LOOK_AT_ROW_S
        self._wake()

    def end_from_row(self, event: bytes) -> None:
        """The log will not tell how the turn ended, nor everything that came before."""
        if not self.over:
            self.entries.append(Entry(END - 1, agui.replay_gap()))
            self.add(END, event)

    def looked_at(self, *, ended: bool) -> None:
        """Its row can be read, and says whether the turn is over."""
        self._rows_lost = False
        self.seen_ended = ended
        self.next_look = time.monotonic() + LOOK_AT_ROW_S / (5 if ended else 1)

    def lose_rows(self) -> None:
        self._rows_lost = True
        self.next_look = time.monotonic() + LOOK_AT_ROW_S
        self._wake()

    def leave(self) -> None:
        """The process goes, the turn may not."""
        self._left = True
        self._wake()

    async def after(self, position: int, *, patient: bool) -> AsyncGenerator[Entry]:
        """Ends with the terminal event, or before it where the reader falls MAX_LAG entries behind.

        Who is not `patient` hears `storage_unavailable` once the row cannot be read either, and `turn_interrupted` if
        the process goes before the turn has ended.
        """
        read = 0
        while True:
            fresh = self.entries[read:]
            read += len(fresh)
            for entry in fresh:
                if entry.position > position:
                    yield entry
                if len(self.entries) - read > MAX_LAG:
                    log.info("slow_reader_dropped", turn_id=self.turn.turn_id)
                    return
            if read == len(self.entries):
                if self.over:
                    return
                if self._left and not patient:
                    raise turn_errors.interrupted()
                if self._rows_lost and not patient and not self.fed_here:
                    raise turn_errors.lost_sight()
                await self._news.wait()

    def _wake(self) -> None:
        if self.followers:
            self._news.set()
            self._news = asyncio.Event()
