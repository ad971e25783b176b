"""LangChain's own models, bounded and with our errors. A Dialect has the differences between the packages. An answer
whose blocks are more than words and calls goes back block by block, with our ids and names of its calls.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import httpx2
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall
from langchain_core.messages.ai import UsageMetadata, add_usage

from segue.log import log
from segue.models import refusals, reply
from segue.models.amended_requests import parameter_named
from segue.models.providers.completion_reader import MAX_OPAQUE_BYTES, image_in, joined, plain_words, size_of, why_ended

Block = Mapping[str, Any]

# Types of blocks with words. These stand under the name of the type, or in a summary.
_TEXTS: Final = frozenset({"text", "refusal"})
_REASONING: Final = frozenset({"thinking", "reasoning"})
# How a call is written among the blocks, by the block's type; and what it has there when it comes.
_CALLS: Final[Mapping[str, Callable[[ToolCall], dict[str, Any]]]] = {
    "tool_use": lambda call: {"id": call["id"], "name": call["name"], "input": call["args"]},
    "function_call": lambda call: (
        {"call_id": call["id"], "name": call["name"], "arguments": reply.write_json(call["args"]).decode()}
    ),
}
_INPUTS: Final = {
    "tool_use": frozenset({"id", "name", "input", "partial_json"}),
    "function_call": frozenset({"id", "call_id", "name", "arguments", "status"}),
}
_PIECE_OF_INPUT: Final = "input_json_delta"  # a block in a chunk that says no more than the piece of the call beside it
_BYTES_OF_A_CHUNK: Final = 100  # around its words, in an event
# Fields that a text may have and be no more than words, and those of LangChain's own: the rest goes back.
_PLAIN: Final = frozenset({"type", "text", "id", "index", "annotations", "citations"})
_OWN: Final = frozenset({"index"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one of LangChain's packages is asked, and how it writes messages. `choices` is what a choice of tools is
    called; one that is not in it is not sent. `with_cache_marks` marks where what later requests begin with ends.
    """

    name: str
    errors: tuple[type[Exception], ...]
    finish_reason: Callable[[Mapping[str, Any]], str | None]  # what it reads in `response_metadata`
    refusal: Callable[[Any], refusals.ModelFailure | None] = lambda _: None  # what one of the `errors` tells of
    says_why: bool = True  # without it, `finish_reason` may find nothing
    choices: Mapping[str, Any] = field(default_factory=lambda: {"required": "required", "none": "none"})
    offered: Callable[[dict[str, Any]], dict[str, Any]] = dict  # puts a tool as it is wanted
    schema_parameters: Callable[[reply.AnswerSchema], dict[str, Any]] | None = None  # a schema of the answer, likewise
    most_output: str = "max_output_tokens"  # what bounds an answer, as a parameter or attribute of the package's model
    asks_for_whole_answers: bool = False
    signatures: str = ""  # the key of `additional_kwargs` for signatures of calls, by the calls' ids
    with_cache_marks: Callable[[Sequence[BaseMessage]], list[BaseMessage]] = list
    counted: Callable[[UsageMetadata | None, UsageMetadata], UsageMetadata] = add_usage  # adds the usage of a chunk


