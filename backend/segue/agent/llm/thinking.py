"""Tells a model's thinking from its answer where both come as one text: `<think>…</think>`, however it is cut.

Knows nothing of messages and providers.
"""

import re
from dataclasses import dataclass
from typing import Final

# How templates mark thinking: begin and end.
TAGS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
)
# Models whose templates write the first tag into the prompt: their answers begin inside it.
_BEGIN_INSIDE = re.compile(r"deepseek-?r1|\bqwq\b|-thinking\b", re.IGNORECASE)

_END_OF: Final = dict(TAGS)
_ENDS: Final = frozenset(_END_OF.values())
_ANY_TAG: Final = re.compile("|".join(re.escape(tag) for pair in TAGS for tag in pair) + "|```")
_STARTS: Final = frozenset(tag[:length] for pair in TAGS for tag in pair for length in range(1, len(tag)))
_LONGEST: Final = max(map(len, _STARTS))


def begins_inside(model: str) -> bool:
    """Returns whether a model of this name is known to begin its answers inside its thinking."""
    return _BEGIN_INSIDE.search(model) is not None


@dataclass(slots=True)
class Told:
    """What a piece of text adds. `withdrawn` says that all the text told before was thinking."""

    text: str = ""
    thinking: str = ""
    withdrawn: bool = False


class Thinking:
    """With `held`, text is kept until the end of the thinking it may be part of."""

    def __init__(self, *, held: bool = False) -> None:
        self.began_inside = False
        self._held = held
        self._pending = ""
        self._end: str | None = None  # of the thinking it is in
        self._had_tag = False
        self._in_fence = False
        self._last = ""
        self._outside: list[str] = []

    def add(self, piece: str) -> Told:
        told = Told()
        text = self._pending + piece
        place = 0
        for found in _ANY_TAG.finditer(text):
            self._tell(told, text[place : found.start()])
            self._meet(told, found.group())
            place = found.end()
        rest = text[place:]
        kept = _start_of_a_tag(rest)
        self._tell(told, rest[: len(rest) - kept])
        self._pending = rest[len(rest) - kept :]
        return told

    def end(self) -> Told:
        """Returns what was kept back and turned out to be text."""
        told = Told()
        self._tell(told, self._pending)
        self._pending = ""
        if self._held:
            self._held = False
            told.text = "".join(self._outside)
        return told

    def _meet(self, told: Told, tag: str) -> None:
        is_quoted = not self._held and (self._in_fence or self._last == "`")
        if self._end is not None:
            if tag == self._end:
                self._end = None
            else:
                self._tell(told, tag)
        elif tag == "```":
            self._tell(told, tag)
            self._in_fence = not self._in_fence
        elif tag in _END_OF and not is_quoted:
            self._end, self._had_tag = _END_OF[tag], True
            self._let_go(told)
        elif tag in _ENDS and not is_quoted and not self._had_tag:
            self._withdraw(told)
        elif is_quoted:
            self._tell(told, tag)

    def _withdraw(self, told: Told) -> None:
        """All the text so far was thinking: its first tag was in the prompt."""
        told.thinking = told.thinking + "".join(self._outside)
        told.text, told.withdrawn = "", True
        self._outside.clear()
        self._had_tag = self.began_inside = True
        self._held = self._in_fence = False

    def _let_go(self, told: Told) -> None:
        if self._held:
            self._held = False
            told.text += "".join(self._outside)

    def _tell(self, told: Told, text: str) -> None:
        if not text:
            return
        self._last = text[-1]
        if self._end is not None:
            told.thinking += text
            return
        if not self._had_tag:
            self._outside.append(text)
        if not self._held:
            told.text += text


def _start_of_a_tag(text: str) -> int:
    """Returns how many characters at the end may be the beginning of a tag, or of the fence around one."""
    if text.endswith("``"):
        return 2
    return next((n for n in range(min(_LONGEST, len(text)), 0, -1) if text[-n:] in _STARTS or text[-n:] == "`"), 0)
