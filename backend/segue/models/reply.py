"""A provider's requests and answers in our own types; also token counts of requests, shapes of answers."""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import orjson
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata

from segue.domain.ids import NOT_IN_A_TOOL_NAME
from segue.domain.session import MemoryKind
from segue.domain.tool import ToolSpec
from segue.memory.history_window import CountTokens, estimate

ToolChoiceMode = Literal["auto", "required", "none"]
AnswerSchema = Mapping[str, Any]
Reading = Literal["confirm", "reject", "amend", "question", "none"]
AnswerReading = Literal["answer", "decline", "other"]

CACHE_KEY: Final = "prompt_cache_key"  # what OpenAI calls it
ROLES: Final = {"system": "system", "human": "user", "ai": "assistant", "tool": "tool"}  # by LangChain's types
SIGN_OF_LIFE: ContextVar[Callable[[], None]] = ContextVar("sign_of_life", default=lambda: None)  # bytes have come
OPAQUE: Final = "segue_opaque"  # in a message's `additional_kwargs`: what `opaque_parts` returns
REFUSED: Final = "refusal"  # why an answer ended: the model itself went no further
MAX_TOKENS: Final = 10**9  # more in one reply is a provider's mistake
# Of a large image, with the providers that say what it takes; and of a PDF with as many pages as are shown.
MEDIA_TOKENS: Final = {"image_url": 1600, "file": 30 * 1600}
MAX_NAME_CHARS: Final = 64
_JSON = json.JSONDecoder(strict=False)
_TIMES_ENCODED = 3  # JSON in a string in a string is the most that was seen


@dataclass(frozen=True, slots=True)
class Opaque:
    """The parts of an answer that are the provider's own business. They go back to `by`, an endpoint, and no other."""

    by: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call the model asks for."""

    name: str
    args: dict[str, Any] | None  # None if they were no JSON object
    opaque: Mapping[str, Any] = field(default_factory=dict)  # goes back with it
    id: str | None = None  # our own, if followers have been shown the call while it was written


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the arguments of one of the model's calls, by the call's place among those of the answer."""

    at: int
    name: str
    args: str


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A piece of an answer, or all of it. Fields that come once may be in any part."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ModelCall] = ()  # whole, at the end of `pieces` that may have come of them
    pieces: Sequence[CallPiece] = ()
    images: Sequence[str] = ()
    opaque: Opaque | None = None
    finish_reason: str | None = None
    usage: UsageMetadata | None = None
    answered_by: str | None = None
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options of a request beside its messages. `sampling` is what a client names for one turn, `temperature` and
    `max_tokens`: what an endpoint says of their values is remembered for no other request.
    """

    tools: Sequence[dict[str, Any]] = ()  # in OpenAI's form
    tool_choice: ToolChoiceMode = "auto"
    schema: AnswerSchema | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    most_output: int | None = None  # the tokens that the answer may take at most
    cache_key: str | None = None  # of what begins as this request does


class ProviderModel(ABC):
    """A model as a provider has it. Options that it does not take are not given."""

    by: str  # who makes the opaque parts of its answers; `made_by` are all whose parts may go back to it
    takes_schemas: bool = False
    takes_sampling: bool = True
    takes_cache_keys: bool = False

    @property
    def made_by(self) -> tuple[str, ...]:
        return (self.by,)

    @abstractmethod
    def answer(
        self, messages: Sequence[BaseMessage], options: RequestOptions, *, is_streamed: bool
    ) -> AsyncGenerator[AnswerPart]:
        """Yields the parts of the answer as they come; whatever else comes meanwhile is a SIGN_OF_LIFE. Raises
        ModelFailure, TimeoutError, or one of MALFORMED. An answer that is not streamed may come as a whole.
        """


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, and the endpoint's metadata."""

    text: str  # without the model's thinking
    calls: tuple[ModelCall, ...]
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0  # of the input, read from a cache
    written_tokens: int = 0  # of the input, written to a cache
    reasoning_tokens: int = 0  # part of the output
    estimated: bool = False  # the tokens are counted by us, since the endpoint counted none
    reasoning: str = ""  # the model's thinking
    opaque: Opaque | None = None
    model: str = ""  # the name of who answered
    answered_by: str = ""  # what its endpoint calls it
    response_id: str = ""  # the endpoint's name for the answer
    finish_reason: str = ""  # why it ended
    left_out: Mapping[str, str] = field(default_factory=dict)  # tools that the endpoint refused, each with its words
    opaque_is_dead: bool = False  # the endpoint could not verify what it had given earlier
    images: tuple[str, ...] = ()  # those the model has made, as `data:` texts

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.calls or self.images)


def opaque_parts(reply: Reply, calls: Iterable[ModelCall]) -> dict[str, Any] | None:
    """Returns the value under OPAQUE of the message that repeats this reply with these calls, in their order."""
    if reply.opaque is None:
        return None
    of_calls = [call.opaque for call in calls]
    if not reply.opaque.message and not any(of_calls):
        return None
    return {"by": reply.opaque.by, "message": reply.opaque.message, "calls": of_calls}


