"""Puts a streamed answer together from its chunks: words are passed on as they come, calls are read when complete.

The words that are passed on and the text that is kept are the same. Knows nothing of turns and events.
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

OnText = Callable[[str], None]
Piece = TypeVar("Piece")
RAW_TEXT = "raw_text"  # in additional_kwargs: text that ends in half a character, which `content` may not hold


class StreamIdle(Exception):
    """The provider began an answer and fell silent."""


async def within_idle(pieces: AsyncIterator[Piece], idle_s: float) -> AsyncGenerator[Piece]:
    """Yields the pieces. Raises StreamIdle if more than `idle_s` pass between two; the first may take any time."""
    async with aclosing(pieces):  # type: ignore[type-var]  # LangChain's streams are generators
        timeout_s = None
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    piece = await anext(pieces, None)
            except TimeoutError as error:
                raise StreamIdle from error
            if piece is None:
                return
            yield piece
            timeout_s = idle_s


@dataclass(slots=True)
class _Call:
    id: str | None
    name: str
    args: str


class StreamedAnswer:
    """`on_text` is given the words: clean, without blank ends, and never half a character."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._texts: list[str] = []
        self._half = ""
        self._blank = ""
        self._calls: dict[int | None, list[_Call]] = {}
        self._finish_reason: str | None = None
        self._usage: UsageMetadata | None = None

    @property
    def has_begun(self) -> bool:
        """Whether any words have been passed on: they cannot be taken back."""
        return bool(self._texts)

    def add(self, message: AIMessage) -> None:
        """Takes a chunk, or the whole answer of a model that cannot stream."""
        chunk = message if isinstance(message, Chunk) else _as_one_chunk(message)
        if text := chunk.additional_kwargs.get(RAW_TEXT) or chunk.text:
            self._add_text(text)
        for piece in chunk.tool_call_chunks:
            self._add_call(piece)
        self._finish_reason = chunk.response_metadata.get("finish_reason") or self._finish_reason
        self._usage = chunk.usage_metadata or self._usage

    def message(self) -> AIMessage:
        """Returns the answer as the model would have given it in one piece."""
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
            "".join(self._texts),
            tool_calls=whole,
            invalid_tool_calls=broken,
            usage_metadata=self._usage,
            response_metadata={"finish_reason": self._finish_reason},
        )

    def _add_text(self, piece: str) -> None:
        piece = self._half + piece
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        cleaned = self._blank + clean_text(piece.removesuffix(self._half))
        text = cleaned.rstrip()
        self._blank = cleaned[len(text) :]
        if not self._texts:
            text = text.lstrip()
        if text:
            self._texts.append(text)
            self._on_text(text)

    def _add_call(self, piece: ToolCallChunk) -> None:
        # Pieces of a call share an index. Another id under it is another call; without an index each name begins one.
        calls = self._calls.setdefault(piece["index"], [])
        is_another = piece["name"] if piece["index"] is None else piece["id"] and calls and calls[-1].id != piece["id"]
        if not calls or is_another:
            calls.append(_Call(piece["id"], piece["name"] or "", piece["args"] or ""))
            return
        calls[-1].name += piece["name"] or ""
        calls[-1].args += piece["args"] or ""


def _as_one_chunk(message: AIMessage) -> Chunk:
    return Chunk(
        content=message.text,
        tool_calls=message.tool_calls,
        invalid_tool_calls=message.invalid_tool_calls,
        usage_metadata=message.usage_metadata,
        response_metadata=message.response_metadata,
    )


def _arguments(text: str) -> dict[str, Any] | None:
    """Returns None for what is no JSON object; no arguments at all are an empty one."""
    try:
        args = json.loads(text or "{}", strict=False)
    except (ValueError, RecursionError):
        return None
    return args if isinstance(args, dict) else {} if args is None else None
