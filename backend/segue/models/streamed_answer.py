"""Puts an answer together, whole or from its chunks: words are passed on as they come, calls are read when complete.
`<think>…</think>`, however it is cut, is separated from the answer. The words passed on are the text that is kept.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from langchain_core.messages.ai import UsageMetadata

from segue.memory.history_window import estimate
from segue.models import calls_in_text
from segue.models.calls_in_text import CALL_MARKS, MARKS
from segue.models.refusals import NotAnAnswer, NothingCame, StreamIdle
from segue.models.reply import REFUSED, SIGN_OF_LIFE, AnswerPart, CallPiece, ModelCall, Opaque, Reply, token_count
from segue.tools.normalize import clean_text

AT_ONCE: Final = 16  # parts, between which nothing else runs
ANSWER_CHANNEL: Final[str] = MARKS["answer"]["channel"]
WRAPPERS: Final = frozenset((ANSWER_CHANNEL, *MARKS["answer"]["wrappers"]))
LEAKED: Final[str] = MARKS["leaked"]["begins"]
AFTER_LEAKED: Final[Mapping[str, str]] = MARKS["leaked"]["ends"]
_FENCE: Final = "```"
_END_OF: Final[Mapping[str, str]] = MARKS["thinking"]
_ENDS: Final = frozenset(_END_OF.values()) - WRAPPERS

# Why a provider stopped, if it is a reason not to take what came for an answer: what the user reads, and whether to
# ask the same again. What the model had said before it refused to go on stands.
_NOT_ENDED: Final = {
    "error": ("The model provider broke the answer off with an error.", True),
    **dict.fromkeys(("content_filter", REFUSED), ("The model provider's content filter stopped the answer.", False)),
}
_CUT_OFF: Final = "length"

OnText = Callable[[str], None]
ReadCalls = Callable[[str], Sequence[ModelCall]]  # returns the calls that a text is, or none


@dataclass(slots=True)
class Addition:
    """The text that a piece adds. `withdrawn` says that all the text before was thinking."""

    text: str = ""
    thinking: str = ""
    withdrawn: bool = False


class Marks:
    """Finds texts in one that comes in pieces."""

    def __init__(self, *marks: str) -> None:
        alike = groupby(sorted(marks), lambda mark: re.escape(mark[:2]))  # else each would be tried at every "<"
        self.any = re.compile("|".join(f"{two}(?:{'|'.join(re.escape(m[2:]) for m in each)})" for two, each in alike))
        self._starts = frozenset(mark[:length] for mark in marks for length in range(1, len(mark)))
        self._longest = max(map(len, self._starts))
        self._first = re.compile(f"[{re.escape(''.join({mark[0] for mark in marks}))}]")

    def begun(self, text: str) -> int:
        """Returns how many characters at the end may be the beginning of a mark."""
        begins = self._first.search(text, max(len(text) - self._longest, 0))
        most = len(text) - begins.start() if begins else 0
        return next((n for n in range(most, 0, -1) if text[-n:] in self._starts), 0)


_MARKS: Final = Marks(*_END_OF, *_ENDS, *WRAPPERS, *CALL_MARKS, _FENCE)
_LEAKED_MARKS: Final = Marks(*AFTER_LEAKED)
_WORD: Final = re.compile(r"\S")


class MarkedText:
    """Separates words from thinking, and from possible calls, up to the end of the answer. With `held`, text is kept
    until the end of the thinking it may be part of. Only with `may_call` are there calls.
    """

    def __init__(self, *, held: bool = False, may_call: bool = False) -> None:
        self.began_inside = False
        self._held = held
        self._may_call = may_call
        self._marks = _MARKS
        self._pending = ""
        self._end: str | None = None  # of the thinking it is in
        self._had_tag = False
        self._in_fence = False
        self._has_said = False
        self._is_at_line_start = True
        self._last = ""
        self._outside: list[str] = []
        self._calls: list[str] = []
        self._call_chars = 0

    def add(self, piece: str) -> Addition:
        added = Addition()
        if text := self._kept(piece) if self._calls else self._pending + piece:
            self._add(added, text)
        return added

    def end(self) -> tuple[Addition, str]:
        """Returns the kept text that turned out to be words, and that which may be calls."""
        added = Addition()
        self._append(added, self._pending)
        self._pending = ""
        self._release(added)
        return added, "".join(self._calls)

    def without_calls(self, text: str) -> Addition:
        """Returns the text that might have been calls as words."""
        added = Addition()
        self._calls, self._may_call = [], False
        self._add(added, text)
        self._append(added, self._pending)
        return added

    def _add(self, added: Addition, text: str) -> None:
        place, self._pending = 0, ""
        while not self._waits(added, text, place) and (found := self._marks.any.search(text, place)):
            self._append(added, text[place : found.start()])
            mark, place = found.group(), found.end()
            if self._begins_calls(mark) and not self._kept(text[found.start() :]):
                return
            if mark in AFTER_LEAKED:
                self._withdraw(added)
                text, place = AFTER_LEAKED[mark] + text[place:], 0
            else:
                self._on_mark(added, mark)
        if not self._pending and not self._calls:
            begun = self._marks.begun(text[place:])
            self._append(added, text[place : len(text) - begun])
            self._pending = text[len(text) - begun :]

    def _waits(self, added: Addition, text: str, place: int) -> bool:
        """Returns whether the answer begins as channels that are leaked or calls may, and so waits for more."""
        if self._has_said or self._end is not None or not (word := _WORD.search(text, place)):
            return False
        head = text[word.start() : word.start() + calls_in_text.MAX_OPENING_CHARS]
        if not self._had_tag and not self._held:
            if LEAKED.startswith(head):
                self._pending = text[place:]
                return True
            if head.startswith(LEAKED) and not head[len(LEAKED)].isspace():
                self._held, self._marks = True, _LEAKED_MARKS
        if not self._may_call or head[0] not in calls_in_text.OPENINGS or not calls_in_text.may_be_calls(head):
            return False
        self._append(added, text[place : word.start()])
        return not self._kept(text[word.start() :])

    def _begins_calls(self, mark: str) -> bool:
        if self._end is not None or self._in_fence or not self._may_call or mark not in CALL_MARKS:
            return False
        return self._is_at_line_start or (CALL_MARKS[mark] and self._last not in calls_in_text.QUOTES)

    def _kept(self, text: str) -> str:
        """Keeps a text that may be calls. Returns all that was kept once it is none."""
        is_opening = self._call_chars <= calls_in_text.MAX_OPENING_CHARS
        self._calls.append(text)
        self._call_chars += len(text)
        self._may_call = self._call_chars <= calls_in_text.MAX_CALL_CHARS
        if self._may_call and (not is_opening or calls_in_text.may_be_calls("".join(self._calls))):
            return ""
        kept, self._calls, self._call_chars = "".join(self._calls), [], 0
        return kept

    def _on_mark(self, added: Addition, mark: str) -> None:
        is_quoted = not self._held and (self._in_fence or self._last == "`")
        if self._end == mark or (self._end is not None and mark == ANSWER_CHANNEL):
            self._end = None
        elif self._end is not None:
            self._append(added, "" if mark in WRAPPERS else mark)
        elif mark == _FENCE:
            self._append(added, mark)
            self._in_fence = not self._in_fence
        elif is_quoted or mark in CALL_MARKS:
            self._append(added, mark)
        elif mark in _END_OF:
            self._end, self._had_tag = _END_OF[mark], True
            self._release(added)
        elif mark in _ENDS and not self._had_tag:
            self._withdraw(added)
            self.began_inside = True

    def _withdraw(self, added: Addition) -> None:
        """All the text so far was thinking: its first tag was in the prompt, or dropped with the marks of channels."""
        thought = "".join(self._outside)
        added.thinking += thought.removeprefix(LEAKED) if self._marks is _LEAKED_MARKS else thought
        added.text, added.withdrawn = "", True
        self._outside, self._last, self._marks = [], "", _MARKS
        self._had_tag = self._is_at_line_start = True
        self._held = self._in_fence = self._has_said = False

    def _release(self, added: Addition) -> None:
        if self._held:
            self._held = False
            added.text += "".join(self._outside)

    def _append(self, added: Addition, text: str) -> None:
        if not text:
            return
        if self._end is not None:
            added.thinking += text
            return
        self._has_said = self._has_said or not text.isspace()
        _, newline, line = text.rpartition("\n")
        self._is_at_line_start = not line.strip() and (bool(newline) or self._is_at_line_start)
        self._last = text[-1]
        if not self._had_tag:
            self._outside.append(text)
        if not self._held:
            added.text += text


@dataclass(frozen=True, slots=True)
class Listener:
    """Follows an answer word by word."""

    on_text: OnText
    on_withdrawn: Callable[[], None]  # called once all the words so far turn out to be thinking
    on_reasoning: OnText = lambda _: None
    on_call: Callable[[CallPiece], None] = lambda _: None
    on_asked: Callable[[], None] = lambda: None  # before an answer comes: one that broke off may have left pieces


async def within_pauses(
    parts: AsyncGenerator[AnswerPart], *, first_token_s: float, idle_s: float
) -> AsyncGenerator[AnswerPart]:
    """Yields the parts. Raises NothingCame before the first, then StreamIdle, if no byte has come for too long."""
    count, loop = 0, asyncio.get_running_loop()
    waits_since: float | None = loop.time()  # None while something is done with a part, which is no pause
    timer: asyncio.TimerHandle

    def hear() -> None:
        nonlocal waits_since
        waits_since = None if waits_since is None else loop.time()

    def look() -> None:
        """Looks once a pause, not at every part: a timer for each would take a twelfth of what a part takes."""
        nonlocal timer
        pause_s, now = idle_s if count else first_token_s, loop.time()
        ends_at = (now if waits_since is None else waits_since) + pause_s
        if ends_at <= now:
            limit.reschedule(now)
        else:
            timer = loop.call_at(ends_at, look)

    SIGN_OF_LIFE.set(hear)
    async with aclosing(parts):
        timer = loop.call_later(first_token_s, look)
        try:
            async with asyncio.timeout(None) as limit:
                async for part in parts:
                    waits_since = None
                    yield part
                    count += 1
                    if count % AT_ONCE == 0:  # one read can hold hundreds, which would keep everything else waiting
                        await asyncio.sleep(0)
                    waits_since = loop.time()
                    if count == 1:
                        timer.cancel()
                        look()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise (StreamIdle(idle_s) if count else NothingCame(first_token_s)) from error
        finally:
            timer.cancel()


class StreamedAnswer:
    """The listener is given the words: clean, without blank ends, and never half a character. `has_begun` says that it
    has heard some, which cannot be taken back.

    `begins_inside` says that the model is known to begin inside its thinking; afterwards, whether it has done so.
    Without `read_calls` no text is a call. `called_in_text`: some was.
    """

    def __init__(
        self, listener: Listener | None = None, *, begins_inside: bool = False, read_calls: ReadCalls | None = None
    ) -> None:
        self._listener = listener
        self._marked = MarkedText(held=begins_inside, may_call=read_calls is not None)
        self._read_calls = read_calls
        self.called_in_text = False
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._received: list[str] = []  # words and thinking, also what is held back
        self._called: list[str] = []  # what of the calls has come, or the calls once they are whole
        self._half = ""
        self._blank = ""
        self.has_begun = False
        self._calls: list[ModelCall] = []
        self._images: list[str] = []
        self._opaque: Opaque | None = None
        self._finish_reason: str | None = None
        self._usage: UsageMetadata | None = None
        self._answered_by = ""
        self._response_id = ""

    @property
    def has_come(self) -> bool:
        """Whether any of the answer has come, also if no listener has heard it."""
        return bool(self._received or self._called or self._images or self._usage)

    @property
    def begins_inside(self) -> bool:
        return self._marked.began_inside

    def add(self, part: AnswerPart) -> None:
        self._received += filter(None, (part.text, part.reasoning))
        self._called += [piece.args for piece in part.pieces]
        if part.reasoning:
            self._add_reasoning(part.reasoning)
        if part.text:
            piece = self._half + part.text
            self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
            self._pass_on(self._marked.add(clean_text(piece.removesuffix(self._half))))
        if self._listener is not None:
            for call in part.pieces:
                self._listener.on_call(call)
        self._calls += part.calls
        self._called = [f"{call.name}{call.args}" for call in self._calls] or self._called
        self._images += part.images
        self._opaque = part.opaque or self._opaque
        self._finish_reason = _name(part.finish_reason or "") or self._finish_reason
        self._answered_by = part.answered_by or self._answered_by
        self._response_id = part.response_id or self._response_id
        self._usage = part.usage or self._usage

    def reply(self) -> Reply:
        """Returns the whole reply, which may be empty. Raises NotAnAnswer if it broke off."""
        added, call_text = self._marked.end()
        self._pass_on(added)
        if call_text and self._read_calls is not None:
            calls = self._read_calls(call_text)
            if calls and not self._calls:
                self._calls += calls
                self.called_in_text = True
            elif self._finish_reason != _CUT_OFF or not call_text.startswith(tuple(CALL_MARKS)):
                # Beside other calls it is quoted, since the endpoint reads calls itself.
                self._pass_on(self._marked.without_calls(call_text))
        reply = self.so_far()
        if self._finish_reason == REFUSED and reply.text:
            return replace(reply, calls=())
        if self._finish_reason in _NOT_ENDED:
            detail, again = _NOT_ENDED[self._finish_reason]
            raise NotAnAnswer(detail, again=again, is_filtered=self._finish_reason != "error")
        if self._finish_reason == _CUT_OFF and (reply.calls or not reply.text):
            raise NotAnAnswer("The model's answer reached its length limit before it was complete.", again=False)
        return reply

    def so_far(self) -> Reply:
        reply = Reply(
            text="".join(self._texts),
            calls=tuple(self._calls),
            input_tokens=0,
            output_tokens=0,
            reasoning=clean_text("".join(self._reasoning)).strip(),
            opaque=self._opaque,
            answered_by=_name(self._answered_by),
            response_id=_name(self._response_id),
            finish_reason=self._finish_reason or "",
            images=tuple(dict.fromkeys(self._images)),
        )
        return _counted(reply, self._usage, ("".join(self._received), "".join(self._called)))

    def _pass_on(self, added: Addition) -> None:
        if added.withdrawn:
            self._texts.clear()
            self._blank = ""
            if self.has_begun and self._listener is not None:
                self._listener.on_withdrawn()
            self.has_begun = False
        if added.thinking:
            self._add_reasoning(added.thinking)
        joined = self._blank + added.text
        text = joined.rstrip()
        self._blank = joined[len(text) :]
        if not self._texts:
            text = text.lstrip()
        if text:
            self._texts.append(text)
            if self._listener is not None:
                self.has_begun = True
                self._listener.on_text(text)

    def _add_reasoning(self, text: str) -> None:
        self._reasoning.append(text)
        if self._listener is not None:
            self._listener.on_reasoning(clean_text(text))


def _name(name: object) -> str:
    return clean_text(str(name))[:100]


def _counted(reply: Reply, usage: UsageMetadata | None, written: Iterable[str]) -> Reply:
    """Returns the reply with its tokens. Those of the input are not known here if the endpoint counted none."""
    if usage is None or (usage["input_tokens"] and not usage["output_tokens"]):
        reply = replace(reply, output_tokens=sum(map(estimate, written)), estimated=True)
    if usage is None:
        return reply
    input_details, output_details = usage.get("input_token_details", {}), usage.get("output_token_details", {})
    return replace(
        reply,
        input_tokens=token_count(usage["input_tokens"]),
        output_tokens=token_count(usage["output_tokens"]) or reply.output_tokens,
        cached_tokens=_detail(input_details, "cache_read"),
        written_tokens=_detail(input_details, "cache_creation", "_input_tokens"),
        reasoning_tokens=_detail(output_details, "reasoning"),
    )


def _detail(details: Mapping[str, object], *names: str) -> int:
    """Returns the tokens of a kind. LangChain writes a tier or how long a cache lasts before its name."""
    return sum(token_count(count) for name, count in details.items() if name.endswith(names))