@dataclass
class AdaptedModel(reply.ProviderModel):
    """Asks `package_model`."""

    package_model: Any
    dialect: Dialect
    by: str
    max_answer_bytes: int
    parameters: Mapping[str, Any] = field(default_factory=dict)  # in every request until the endpoint refuses them
    extra: Mapping[str, Any] = field(default_factory=dict)  # goes into the body beside, or within, what stands there
    takes_sampling: bool = True
    _refused: set[str] = field(default_factory=set)  # for the life of the process, unless the client set it

    def __post_init__(self) -> None:
        self.takes_schemas = self.dialect.schema_parameters is not None

    async def answer(
        self, messages: Sequence[BaseMessage], options: reply.RequestOptions, *, is_streamed: bool
    ) -> AsyncGenerator[reply.AnswerPart]:
        """Asks again without refused parameters."""
        reader = AnswerReader(self.dialect, self.by)
        request = self.dialect.with_cache_marks([given_back(each, self.dialect, self.by) for each in messages])
        model, (parameters, clients) = self._with_tools(options), self._parameters(options)
        # What is refused of a client's options is not remembered: other values may be welcome.
        refused = frozenset(self._refused - clients)
        while True:
            sent = {name: value for name, value in parameters.items() if name not in refused}
            if self.extra:
                sent["extra_body"] = merged({name: sent[name] for name in self.extra.keys() & sent.keys()}, self.extra)
            is_whole = self.dialect.asks_for_whole_answers and (not is_streamed or "stream" in refused)
            try:
                async with aclosing(self._received(model, request, reader, sent, is_whole=is_whole)) as received:
                    async for message in received:
                        self._refused |= refused - clients  # kept only once it has helped
                        part = reader.add(message)
                        if reader.has_begun:
                            yield part
            except refusals.ProviderRefusal as refusal:
                tried = {**sent, "stream": True} if self.dialect.asks_for_whole_answers and not is_whole else sent
                name = None if reader.has_begun else parameter_named(refusal, tried)
                if name is None:
                    raise
                log.warning("model_parameter_left_out", parameter=name, reason=refusal.message, status=refusal.status)
                refused |= {name}
            else:
                yield reader.closing()
                return

    def _parameters(self, options: reply.RequestOptions) -> tuple[dict[str, Any], frozenset[str]]:
        """Returns the parameters of a request, and those of them that a client has a say in."""
        parameters, most = dict(options.sampling), self.dialect.most_output
        if "max_tokens" in parameters:
            parameters[most] = parameters.pop("max_tokens")
        is_clients = bool(parameters)
        if options.schema is not None and self.dialect.schema_parameters is not None:
            parameters |= self.dialect.schema_parameters(options.schema)
            is_clients |= not options.schema.get("strict")
        clients = frozenset(parameters) if is_clients else frozenset[str]()
        limit = parameters.get(most) or self.parameters.get(most) or getattr(self.package_model, most, None)
        if options.most_output and limit:
            parameters[most] = min(limit, options.most_output)
        if options.cache_key is not None:
            parameters[reply.CACHE_KEY] = options.cache_key
        return {**self.parameters, **parameters}, clients

    def _with_tools(self, options: reply.RequestOptions) -> Any:
        choices, chosen = self.dialect.choices, options.tool_choice
        if not options.tools or (chosen == "none" and "none" not in choices):
            return self.package_model
        choice = {"tool_choice": choices[chosen]} if chosen in choices else {}
        return self.package_model.bind_tools([self.dialect.offered(tool) for tool in options.tools], **choice)

    async def _received(
        self, model: Any, request: list[BaseMessage], reader: "AnswerReader", sent: Mapping[str, Any], *, is_whole: bool
    ) -> AsyncGenerator[AIMessage]:
        """Raises ModelFailure or TimeoutError."""
        try:
            if is_whole:
                yield await model.ainvoke(request, **sent)
                return
            async with aclosing(model.astream(request, **sent)) as chunks:
                async for chunk in chunks:
                    reply.SIGN_OF_LIFE.get()()  # also of a model that comes with an HTTP client of its own
                    yield chunk
                    if reader.size > self.max_answer_bytes:
                        raise refusals.too_long(self.max_answer_bytes)
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except refusals.BROKEN as error:
            if reader.has_begun:
                raise refusals.NotAnAnswer from error
            raise refusals.ProviderUnreachable from error
        except self.dialect.errors as error:
            refusal = self.dialect.refusal(error) or _from_library(error)
            if refusal is None:
                raise
            raise refusal from error
        if self.dialect.says_why and reader.finish_reason is None:
            raise refusals.NotAnAnswer


def merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body with the extra in it: objects within objects, anything else in the place of what stood there."""
    result = {**body, **extra}
    for name, value in extra.items():
        if isinstance(value, Mapping) and isinstance(body.get(name), Mapping):
            result[name] = merged(body[name], value)
    return result


_OF_LIBRARIES: Final[Mapping[str, type[Exception]]] = {  # errors of providers' own libraries, by the name of a class
    "APITimeoutError": TimeoutError,
    "TimeoutException": TimeoutError,
    "APIConnectionError": refusals.ProviderUnreachable,
    "TransportError": refusals.ProviderUnreachable,
}


def _from_library(error: Exception) -> Exception | None:
    """Returns ProviderUnreachable, TimeoutError or a refusal for a library's error, None for any other error."""
    named = (_OF_LIBRARIES[kind.__name__]() for kind in type(error).__mro__ if kind.__name__ in _OF_LIBRARIES)
    status = getattr(error, "status_code", None)
    return next(named, refusals.ProviderRefusal(status) if isinstance(status, int) else None)


