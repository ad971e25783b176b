"""What LangChain's own models answer, under our keys, and back: their content blocks, and calls among them. Pure.

An answer whose blocks are more than words and calls goes back block by block, with our ids and names of its calls.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall
from langchain_core.messages.ai import UsageMetadata, add_usage

from segue.models.providers.completion_reader import MAX_OPAQUE_BYTES, AnswerWords, image_in, joined, size_of
from segue.models.reply import CALLS, MADE_IMAGES, OPAQUE, Opaque, RawCall, write_json

Block = Mapping[str, Any]

# Where the words are in a block, by its type.
_TEXTS: Final = {"text": "text", "refusal": "refusal"}
_REASONING: Final = {"thinking": "thinking", "reasoning": "summary"}
# How a call is written among the blocks, by the block's type; and what it has there when it comes.
_CALLS: Final[Mapping[str, Callable[[ToolCall], dict[str, Any]]]] = {
    "tool_use": lambda call: {"id": call["id"], "name": call["name"], "input": call["args"]},
    "function_call": lambda call: (
        {"call_id": call["id"], "name": call["name"], "arguments": write_json(call["args"]).decode()}
    ),
}
_INPUTS: Final = {
    "tool_use": frozenset({"id", "name", "input", "partial_json"}),
    "function_call": frozenset({"id", "call_id", "name", "arguments", "status"}),
}
_PIECE_OF_INPUT: Final = "input_json_delta"  # a block in a chunk that says no more than the piece of the call beside it
_NONE: Final = frozenset[str]()
_BYTES_OF_A_CHUNK: Final = 100  # around its words, in an event
# Fields that a text may have and be no more than words, and those of LangChain's own: the rest goes back.
_PLAIN: Final = frozenset({"type", "text", "id", "index", "annotations", "citations"})
_OWN: Final = frozenset({"index"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one of LangChain's packages writes messages. `finish_reason` reads `response_metadata`; `signatures` is the
    key of `additional_kwargs` under which signatures of calls stand, by the calls' ids. `with_cache_marks` marks where
    the beginning of a request ends that later requests will have too.
    """

    name: str
    finish_reason: Callable[[Mapping[str, Any]], str | None]
    signatures: str | None = None
    with_cache_marks: Callable[[Sequence[BaseMessage]], list[BaseMessage]] = list


@dataclass(slots=True)
class _CallInPieces:
    index: object
    id: str | None
    name: str
    args: list[str]


@dataclass(slots=True)
class AnswerReader:
    """`add` takes a whole answer, or its chunks one by one. `size` is about how many bytes have come."""

    dialect: Dialect
    finish_reason: str | None = None
    model: str | None = None
    response_id: str | None = None
    usage: UsageMetadata | None = None
    size: int = 0
    has_begun: bool = False
    images: list[str] = field(default_factory=list)
    _content: list[dict[str, Any]] = field(default_factory=list)
    _calls: list[_CallInPieces] = field(default_factory=list)
    _signatures: dict[str, Any] = field(default_factory=dict)
    _phase: tuple[Any, ...] = ()

    def add(self, message: AIMessage) -> AnswerWords:
        blocks = _blocks(message)
        self.images += filter(None, map(image_in, blocks))
        blocks = [block for block in blocks if block["type"] != "image_generation_call" and not image_in(block)]
        text = "".join(f"{self._before(block)}{_words([block], _TEXTS)}" for block in blocks)
        words = AnswerWords(text, _words(blocks, _REASONING))
        self.size += _BYTES_OF_A_CHUNK + len(words.text.encode(errors="replace")) + len(words.reasoning)
        for call in _pieces(message):
            self._add_piece(call)
        self.has_begun = self.has_begun or bool(words.text or words.reasoning or self._calls or self.images)
        self._content = joined(self._content, [_without(block, _INPUTS.get(block["type"], _NONE)) for block in blocks])
        self._signatures |= message.additional_kwargs.get(self.dialect.signatures or "", {})
        self.finish_reason = self.dialect.finish_reason(message.response_metadata) or self.finish_reason
        told = message.response_metadata
        self.model = self.model or told.get("model_name") or told.get("model")
        self.response_id = self.response_id or told.get("id")
        self.usage = add_usage(self.usage, message.usage_metadata) if message.usage_metadata else self.usage
        return words

    def closing(self, made_by: str) -> dict[str, Any]:
        """Returns what a message says beside its words."""
        calls, content = self._with_opaque(), [_without(block, _OWN) for block in self._content]
        extra: dict[str, Any] = {CALLS: calls} if calls else {}
        extra |= {MADE_IMAGES: self.images} if self.images else {}
        is_opaque = not all(map(_is_plain, content)) or any("signature" in call.opaque for call in calls)
        if is_opaque and size_of([content, *(call.opaque for call in calls)]) <= MAX_OPAQUE_BYTES:
            extra[OPAQUE] = Opaque(made_by, {"content": content})
        counted = self.usage and (self.usage["input_tokens"] or self.usage["output_tokens"])
        usage = self.usage if counted else None
        told = {"finish_reason": self.finish_reason, "model_name": self.model, "id": self.response_id}
        return {"additional_kwargs": extra, "usage_metadata": usage, "response_metadata": told}

    def _before(self, block: Block) -> str:
        """Returns what separates the messages of an answer in several phases: notes on the way, the answer itself."""
        phase = tuple(block.get(name) for name in ("phase", "id", "index")) if "phase" in block else self._phase
        before, self._phase = self._phase, phase
        return " " if before and before != phase else ""

    def _add_piece(self, piece: _CallInPieces) -> None:
        self.size += sum(map(len, piece.args))
        current = next((call for call in self._calls if call.index == piece.index), None)
        if current is None:
            self._calls.append(piece)
        else:
            current.args += piece.args

    def _with_opaque(self) -> list[RawCall]:
        """Returns the calls, each with its place among the blocks and its signature."""
        places = [at for at, block in enumerate(self._content) if block["type"] in _INPUTS]
        calls = []
        for call, place in zip_longest(self._calls, places[: len(self._calls)]):
            opaque: dict[str, Any] = {} if place is None else {"at": place}
            if signature := self._signatures.get(call.id or ""):
                opaque["signature"] = signature
            calls.append(RawCall(call.id, call.name, "".join(call.args), opaque))
        return calls


