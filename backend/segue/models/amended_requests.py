"""Reads refusals of requests, and changes the request so that it can be sent once more. Pure. `Learned` has the
parameters that an endpoint of chat completions refuses, and the parts that it misses in messages.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from segue.domain.tool import ToolSpec
from segue.memory.history_window import estimate
from segue.models.normal_form import WireForm, refused_form, without_opaque
from segue.models.providers.completion_reader import CALL_FIELDS, MESSAGE_FIELDS
from segue.models.refusals import BAD_REQUEST, TABLE, ProviderRefusal
from segue.models.reply import CACHE_KEY, AnswerSchema, ToolChoiceMode, estimated_input
from segue.models.untrusted import OPEN_NOTES, fenced, unfenced, without_references
from segue.net.http_client import TOO_FAR

MAX_TOOL_REFUSALS: Final = 12  # in one call of the model
MAX_SINGLE_TOOLS: Final = 3  # of one source in such a call, before all of its tools are left out
MIN_RESULT_CHARS: Final = 400
CUT: Final = "\n[… the rest is left out, since the model took no more; load it with get_tool_result …]"
CHARS_PER_TOKEN: Final = 3
MAX_TIMES_LEARNED: Final = 3

# Where a refusal counts the tools of the request; the list of functions is inside a tool where it has one.
_PLACES: Final = (re.compile(r"\bfunction(?:_declaration)?s[\[./](\d+)"), re.compile(r"\btools[\[./](\d+)"))
# The causes of a refusal of images or files.
_CAUSES_OF_MEDIA: Final = frozenset({"refused", "not_found", "failing", "other_api"})
_ABOUT: Final = {name: re.compile("|".join(words), re.IGNORECASE) for name, words in TABLE["about"].items()}
_PARAMETER = re.compile(r"[a-zA-Z_]\w*")
_MISSED = ("missing", "required", "must be passed", "must be provided", "must include", "must contain")
_NOT_A_PARAMETERS_FAULT = frozenset({"context_length", "quota", "content_filter", "no_model", "other_api", "accident"})
# What a request cannot do without.
_ESSENTIAL: Final = frozenset({"model", "messages", "tools"})
# Under what other name a value goes if the first is refused.
RENAMED: Final[Mapping[str, str]] = {"max_tokens": "max_completion_tokens"}
# What stands for a part that an endpoint misses, by the name it misses it under: of messages and calls that another
# model or the engine made, or whose own were dropped. The second is Google's own, for histories of other models.
_OF_MESSAGES: Final[Mapping[str, Mapping[str, Any]]] = {"reasoning_content": {"reasoning_content": " "}}
_OF_CALLS: Final[Mapping[str, Mapping[str, Any]]] = {
    "thought_signature": {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
}
# What an endpoint misses that only streams.
_STREAMED: Final[Mapping[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}

RequestBody = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """A model's limits in tokens: `window` for a request with its answer, `output` for an answer."""

    window: int | None = None
    output: int | None = None

    def __or__(self, other: "ModelLimits") -> "ModelLimits":
        pairs = (self.window, other.window), (self.output, other.output)
        return ModelLimits(*(min(filter(None, pair), default=None) for pair in pairs))


NO_LIMITS: Final = ModelLimits()


@dataclass(frozen=True, slots=True)
class RequestParts:
    """The parts of a call of the model. `empty_tries` is how many empty answers end the call. `left_out` are tools that
    the endpoint refused, each with its words, and `refused_sources` where they come from. `without_opaque` says that
    the endpoint could not verify what it had given.
    """

    messages: Sequence[BaseMessage]
    tools: tuple[ToolSpec, ...]
    form: WireForm
    tool_choice: ToolChoiceMode = "auto"
    schema: AnswerSchema | None = None
    sampling: Mapping[str, Any] | None = None
    empty_tries: int = 1
    left_out: Mapping[str, str] = field(default_factory=dict)
    refused_sources: tuple[str, ...] = ()
    without_media: frozenset[str] = frozenset()
    without_opaque: bool = False
    too_long: int | None = None  # the size that was refused
    limits: ModelLimits = NO_LIMITS
    limits_learned: int = 0  # how often, since the call began