def opaque_of_call(opaque: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Returns the opaque parts of one of the calls in a message of its own; parts of them all go with the first."""
    return {**opaque, "message": {} if index else opaque["message"], "calls": opaque["calls"][index : index + 1]}


def written_call(name: str, args: str, opaque: Mapping[str, Any]) -> ModelCall:
    return ModelCall(sendable_name(name), read_arguments(args), opaque)


def sendable_name(name: str) -> str:
    """Returns a tool's name as every provider takes it back in a history: a model may make up any name."""
    name = name.strip()
    # What models write before a name, from their own templates.
    for prefix in ("functions.", "function.", "functions:", "default_api.", "default_api:", "tools."):
        name = name.removeprefix(prefix)
    return NOT_IN_A_TOOL_NAME.sub("_", name.partition("<|")[0])[:MAX_NAME_CHARS] or "unnamed"


def known_name(name: str, names: Collection[str]) -> str:
    """Returns the matching one of the names, in whatever case it is written, or the name itself."""
    alike = [each for each in names if each.casefold() == name.casefold()] if name not in names else ()
    return alike[0] if len(alike) == 1 else name


def read_arguments(text: str) -> dict[str, Any] | None:
    """Returns None if it is no JSON object; no arguments at all are an empty one."""
    args: Any = text
    for _ in range(_TIMES_ENCODED):
        try:
            args = _mended(args)
        except (ValueError, RecursionError):
            return None
        if not isinstance(args, str):
            break
    return args if isinstance(args, dict) else {} if args in (None, []) else None  # the list is how PHP writes none


def _mended(text: str) -> Any:
    """Reads JSON, also with a template's marks around it or the same again behind it."""
    text = text.strip().removeprefix("```").removeprefix("json")
    for mark in ("<|im_end|>", "<|call|>", "</tool_call>", "```"):
        text = text.removesuffix(mark).strip()
    text = text.removeprefix("{}")  # what proxies begin with before the arguments come
    value, end = _JSON.raw_decode(text or "{}")
    if (rest := text[end:].strip()) and _JSON.decode(rest) != value:
        raise ValueError("more behind the arguments")
    return value


def read_json(body: bytes) -> Any:
    """Returns any JSON of a provider's, half characters and NaN too. Raises ValueError or RecursionError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body, strict=False)


def write_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, half a character
        return json.dumps(value).encode()


def token_count(value: object) -> int:
    """Returns a count, also one that came as a float or in words; 0 for anything else."""
    try:
        return min(max(int(float(value)), 0), MAX_TOKENS) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        return 0


def estimated_input(messages: Sequence[BaseMessage], tools: Sequence[ToolSpec], count: CountTokens = estimate) -> int:
    """Returns the tokens of a request, rather too many than too few."""
    answers = (each for each in messages if isinstance(each, AIMessage))
    calls = (f"{call['name']}{call['args']}" for each in answers for call in each.tool_calls)
    offered = (f"{tool.name}{tool.description}{tool.input_schema}" for tool in tools)
    texts = (*(message.text for message in messages), *calls, *offered)
    parts = (part for each in messages if isinstance(each.content, list) for part in each.content)
    media = sum(MEDIA_TOKENS.get(str(part.get("type")), 0) for part in parts if isinstance(part, dict))
    return sum(map(count, texts)) + media


def of_client(schema: str) -> AnswerSchema:
    """Returns the shape that a client wants, as it wrote it: not every such schema can be a strict one."""
    return {"name": "answer", "schema": orjson.loads(schema)}


# Shapes as the strictest endpoints want them: every member required, none besides, free-form objects as JSON text.
# Prompts say the same in words, since other endpoints ignore or refuse a schema.
def _object(**members: AnswerSchema) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def _named(name: str, **members: AnswerSchema) -> AnswerSchema:
    return {"name": name, "strict": True, "schema": _object(**members)}


_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_STEP: Final = _object(
    id={"type": "integer"},
    description=_TEXT,
    tool=_TEXT_OR_NULL,
    args={**_TEXT_OR_NULL, "description": "The arguments as the text of a JSON object, or null"},
    requires_confirmation={"type": "boolean"},
)
_FACT: Final = _object(
    content=_TEXT,
    kind={"type": "string", "enum": list(get_args(MemoryKind))},
    importance={"type": "integer"},
    supersedes=_TEXT_OR_NULL,
)
PLAN: Final = _named("plan", steps={"type": "array", "items": _STEP})
READING: Final = _named("reading", verdict={"type": "string", "enum": list(get_args(Reading))})
ANSWER: Final = _named(
    "answer",
    reading={"type": "string", "enum": list(get_args(AnswerReading))},
    values={**_TEXT_OR_NULL, "description": "The values as the text of a JSON object, or null"},
)
FACTS: Final = _named("facts", facts={"type": "array", "items": _FACT})
