"""The last lines that a child wrote to its stderr, for people who look for the cause of its end: few, and no secrets.

What a server writes there is its own: it may tell of the arguments of calls.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from segue.domain.redaction import is_recognisable, without, without_secret_texts
from segue.domain.visible import visible

MAX_LINES: Final = 50
MAX_BYTES: Final = 8_000
MAX_LINE_CHARS: Final = 500
_LINE_BYTES: Final = 2_000  # a secret that is cut here is behind what is shown


class Stderr:
    """Of one server, over all its children. Lines are kept as they came: a secret is found in whole lines only."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = frozenset[str]()
        self.hide(secrets)
        self._lines: deque[bytes] = deque(maxlen=MAX_LINES)
        self._of_child = 0
        self._begun = b""
        self._skips = False  # the rest of a line that is too long

    def hide(self, secrets: Iterable[str]) -> None:
        """Shows these no more, whenever they were written."""
        whole = frozenset(filter(None, secrets))
        self._secrets |= whole | {part for each in whole for part in each.splitlines() if is_recognisable(part)}

    def child_starts(self) -> None:
        self._end_line()
        self._of_child = 0

    def child_ended(self) -> None:
        self._end_line()

    def add(self, chunk: bytes) -> None:
        *ended, begun = chunk.split(b"\n")
        for part in ended:
            self._begun += part
            self._end_line()
        self._begun += begun
        if len(self._begun) > _LINE_BYTES:
            self._end_line()
            self._skips = True

    def lines(self) -> list[str]:
        return [self._shown(line) for line in self._lines]

    def of_child(self, at_most: int) -> list[str]:
        """Returns the last lines of the child that was started last."""
        kept = min(self._of_child, at_most)
        return self.lines()[-kept:] if kept else []

    def _end_line(self) -> None:
        line, self._begun = self._begun, b""
        if self._skips:
            self._skips = False
        elif line.strip():
            self._lines.append(line[:_LINE_BYTES])
            self._of_child += 1
        while sum(map(len, self._lines)) > MAX_BYTES:
            self._lines.popleft()

    def _shown(self, line: bytes) -> str:
        text: str = without_secret_texts(without(line.decode(errors="replace"), self._secrets))
        return visible(text.strip())[:MAX_LINE_CHARS]