def amended(parts: RequestParts, refusal: ProviderRefusal, offered: Sequence[str]) -> RequestParts | None:
    """Returns the next request, None if nothing helps. `offered` are the names of the tools as they were sent."""
    if _is_unverifiable(refusal) and (plain := _without_opaque(parts)) is not None:
        return plain
    if (learned := _with_limits(parts, refusal)) is not None:
        return learned
    if refusal.cause.name == "context_length":
        size = size_of(parts.messages)
        messages = shortened(parts.messages, size // 2) if parts.too_long is None else parts.messages
        return replace(parts, messages=messages, too_long=size) if size_of(messages) < size else None
    if refusal.cause.name != "refused" or refusal.status not in BAD_REQUEST:
        return None
    tool = _tool_named(refusal, offered)
    if tool is not None and tool < len(parts.tools) and len(parts.refused_sources) < MAX_TOOL_REFUSALS:
        return _without_tool(parts, parts.tools[tool], refusal.message)
    form = refused_form(parts.messages, parts.form)
    return _without_opaque(parts) if form is None else replace(parts, form=form)


def without_earlier_turns(parts: RequestParts) -> RequestParts | None:
    """Returns a request that a content filter may take: else one refused message would close the session for good."""
    leading = list(takewhile(lambda message: isinstance(message, SystemMessage), parts.messages))
    # The last one with notes opened the running turn: an earlier message may have some, for its files.
    noted = [at for at, message in enumerate(parts.messages) if message.text.startswith(OPEN_NOTES)]
    kept = [*leading, *parts.messages[noted[-1] :]] if noted else parts.messages
    return replace(parts, messages=kept) if len(kept) < len(parts.messages) else None


def _without_opaque(parts: RequestParts) -> RequestParts | None:
    """Returns the request without opaque parts: each provider refuses these in words of its own."""
    plain = None if parts.without_opaque else without_opaque(parts.messages)
    return replace(parts, messages=plain, without_opaque=True) if plain else None


def media_refused(refusal: ProviderRefusal, sent: Collection[str]) -> tuple[str, Literal["all", "these"]] | None:
    """Returns which of the media `sent` is refused: all of it, or only these, such as a file that is too long."""
    if refusal.cause.name == "context_length" and ("file" in sent or (sent and refusal.status == 413)):  # noqa: PLR2004 (HTTP)
        return min(sent), "these"
    if refusal.cause.name not in _CAUSES_OF_MEDIA:
        return None
    text = f"{refusal.code} {refusal.message}"
    named = (kind for kind in ("file", "image_url") if kind in sent and _ABOUT[kind].search(text))
    kind = next(named, min(sent, default=None) if _ABOUT["any_media"].search(text) else None)
    return None if kind is None else (kind, "these" if _ABOUT["these_media"].search(text) else "all")


def within_window(parts: RequestParts, window: int) -> RequestParts:
    """Returns the request with no more messages than the model takes: three quarters of its window, with the tools."""
    room = window * 3 // 4 - estimated_input((), parts.tools)
    return parts if size_of(parts.messages) <= room else replace(parts, messages=shortened(parts.messages, room))


def _with_limits(parts: RequestParts, refusal: ProviderRefusal) -> RequestParts | None:
    """Returns the request after numbers in a refusal that change it; None if there are none."""
    limits = _limits_in(refusal)
    if limits is None or parts.limits | limits == parts.limits or parts.limits_learned == MAX_TIMES_LEARNED:
        return None
    learned = replace(parts, limits=parts.limits | limits, limits_learned=parts.limits_learned + 1)
    fitted = learned if (window := learned.limits.window) is None else within_window(learned, window)
    return fitted if limits.output or size_of(fitted.messages) < size_of(parts.messages) else None


def size_of(messages: Iterable[BaseMessage]) -> int:
    """Returns about how many tokens the messages take."""

    def words(message: BaseMessage) -> str:
        calls = message.tool_calls if isinstance(message, AIMessage) else ()
        return f"{message.text}{''.join(str(call['args']) for call in calls)}{message.additional_kwargs or ''}"

    return sum(map(estimate, map(words, messages)))


def shortened(messages: Sequence[BaseMessage], most: int) -> list[BaseMessage]:
    """Returns the messages in about `most` tokens, as far as that goes without the instructions and the running turn.
    Left out are, in this order: old turns, whole; references to earlier results; the ends of this turn's results.
    """
    leading: list[BaseMessage] = list(takewhile(lambda message: isinstance(message, SystemMessage), messages))
    turns: list[list[BaseMessage]] = []
    for message in messages[len(leading) :]:
        if isinstance(message, HumanMessage) or not turns:
            turns.append([])
        turns[-1].append(message)
    size = size_of(messages)
    while size > most and len(turns) > 1:
        size -= size_of(turns.pop(0))
    if size > most:
        before = size_of(leading)
        leading = [SystemMessage(without_references(message.text)) for message in leading]
        size -= before - size_of(leading)
    kept = [message for turn in turns for message in turn]
    results = [message for message in kept if isinstance(message, ToolMessage)]
    if size > most and results:
        room = max(most - size + size_of(results), 0) * CHARS_PER_TOKEN // len(results)
        kept = [_cut(each, max(room, MIN_RESULT_CHARS)) if isinstance(each, ToolMessage) else each for each in kept]
    return [*leading, *kept]


def _without_tool(parts: RequestParts, tool: ToolSpec, why: str) -> RequestParts:
    """After several tools of one source, such as an MCP server, all of it is left out: one refusal names one tool."""
    gone = [tool.name]
    if parts.refused_sources.count(tool.source) >= MAX_SINGLE_TOOLS:
        gone = [each.name for each in parts.tools if each.source == tool.source]
    kept = tuple(each for each in parts.tools if each.name not in gone)
    left_out = {**parts.left_out, **dict.fromkeys(gone, why)}
    return replace(parts, tools=kept, left_out=left_out, refused_sources=(*parts.refused_sources, tool.source))


def _tool_named(refusal: ProviderRefusal, offered: Sequence[str]) -> int | None:
    """Returns the place of the tool that a refusal is about."""
    text = f"{refusal.parameter or ''} {refusal.message}"
    # It may name the tool of a call that goes back, which is not at fault.
    if any(name in text for name in ("thought_signature", "reasoning_content", "tool_call_id", "tool_calls")):
        return None
    named = [name for name in offered if re.search(rf"(?<![\w:-]){re.escape(name)}(?![\w-])", text)]
    # A name that is a plain word may be there by chance.
    certain = [name for name in named if "_" in name or re.search(rf"[\"'`]{re.escape(name)}[\"'`]", text)]
    if certain:
        return offered.index(max(certain, key=len))
    places = (found for pattern in _PLACES if (found := pattern.search(text)))
    return next((int(place[1]) for place in places), None)


def _cut(result: ToolMessage, most: int) -> ToolMessage:
    text = unfenced(result.text)
    return result if len(text) <= most else result.model_copy(update={"content": fenced(text[:most] + CUT)})


def _is_unverifiable(refusal: ProviderRefusal) -> bool:
    """Whether a request is refused for its opaque parts: signed for another key, region or upstream."""
    return refusal.status in BAD_REQUEST and bool(_ABOUT["unverifiable"].search(f"{refusal.code} {refusal.message}"))


def _limits_in(refusal: ProviderRefusal) -> ModelLimits | None:
    """Returns the limits stated in a refusal; for too long an answer, one of a quarter of the window."""
    text, of_answer = refusal.message, _ABOUT["is_of_answer"].search(refusal.message) is not None
    if refusal.status not in BAD_REQUEST and refusal.cause.name != "context_length":
        return None
    if window := _number(_ABOUT["window"], text):
        return ModelLimits(window, max(window // 4, 1) if of_answer else None)
    limit = _number(_ABOUT["answer"], text) if of_answer else None
    return ModelLimits(None, limit - ("(exclusive)" in text)) if limit else None


def _number(row: re.Pattern[str], text: str) -> int | None:
    found = row.search(text)
    return min(int(found[found.lastindex or 0]), TOO_FAR) if found else None


def parameter_named(refusal: ProviderRefusal, sent: Iterable[str]) -> str | None:
    """Returns the one of the names we sent that a refusal of the request is about."""
    if refusal.status not in BAD_REQUEST or refusal.cause.name in _NOT_A_PARAMETERS_FAULT or _limits_in(refusal):
        return None
    names = set(sent)
    for text in (refusal.parameter or "", refusal.message):
        if found := next((name for name in map(str, _PARAMETER.findall(text)) if name in names), None):
            return found
    return None


@dataclass(frozen=True, slots=True)
class Learned:
    """`refused` are parameters with the refused value, None for any value; `missed` are names of stand-ins."""

    refused: frozenset[tuple[str, object]] = frozenset()
    missed: frozenset[str] = frozenset()

    def __or__(self, other: "Learned") -> "Learned":
        return Learned(self.refused | other.refused, self.missed | other.missed)

    def without(self, names: Collection[str]) -> "Learned":
        return replace(self, refused=frozenset(each for each in self.refused if each[0] not in names))

    def after(self, refusal: ProviderRefusal, sent: RequestBody) -> tuple["Learned", str] | None:
        """Returns the knowledge after a refusal of this body, and the name it is about; None if it names nothing."""
        if _is_unverifiable(refusal) or _limits_in(refusal):  # of this conversation; another is still welcome
            return None
        is_bad, text = refusal.status in BAD_REQUEST, refusal.message.lower()
        for name in (*_OF_MESSAGES, *_OF_CALLS):
            is_missed = is_bad and name in text and any(word in text for word in _MISSED)
            if name not in self.missed and is_missed:
                return replace(self, missed=self.missed | {name}), name
        if is_bad and "stream" not in {*sent, *self.missed} and _ABOUT["streams_only"].search(text):
            return replace(self, missed=self.missed | {"stream"}), "stream"
        named = parameter_named(refusal, _optional_names(sent))
        if named is None and is_bad and refusal.cause.name == "refused" and "response_format" in sent:
            named = "response_format"  # few endpoints say that they take no schema of answers
        if named is None:
            return None
        value = sent.get(named)  # one of a few: another may be welcome
        is_any = named == CACHE_KEY or not isinstance(value, str)
        return replace(self, refused=self.refused | {(named, None if is_any else value)}), named

    def applied_to(self, body: RequestBody) -> RequestBody:
        sent = {**_STREAMED, **body} if "stream" in self.missed else dict(body)
        for name, value in self.refused:
            if name in sent and value in (None, sent[name]):
                sent_value = sent.pop(name)
                if name == "stream":
                    sent.pop("stream_options", None)
                if (name, sent_value) == ("tool_choice", "none"):
                    sent.pop("tools", None)  # else the model would call what it may only see
                if (other := RENAMED.get(name)) and (other, None) not in self.refused:
                    sent[other] = sent_value
        messages = body.get("messages", ())
        if unwanted := {name for name, _ in self.refused} - body.keys():
            messages = [_without_fields(message, unwanted) for message in messages]
        if self.missed:
            messages = [self._with_stand_ins(message) for message in messages]
        if messages:
            sent["messages"] = messages
        return sent

    def _with_stand_ins(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] != "assistant":
            return message
        filled = dict(message)
        for name in self.missed & _OF_MESSAGES.keys():
            filled = {**_OF_MESSAGES[name], **filled}
        for name in self.missed & _OF_CALLS.keys():
            stand_in = _OF_CALLS[name]
            calls = filled.get("tool_calls")
            if calls and not any(stand_in.keys() & call.keys() for call in calls):  # the first stands for all of them
                filled["tool_calls"] = [{**calls[0], **stand_in}, *calls[1:]]
        return filled


NOTHING_LEARNED: Final = Learned()


def _optional_names(body: RequestBody) -> set[str]:
    """Returns the names of the parts of a request that could be left out: parameters and opaque fields."""
    messages = body.get("messages", ())
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    given_back = {name for message in messages for name in message if name not in MESSAGE_FIELDS}
    return given_back.union(body.keys() - _ESSENTIAL, *(call.keys() - CALL_FIELDS for call in calls))


def _without_fields(message: Mapping[str, Any], unwanted: set[str]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name not in unwanted or name in MESSAGE_FIELDS}
    if calls := message.get("tool_calls"):
        kept["tool_calls"] = [{name: value for name, value in call.items() if name not in unwanted} for call in calls]
    return kept
