"""What a running call says of how far it is: it gives the call its time again, up to a ceiling, and is told to clients.

A tool may report as often as it likes: what is told is cleaned, bounded, and the more seldom the longer the call takes.
"""

import asyncio
import math
from typing import Final

from segue.domain.redaction import without, without_secret_texts
from segue.domain.tool import Reporter, Tool
from segue.tools.normalize import clean_text
from segue.tools.summaries import shown_line

LONGEST: Final = 10  # times its timeout: the ceiling of a call, unless its tool has one of its own
INTERVAL_S: Final = 0.5
TOLD_PER_SLOWDOWN: Final = 20  # after as many the interval grows by INTERVAL_S
MAX_MESSAGE_CHARS: Final = 200
_READ_CHARS: Final = 2000  # of a message, before it is cleaned


class Deadline:
    """When a call has to have ended, in the time of the event loop."""

    def __init__(self, timeout_s: float, longest_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._began = self._loop.time()
        self._last = self._began + (longest_s or LONGEST * timeout_s)
        self.at = min(self._began + timeout_s, self._last)

    @property
    def left_s(self) -> float:
        return self.at - self._loop.time()

    @property
    def allowed_s(self) -> float:
        """From the begin of the call to its deadline."""
        return self.at - self._began

    def extend(self) -> None:
        self.at = min(self._loop.time() + self._timeout_s, self._last)


class ToolProgress:
    """Hears what one call reports. Only in the event loop's thread."""

    def __init__(self, tool: Tool, deadline: Deadline, tell: Reporter) -> None:
        self._tool = tool
        self._deadline = deadline
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._latest: tuple[float, float | None, str | None] | None = None
        self._told = 0
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def heard(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._closed or not math.isfinite(progress):
            return
        self._deadline.extend()
        self._latest = progress, total if total is None or math.isfinite(total) else None, message
        if self._timer is None:
            self._timer = self._loop.call_later(max(self._next_at - self._loop.time(), 0), self._tell_latest)

    def close(self) -> None:
        """What is reported later is late: the call has ended."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _tell_latest(self) -> None:
        self._timer = None
        if self._latest is None:
            return
        (progress, total, message), self._latest = self._latest, None
        self._told += 1
        self._next_at = self._loop.time() + INTERVAL_S * (1 + self._told // TOLD_PER_SLOWDOWN)
        self._tell(progress, total, self._shown(message) if message else None)

    def _shown(self, message: str) -> str:
        text: str = without_secret_texts(without(clean_text(message[:_READ_CHARS]), self._tool.secrets))
        return shown_line(text, MAX_MESSAGE_CHARS)