def of_langchain(model: BaseChatModel, max_answer_bytes: int) -> AdaptedModel:
    """Returns any chat model of LangChain's as the service asks it."""
    dialect = Dialect(
        name="",
        errors=(Exception,),
        finish_reason=lambda metadata: metadata.get("finish_reason"),
        says_why=False,
        asks_for_whole_answers=True,
    )
    return AdaptedModel(model, dialect, by="", max_answer_bytes=max_answer_bytes, takes_sampling=False)


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
    made_by: str
    finish_reason: str | None = None
    size: int = 0
    has_begun: bool = False
    _model: str | None = None
    _response_id: str | None = None
    _usage: UsageMetadata | None = None
    _content: list[dict[str, Any]] = field(default_factory=list)
    _calls: list[_CallInPieces] = field(default_factory=list)
    _last: dict[object, int] = field(default_factory=dict)  # of the calls that share an index, its place
    _signatures: dict[str, Any] = field(default_factory=dict)
    _phase: tuple[Any, ...] = ()

    def add(self, message: AIMessage) -> reply.AnswerPart:
        blocks = _blocks(message)
        images = list(filter(None, map(image_in, blocks)))
        blocks = [block for block in blocks if block["type"] != "image_generation_call" and not image_in(block)]
        text, reasoning = "".join(map(self._text, blocks)), _words(blocks, _REASONING)
        self.size += _BYTES_OF_A_CHUNK + len(text.encode(errors="replace")) + len(reasoning)
        pieces = [piece for call in _pieces(message) if (piece := self._add_piece(call)).args and piece.name]
        self.has_begun = self.has_begun or bool(text or reasoning or self._calls or images)
        kept = [_without(block, _INPUTS.get(block["type"], frozenset())) for block in blocks]
        self._content = joined(self._content, kept)
        self._signatures |= message.additional_kwargs.get(self.dialect.signatures, {})
        metadata = message.response_metadata
        if reason := self.dialect.finish_reason(metadata):
            self.finish_reason = why_ended(reason)
        self._model = self._model or metadata.get("model_name") or metadata.get("model")
        self._response_id = self._response_id or metadata.get("id")
        if message.usage_metadata:
            self._usage = self.dialect.counted(self._usage, message.usage_metadata)
        return reply.AnswerPart(text, reasoning, pieces=pieces, images=images, usage=self._counted)

    @property
    def _counted(self) -> UsageMetadata | None:
        return self._usage if self._usage and (self._usage["input_tokens"] or self._usage["output_tokens"]) else None

    def closing(self) -> reply.AnswerPart:
        """Returns the last part of an answer, with all but its words."""
        calls, content = self._with_opaque(), [_without(block, _OWN) for block in self._content]
        is_opaque = not all(map(_is_plain, content)) or any("signature" in call.opaque for call in calls)
        is_sent = self.made_by and size_of([content, *(call.opaque for call in calls)]) <= MAX_OPAQUE_BYTES
        return reply.AnswerPart(
            calls=calls,
            opaque=reply.Opaque(self.made_by, {"content": content}) if is_opaque and is_sent else None,
            finish_reason=self.finish_reason,
            usage=self._counted,
            answered_by=self._model,
            response_id=self._response_id,
        )

    def _text(self, block: Block) -> str:
        """Returns the words of a block, with a space between the phases of an answer, as notes on the way are."""
        phase = tuple(block.get(name) for name in ("phase", "id", "index")) if "phase" in block else self._phase
        before, self._phase = self._phase, phase
        return f"{' ' if before and before != phase else ''}{_words([block], _TEXTS)}"

    def _add_piece(self, piece: _CallInPieces) -> reply.CallPiece:
        """Pieces of a call share an index. Another id under it begins another; without an index each name does."""
        args = "".join(piece.args)
        self.size += len(args)
        at = self._last.get(piece.index, -1)
        current = self._calls[at] if at >= 0 else None
        is_another = piece.name if piece.index is None else piece.id and current and current.id != piece.id
        if current is None or is_another:
            self._last[piece.index] = at = len(self._calls)
            self._calls.append(current := piece)
        else:
            current.name += piece.name
            current.args += piece.args
        return reply.CallPiece(at, reply.sendable_name(current.name), args)

    def _with_opaque(self) -> list[reply.ModelCall]:
        """Returns the calls, each with its place among the blocks and its signature."""
        places = [at for at, block in enumerate(self._content) if block["type"] in _INPUTS]
        calls = []
        for call, place in zip_longest(self._calls, places[: len(self._calls)]):
            opaque: dict[str, Any] = {} if place is None else {"at": place}
            if signature := self._signatures.get(call.id or ""):
                opaque["signature"] = signature
            calls.append(reply.written_call(call.name, "".join(call.args), opaque))
        return calls


