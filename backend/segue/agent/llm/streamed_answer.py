"""Puts an answer together, whole or from its chunks: words are passed on as they come, calls are read when complete.

The words that are passed on and the text that is kept are the same. Knows nothing of turns, events and providers.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk

from segue.agent.llm.model_errors import NotAnAnswer, NothingCame, StreamIdle
from segue.agent.llm.reply import (
    CALLS,
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
from segue.agent.llm.thinking import Thinking, Told
from segue.memory.token_count import estimate
from segue.tools.normalize import clean_text

OnText = Callable[[str], None]

# Why a provider stopped, if it is a reason not to take what came for an answer: what people are told, and whether to
# ask the same again.
_NOT_ENDED: Final = {
    "error": ("The model provider broke the answer off with an error.", True),
    "content_filter": ("The model provider's content filter stopped the answer.", False),
}
_CUT_OFF: Final = "length"
_NAME_CHARS: Final = 100


def _unheard(_: str) -> None:
    """What a listener does with thinking that it has no use for."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Follows an answer word by word. `on_withdrawn` is told that all the words so far were the model's thinking."""

    on_text: OnText
    on_withdrawn: Callable[[], None]
    on_reasoning: OnText = _unheard


async def within_pauses(
    chunks: AsyncIterator[AIMessage], *, first_token_s: float, idle_s: float
) -> AsyncGenerator[AIMessage]:
    """Yields the chunks. Before the first with a content each may take `first_token_s`, afterwards `idle_s`.

    Raises NothingCame, then StreamIdle.
    """
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


@dataclass(slots=True)
class _PiecedCall:
    id: str | None
    name: str
    args: str


class StreamedAnswer:
    """The listener is given the words: clean, without blank ends, and never half a character.

    `begins_inside` says that the model is known to begin inside its thinking; afterwards, whether it has done so.
    """

    def __init__(self, listener: Listener | None = None, *, begins_inside: bool = False) -> None:
        self._listener = listener
        self._thinking = Thinking(held=begins_inside)
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._half = ""
        self._blank = ""
        self._heard = False
        self._pieces: dict[int | None, list[_PiecedCall]] = {}
        self._calls: list[ModelCall] = []
        self._opaque: Opaque | None = None
        self._finish_reason: str | None = None
        self._usage: UsageMetadata | None = None
        self._answered_by = ""
        self._response_id = ""

    @property
    def has_begun(self) -> bool:
        """Whether a listener has heard words: they cannot be taken back."""
        return self._heard

    @property
    def has_come(self) -> bool:
        """Whether any of the answer has come, also if no listener has heard it."""
        return bool(self._texts or self._reasoning or self._pieces or self._calls or self._usage)

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
            calls=(*self._calls, *(_as_asked(RawCall(call.id, call.name, call.args)) for call in pieces)),
            input_tokens=0,
            output_tokens=0,
            reasoning=clean_text("".join(self._reasoning)).strip(),
            opaque=self._opaque,
            answered_by=_name(self._answered_by),
            response_id=_name(self._response_id),
            finish_reason=_name(self._finish_reason or ""),
        )
        return _counted(reply, self._usage)

    def _add_text(self, piece: str) -> None:
        piece = self._half + piece
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        self._pass_on(self._thinking.add(clean_text(piece.removesuffix(self._half))))

    def _pass_on(self, told: Told) -> None:
        if told.withdrawn:
            self._texts.clear()
            self._blank = ""
            if self._heard and self._listener is not None:
                self._listener.on_withdrawn()
            self._heard = False
        if told.thinking:
            self._add_reasoning(told.thinking)
        joined = self._blank + told.text
        text = joined.rstrip()
        self._blank = joined[len(text) :]
        if not self._texts:
            text = text.lstrip()
        if text:
            self._texts.append(text)
            if self._listener is not None:
                self._heard = True
                self._listener.on_text(text)

    def _add_reasoning(self, text: str) -> None:
        self._reasoning.append(text)
        if self._listener is not None:
            self._listener.on_reasoning(clean_text(text))

    def _add_piece(self, piece: ToolCallChunk) -> None:
        # Pieces of a call share an index. Another id under it is another call; without an index each name begins one.
        calls = self._pieces.setdefault(piece["index"], [])
        is_another = piece["name"] if piece["index"] is None else piece["id"] and calls and calls[-1].id != piece["id"]
        if not calls or is_another:
            calls.append(_PiecedCall(piece["id"], piece["name"] or "", piece["args"] or ""))
            return
        calls[-1].name += piece["name"] or ""
        calls[-1].args += piece["args"] or ""


def _name(told: object) -> str:
    return clean_text(str(told))[:_NAME_CHARS]


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
