"""Puts an answer together, whole or from its chunks: words are passed on as they come, calls are read when complete.

A model's thinking is told from its answer where both come as one text: `<think>…</think>`, however it is cut. The words
that are passed on and the text that is kept are the same. Knows nothing of turns, events and providers.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk

from segue.memory.history_window import estimate
from segue.models.refusals import NotAnAnswer, NothingCame, StreamIdle
from segue.models.reply import (
    CALLS,
    MADE_IMAGES,
    OPAQUE,
    RAW_TEXT,
    REASONING,
    ModelCall,
    Opaque,
    RawCall,
    Reply,
    read_arguments,
    sendable_name,
    texts_of,
    token_count,
)
from segue.tools.normalize import clean_text

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

# Why a provider stopped, if it is a reason not to take what came for an answer: what the user reads, and whether to
# ask the same again.
_NOT_ENDED: Final = {
    "error": ("The model provider broke the answer off with an error.", True),
    "content_filter": ("The model provider's content filter stopped the answer.", False),
}
_CUT_OFF: Final = "length"
_NAME_CHARS: Final = 100

OnText = Callable[[str], None]


def begins_inside(model: str) -> bool:
    """Returns whether a model of this name is known to begin its answers inside its thinking."""
    return _BEGIN_INSIDE.search(model) is not None


@dataclass(slots=True)
class Addition:
    """What a piece of text adds. `withdrawn` says that all the text before was thinking."""

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

    def add(self, piece: str) -> Addition:
        added = Addition()
        text = self._pending + piece
        place = 0
        for found in _ANY_TAG.finditer(text):
            self._append(added, text[place : found.start()])
            self._on_tag(added, found.group())
            place = found.end()
        rest = text[place:]
        kept = _start_of_a_tag(rest)
        self._append(added, rest[: len(rest) - kept])
        self._pending = rest[len(rest) - kept :]
        return added

    def end(self) -> Addition:
        """Returns what was kept back and turned out to be text."""
        added = Addition()
        self._append(added, self._pending)
        self._pending = ""
        self._release(added)
        return added

    def _on_tag(self, added: Addition, tag: str) -> None:
        is_quoted = not self._held and (self._in_fence or self._last == "`")
        if self._end == tag:
            self._end = None
        elif self._end is not None:
            self._append(added, tag)
        elif tag == "```":
            self._append(added, tag)
            self._in_fence = not self._in_fence
        elif tag in _END_OF and not is_quoted:
            self._end, self._had_tag = _END_OF[tag], True
            self._release(added)
        elif tag in _ENDS and not is_quoted and not self._had_tag:
            self._withdraw(added)
        elif is_quoted:
            self._append(added, tag)

    def _withdraw(self, added: Addition) -> None:
        """All the text so far was thinking: its first tag was in the prompt."""
        added.thinking += "".join(self._outside)
        added.text, added.withdrawn = "", True
        self._outside.clear()
        self._had_tag = self.began_inside = True
        self._held = self._in_fence = False

    def _release(self, added: Addition) -> None:
        if self._held:
            self._held = False
            added.text += "".join(self._outside)

    def _append(self, added: Addition, text: str) -> None:
        if not text:
            return
        self._last = text[-1]
        if self._end is not None:
            added.thinking += text
            return
        if not self._had_tag:
            self._outside.append(text)
        if not self._held:
            added.text += text


def _start_of_a_tag(text: str) -> int:
    """Returns how many characters at the end may be the beginning of a tag, or of the fence around one."""
    if text.endswith("``"):
        return 2
    return next((n for n in range(min(_LONGEST, len(text)), 0, -1) if text[-n:] in _STARTS or text[-n:] == "`"), 0)


@dataclass(frozen=True, slots=True)
class Listener:
    """Follows an answer word by word. `on_withdrawn` is called once all the words so far turn out to be thinking."""

    on_text: OnText
    on_withdrawn: Callable[[], None]
    on_reasoning: OnText = lambda _: None


async def within_pauses(
    chunks: AsyncIterator[AIMessage], *, first_token_s: float, idle_s: float
) -> AsyncGenerator[AIMessage]:
    """Yields the chunks. Raises NothingCame before the first with a content, then StreamIdle, if one takes too long."""
    async with aclosing(chunks):  # type: ignore[type-var]  # LangChain's streams are generators
        has_begun = False
        while True:
            try:
                async with asyncio.timeout(idle_s if has_begun else first_token_s) as pause:
                    chunk = await anext(chunks, None)
            except TimeoutError as error:
                if not pause.expired():
                    raise
                raise (StreamIdle(idle_s) if has_begun else NothingCame(first_token_s)) from error
            if chunk is None:
                return
            yield chunk
            has_begun = has_begun or not _is_sign_of_life(chunk)
            await asyncio.sleep(0)  # one read can hold hundreds of chunks, which would keep everything else waiting


class StreamedAnswer:
    """The listener is given the words: clean, without blank ends, and never half a character. `has_begun` says that it
    has heard some, which cannot be taken back.

    `begins_inside` says that the model is known to begin inside its thinking; afterwards, whether it has done so.
    """

    def __init__(self, listener: Listener | None = None, *, begins_inside: bool = False) -> None:
        self._listener = listener
        self._thinking = Thinking(held=begins_inside)
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._half = ""
        self._blank = ""
        self.has_begun = False
        self._pieces: dict[int | None, list[RawCall]] = {}
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
        return bool(self._texts or self._reasoning or self._pieces or self._calls or self._images or self._usage)

    @property
    def begins_inside(self) -> bool:
        return self._thinking.began_inside

    def add(self, message: AIMessage) -> None:
        """Takes a chunk, or a whole answer."""
        extra = message.additional_kwargs
        if reasoning := extra.get(REASONING) or _reasoning_blocks(message.content):
            self._add_reasoning(reasoning)
        if text := extra.get(RAW_TEXT) or message.text:
            self._add_text(text)
        if isinstance(message, AIMessageChunk):
            for piece in message.tool_call_chunks:
                self._add_piece(piece)
        else:
            self._calls += (ModelCall(sendable_name(call["name"]), call["args"]) for call in message.tool_calls)
            self._calls += (ModelCall(sendable_name(call["name"] or ""), None) for call in message.invalid_tool_calls)
        self._calls += map(_as_asked, extra.get(CALLS, ()))
        self._images += extra.get(MADE_IMAGES, ())
        self._opaque = extra.get(OPAQUE) or self._opaque
        self._finish_reason = message.response_metadata.get("finish_reason") or self._finish_reason
        self._answered_by = message.response_metadata.get("model_name") or self._answered_by
        self._response_id = message.response_metadata.get("id") or self._response_id
        self._usage = message.usage_metadata or self._usage

    def reply(self) -> Reply:
        """Returns the whole reply, which may be empty. Raises NotAnAnswer if it broke off."""
        self._pass_on(self._thinking.end())
        reply = self.so_far()
        if self._finish_reason in _NOT_ENDED:
            detail, again = _NOT_ENDED[self._finish_reason]
            raise NotAnAnswer(detail, again=again)
        if self._finish_reason == _CUT_OFF and (reply.calls or not reply.text):
            raise NotAnAnswer("The model's answer reached its length limit before it was complete.", again=False)
        return reply

    def so_far(self) -> Reply:
        pieces = [call for calls in self._pieces.values() for call in calls]
        reply = Reply(
            text="".join(self._texts),
            calls=(*self._calls, *map(_as_asked, pieces)),
            input_tokens=0,
            output_tokens=0,
            reasoning=clean_text("".join(self._reasoning)).strip(),
            opaque=self._opaque,
            answered_by=_name(self._answered_by),
            response_id=_name(self._response_id),
            finish_reason=_name(self._finish_reason or ""),
            images=tuple(dict.fromkeys(self._images)),
        )
        return _counted(reply, self._usage)

    def _add_text(self, piece: str) -> None:
        piece = self._half + piece
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        self._pass_on(self._thinking.add(clean_text(piece.removesuffix(self._half))))

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

    def _add_piece(self, piece: ToolCallChunk) -> None:
        # Pieces of a call share an index. Another id under it is another call; without an index each name begins one.
        calls = self._pieces.setdefault(piece["index"], [])
        is_another = piece["name"] if piece["index"] is None else piece["id"] and calls and calls[-1].id != piece["id"]
        name, args = piece["name"] or "", piece["args"] or ""
        if not calls or is_another:
            calls.append(RawCall(piece["id"], name, args))
        else:
            calls[-1] = RawCall(calls[-1].id, calls[-1].name + name, calls[-1].args + args)


def _name(name: object) -> str:
    return clean_text(str(name))[:_NAME_CHARS]


def _as_asked(call: RawCall) -> ModelCall:
    return ModelCall(sendable_name(call.name), read_arguments(call.args), call.opaque)


def _counted(reply: Reply, usage: UsageMetadata | None) -> Reply:
    """Returns the reply with its tokens. Those of the input are not known here if the endpoint counted none."""
    if usage is None:
        return replace(reply, output_tokens=sum(map(estimate, texts_of(reply))), estimated=True)
    return replace(
        reply,
        input_tokens=token_count(usage["input_tokens"]),
        output_tokens=token_count(usage["output_tokens"]),
        cached_tokens=token_count(usage.get("input_token_details", {}).get("cache_read")),
        reasoning_tokens=token_count(usage.get("output_token_details", {}).get("reasoning")),
    )


def _is_sign_of_life(chunk: AIMessage) -> bool:
    """Whether a chunk says no more than that the provider is at work."""
    return not (chunk.content or chunk.additional_kwargs or getattr(chunk, "tool_call_chunks", None))


def _reasoning_blocks(content: object) -> str:
    if not isinstance(content, list):
        return ""
    blocks = (block for block in content if isinstance(block, dict))
    return "".join(str(block.get("reasoning") or block.get("thinking") or "") for block in blocks)