def given_back(message: BaseMessage, dialect: Dialect, made_by: str) -> BaseMessage:
    """Returns a message as a package of LangChain's takes it: as it came, if it came from the same model."""
    if not isinstance(message, AIMessage) or not made_by:
        return message
    opaque = message.additional_kwargs.get(reply.OPAQUE)
    if opaque is None or opaque["by"] != made_by:
        return AIMessage(message.text or [], tool_calls=message.tool_calls)
    parts: Sequence[Mapping[str, Any]] = opaque["calls"]
    calls = list(zip(message.tool_calls, parts, strict=False))
    at_place = {extra["at"]: call for call, extra in calls if "at" in extra}
    content: list[str | dict[str, Any]] = []
    for at, block in enumerate(opaque["message"].get("content", ())):
        if block["type"] not in _CALLS:
            content.append(dict(block))
        elif (call := at_place.get(at)) is not None:
            content.append({**block, **_CALLS[block["type"]](call)})
    signatures = {call["id"]: extra["signature"] for call, extra in calls if "signature" in extra}
    extra = {dialect.signatures: signatures} if dialect.signatures and signatures else {}
    origin = {"model_provider": dialect.name}
    return AIMessage(content, tool_calls=message.tool_calls, additional_kwargs=extra, response_metadata=origin)


def _pieces(message: AIMessage) -> list[_CallInPieces]:
    """Returns the calls of a whole answer, or the pieces of them in a chunk. Those of one call have one index."""
    if isinstance(message, AIMessageChunk):
        pieces = message.tool_call_chunks
        return [_CallInPieces(call["index"], call["id"], call["name"] or "", [call["args"] or ""]) for call in pieces]
    read = [(call["id"], call["name"], reply.write_json(call["args"]).decode()) for call in message.tool_calls]
    broken = [(call["id"], call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    return [_CallInPieces(index, call_id, name, [args]) for index, (call_id, name, args) in enumerate([*read, *broken])]


def _blocks(message: AIMessage) -> list[dict[str, Any]]:
    """Returns the content as blocks that all have a type."""
    content = [message.content] if isinstance(message.content, str) else message.content
    blocks = ({"type": "text", "text": block} if isinstance(block, str) else block for block in content if block)
    return [block for block in blocks if block.get("type", _PIECE_OF_INPUT) != _PIECE_OF_INPUT]


def _words(blocks: Iterable[Block], kinds: Collection[str]) -> str:
    found = ((block, kind) for block in blocks if (kind := block["type"]) in kinds)
    return "".join(plain_words(block.get("summary") or block.get(kind)) for block, kind in found)


def _is_plain(block: Block) -> bool:
    return block["type"] in _CALLS or (block["type"] in _TEXTS and block.keys() <= _PLAIN)


def _without(block: Block, names: frozenset[str]) -> dict[str, Any]:
    def kept(value: Any) -> Any:
        is_list = isinstance(value, list)
        return [_without(each, names) if isinstance(each, dict) else each for each in value] if is_list else value

    return {name: kept(value) for name, value in block.items() if name not in names}
