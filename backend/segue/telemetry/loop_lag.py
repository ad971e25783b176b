"""How long callbacks keep others waiting: a timer that is late shows it."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

INTERVAL_S: Final = 0.1


class LoopLag:
    """While it is entered, `on_lag` gets the seconds by which each timer was late.

    `held_s` is the longest that this process itself held the loop: what a loaded machine adds does not count.
    """

    def __init__(self, on_lag: Callable[[float], None], *, interval_s: float = INTERVAL_S) -> None:
        self.held_s = 0.0
        self._on_lag = on_lag
        self._interval_s = interval_s

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._measure()

    def _start(self) -> None:
        self._spent_s = time.process_time()
        self._due_s = self._loop.time() + self._interval_s
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def _ring(self) -> None:
        self._measure()
        self._start()

    def _measure(self) -> None:
        late_s = max(self._loop.time() - self._due_s, 0.0)
        self.held_s = max(self.held_s, min(late_s, time.process_time() - self._spent_s))
        self._on_lag(late_s)
