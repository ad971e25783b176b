"""A streamed answer, put together from its pieces: words go to whoever listens, the whole is judged like any other.

What is heard and what is kept are the same text. Calls are read only when they are complete.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall
from langchain_core.messages import AIMessageChunk as Chunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk

from segue.tools.normalize import clean_text

Hear = Callable[[str], None]
Piece = TypeVar("Piece")
RAW_TEXT = "raw_text"  # in additional_kwargs: a piece of text that is only half a character


class StreamIdle(Exception):
    """The provider began an answer and fell silent."""


async def within_idle(pieces: AsyncIterator[Piece], idle_s: float) -> AsyncGenerator[Piece]:
    """Raises StreamIdle where a piece is followed by nothing. How long the first may take is the caller's to say."""
    async with aclosing(pieces):  # type: ignore[type-var]  # LangChain's streams are generators
        patience = None
        while True:
            try:
                async with asyncio.timeout(patience):
                    piece = await anext(pieces, None)
            except TimeoutError as error:
                raise StreamIdle from error
            if piece is None:
                return
            yield piece
            patience = idle_s


class Speech:
    """Words on their way out: clean, without blank ends, characters whole even where the provider cuts through them."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._said: list[str] = []
        self._half = ""
        self._blank = ""

    @property
    def heard(self) -> bool:
        return bool(self._said)

    @property
    def text(self) -> str:
        return "".join(self._said)

    def add(self, piece: str) -> None:
        piece = self._half + piece
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        text = self._blank + clean_text(piece.removesuffix(self._half))
        said = text.rstrip()
        self._blank = text[len(said) :]
        if not self._said:
            said = said.lstrip()
        if said:
            self._said.append(said)
            self._hear(said)


@dataclass(slots=True)
class _Call:
    id: str | None
    name: str
    args: str


class StreamedAnswer:
    def __init__(self, speech: Speech) -> None:
        self._speech = speech
        self._calls: dict[int | None, list[_Call]] = {}
        self._finish_reason: str | None = None
        self._usage: UsageMetadata | None = None

    def add(self, message: AIMessage) -> None:
        """A piece, or all of it where the model cannot stream."""
        chunk = message if isinstance(message, Chunk) else _as_one_piece(message)
        if text := chunk.additional_kwargs.get(RAW_TEXT) or chunk.text:
            self._speech.add(text)
        for piece in chunk.tool_call_chunks:
            self._add_call(piece)
        self._finish_reason = chunk.response_metadata.get("finish_reason") or self._finish_reason
        self._usage = chunk.usage_metadata or self._usage

    def message(self) -> AIMessage:
        """As the model would have answered at once."""
        whole: list[ToolCall] = []
        broken: list[InvalidToolCall] = []
        for call in (call for calls in self._calls.values() for call in calls):
            args = _arguments(call.args)
            if args is None:
                broken.append(
                    InvalidToolCall(type="invalid_tool_call", name=call.name, args=call.args, id=call.id, error=None)
                )
            else:
                whole.append(ToolCall(name=call.name, args=args, id=call.id))
        return AIMessage(
            self._speech.text,
            tool_calls=whole,
            invalid_tool_calls=broken,
            usage_metadata=self._usage,
            response_metadata={"finish_reason": self._finish_reason},
        )

    def _add_call(self, piece: ToolCallChunk) -> None:
        """Pieces of a call share an index; another id under it is another call, and without an index each name is."""
        calls = self._calls.setdefault(piece["index"], [])
        is_another = piece["name"] if piece["index"] is None else piece["id"] and calls and calls[-1].id != piece["id"]
        if not calls or is_another:
            calls.append(_Call(piece["id"], piece["name"] or "", piece["args"] or ""))
            return
        calls[-1].name += piece["name"] or ""
        calls[-1].args += piece["args"] or ""


def _as_one_piece(message: AIMessage) -> Chunk:
    return Chunk(
        content=message.text,
        tool_calls=message.tool_calls,
        invalid_tool_calls=message.invalid_tool_calls,
        usage_metadata=message.usage_metadata,
        response_metadata=message.response_metadata,
    )


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        args = json.loads(text or "{}", strict=False)
    except (ValueError, RecursionError):
        return None
    return args if isinstance(args, dict) else {} if args is None else None