def given_back(message: AIMessage, dialect: Dialect, made_by: str) -> AIMessage:
    """Returns a message as a package of LangChain's takes it: as it came, if it came from the same model."""
    opaque = message.additional_kwargs.get(OPAQUE)
    if opaque is None or opaque["by"] != made_by:
        return AIMessage(message.text or [], tool_calls=message.tool_calls)
    given: Sequence[Mapping[str, Any]] = opaque["calls"]
    calls = list(zip(message.tool_calls, given, strict=False))
    at_place = {extra["at"]: call for call, extra in calls if "at" in extra}
    content: list[str | dict[str, Any]] = []
    for at, block in enumerate(opaque["message"].get("content", ())):
        if block["type"] not in _CALLS:
            content.append(dict(block))
        elif (call := at_place.get(at)) is not None:
            content.append({**block, **_CALLS[block["type"]](call)})
    signatures = {call["id"]: extra["signature"] for call, extra in calls if "signature" in extra}
    return AIMessage(
        content,
        tool_calls=message.tool_calls,
        additional_kwargs={dialect.signatures: signatures} if dialect.signatures and signatures else {},
        response_metadata={"model_provider": dialect.name},
    )


def _pieces(message: AIMessage) -> list[_CallInPieces]:
    """Returns the calls of a whole answer, or the pieces of them in a chunk. Those of one call have one index."""
    if isinstance(message, AIMessageChunk):
        pieces = message.tool_call_chunks
        return [_CallInPieces(call["index"], call["id"], call["name"] or "", [call["args"] or ""]) for call in pieces]
    read = [(call["id"], call["name"], write_json(call["args"]).decode()) for call in message.tool_calls]
    broken = [(call["id"], call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    return [_CallInPieces(index, call_id, name, [args]) for index, (call_id, name, args) in enumerate([*read, *broken])]


def _blocks(message: AIMessage) -> list[dict[str, Any]]:
    """Returns the content as blocks that all have a type."""
    content = [message.content] if isinstance(message.content, str) else message.content
    blocks = ({"type": "text", "text": block} if isinstance(block, str) else block for block in content if block)
    return [block for block in blocks if block.get("type", _PIECE_OF_INPUT) != _PIECE_OF_INPUT]


def _words(blocks: Iterable[Block], fields: Mapping[str, str]) -> str:
    return "".join(_plain(block.get(fields[block["type"]])) for block in blocks if block["type"] in fields)


def _plain(value: object) -> str:
    if isinstance(value, list):
        return "".join(_plain(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _is_plain(block: Block) -> bool:
    return block["type"] in _CALLS or (block["type"] in _TEXTS and block.keys() <= _PLAIN)


def _without(block: Block, names: frozenset[str]) -> dict[str, Any]:
    def kept(value: Any) -> Any:
        is_list = isinstance(value, list)
        return [_without(each, names) if isinstance(each, dict) else each for each in value] if is_list else value

    return {name: kept(value) for name, value in block.items() if name not in names}
