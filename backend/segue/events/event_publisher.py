"""Tells what happens in one run of a turn, into the tail of its log.

Positions and pace are decided here; where entries go from there is `turn/events.py`'s business.
"""

import asyncio
from collections.abc import Callable

import structlog

from segue.db.redis import Streams
from segue.domain.events import Event, TextAdded
from segue.events import agui
from segue.events.event_buffer import ATTEMPT, END, Tail

TEXT_EVERY_S = 0.03
TEXTS_PER_PACE = 256  # after as many the pace slows by its first measure, so that no answer fills a log
UNKNOWN_S = 0.05  # from its claim, in which nobody but who waits for its answer can know of a turn

log = structlog.get_logger()


class Writer:
    """`emit` never waits and never raises."""

    def __init__(self, tail: Tail, streams: Streams, *, epoch: int, asked: bool, told: Callable[[Tail], None]) -> None:
        self.tail = tail
        self.epoch = epoch
        self._streams = streams
        self._position = (epoch - 1) * ATTEMPT
        self._asked = asked
        self._told = told
        self._writing = agui.Writing(tail.turn)
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._held: list[TextAdded] = []
        self._texts = 0
        self._next_text = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def emit(self, event: Event) -> None:
        if self._closed:
            return
        if isinstance(event, TextAdded):
            self._hold(event)
            return
        self._let_go()
        self._write(event)

    async def listened(self) -> bool:
        """Whether somebody, here or elsewhere, wants the model's words as they come."""
        if self._asked or self.tail.listeners:
            return True
        if self.tail.followers and self._loop.time() < self._opened + UNKNOWN_S:
            return False
        self._asked = await self._streams.is_watched(*self.tail.key)
        return self._asked

    def say(self, event: bytes) -> None:
        self._position += 1
        self.tail.add(self._position, event)
        self._told(self.tail)

    def end(self, event: bytes) -> None:
        self._let_go()
        self.tail.add(END, event)
        self._told(self.tail)

    def close(self) -> None:
        self._let_go()
        self._closed = True
        self.tail.fed_here = False

    def _write(self, event: Event) -> None:
        try:
            written = self._writing.written(event)
        except (TypeError, ValueError) as error:  # JSON cannot hold it
            log.warning("event_dropped", kind=type(event).__name__, error=type(error).__name__)
            return
        for each in written:
            self.say(each)

    def _hold(self, event: TextAdded) -> None:
        self._held.append(event)
        wait = self._next_text - self._loop.time()
        if wait <= 0:
            self._let_go()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait, self._let_go)

    def _let_go(self) -> None:
        """The text that came since the last event of text, as one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._held:
            return
        held, self._held = self._held, []
        self._texts += 1
        self._next_text = self._loop.time() + TEXT_EVERY_S * (1 + self._texts // TEXTS_PER_PACE)
        self._write(TextAdded(held[0].message_id, "".join(each.text for each in held)))
