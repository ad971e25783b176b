"""What is changed in a request that an endpoint has refused, so that it can be asked once more. Pure.

Parameters are left out by `providers/`; this changes what the request is made of: messages, tools, and their form.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from segue.agent.llm.answer_schemas import AnswerSchema
from segue.agent.llm.model_errors import BAD_REQUEST, ProviderRefusal
from segue.agent.llm.normal_form import WireForm, refused_form
from segue.agent.llm.reply import ToolChoiceMode
from segue.agent.untrusted import fenced, unfenced, without_references
from segue.domain.tool import ToolSpec
from segue.memory.token_count import estimate

MAX_TOOL_REFUSALS: Final = 12  # in one call of the model
MAX_SINGLE_TOOLS: Final = 3  # of one source in such a call, before all of its tools are left out
MIN_RESULT_CHARS: Final = 400
CUT: Final = "\n[… the rest is left out, since the model took no more; load it with get_tool_result …]"
CHARS_PER_TOKEN: Final = 3

# Where a refusal counts the tools of the request; the list of functions is inside a tool where it has one.
_PLACES: Final = (
    re.compile(r"\bfunction(?:_declaration)?s[\[./](\d+)"),
    re.compile(r"\btools[\[./](\d+)"),
)
# A refusal of what goes back with a call may name the call's tool, which is not at fault.
_OF_A_CALL: Final = ("thought_signature", "reasoning_content", "tool_call_id", "tool_calls")
# A refusal of images: its cause, and its words if it is about any image or only about those that were sent.
_CAUSES_OF_IMAGES: Final = frozenset({"refused", "not_found", "failing", "other_api"})
_OF_IMAGES: Final = re.compile(
    r"image|vision|multi-?modal|mmproj|content.{0,40}(?:must be|expected).{0,20}string", re.IGNORECASE
)
_OF_THESE_IMAGES: Final = re.compile(
    r"invalid[_ ]image|image_parse|unsupported[_ ]image|too[_ ](?:large|big|small|many)|dimension|corrupt|decod"
    r"|process(?:ing)?[_ ](?:the[_ ])?image",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of the model is made of.

    `left_out` are tools that the endpoint refused, each with its words, and `refused_sources` where they come from.
    """

    messages: Sequence[BaseMessage]
    tools: tuple[ToolSpec, ...]
    tool_choice: ToolChoiceMode
    form: WireForm
    schema: AnswerSchema | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    refused_sources: tuple[str, ...] = ()
    without_images: bool = False
    too_long: int | None = None  # the size that was refused


def amended(asked: Asked, refusal: ProviderRefusal, offered: Sequence[str]) -> Asked | None:
    """Returns what to ask instead, None if nothing helps. `offered` are the names of the tools as they were sent."""
    if refusal.cause.name == "context_length":
        return _shorter(asked) if asked.too_long is None else None
    if refusal.cause.name != "refused" or refusal.status not in BAD_REQUEST:
        return None
    tool = _tool_named(refusal, offered)
    if tool is not None and tool < len(asked.tools) and len(asked.refused_sources) < MAX_TOOL_REFUSALS:
        return _without_tool(asked, asked.tools[tool], refusal.message)
    form = refused_form(asked.messages, asked.form)
    return None if form is None else replace(asked, form=form)


def images_refused(refusal: ProviderRefusal) -> Literal["all", "these"] | None:
    """Returns whether a refusal is about images: about any, or only about those that were sent."""
    said = f"{refusal.code} {refusal.message}"
    if refusal.cause.name not in _CAUSES_OF_IMAGES or not _OF_IMAGES.search(said):
        return None
    return "these" if _OF_THESE_IMAGES.search(said) else "all"


def fitting(asked: Asked, too_long: int | None) -> Asked:
    """Returns the request at half the size that was refused before, if it has that size."""
    if too_long is None or size_of(asked.messages) < too_long:
        return asked
    return replace(asked, messages=shortened(asked.messages, too_long // 2))


def size_of(messages: Iterable[BaseMessage]) -> int:
    """Returns about how many tokens the messages take."""
    return sum(map(estimate, map(_words, messages)))


def shortened(messages: Sequence[BaseMessage], most: int) -> list[BaseMessage]:
    """Returns the messages in about `most` tokens, as far as that goes without the instructions and the running turn.

    Left out are, in this order: old turns, whole; references to earlier results; the ends of this turn's results.
    """
    leading: list[BaseMessage] = list(takewhile(lambda message: isinstance(message, SystemMessage), messages))
    turns = _turns(messages[len(leading) :])
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


def _shorter(asked: Asked) -> Asked | None:
    size = size_of(asked.messages)
    messages = shortened(asked.messages, size // 2)
    return replace(asked, messages=messages, too_long=size) if size_of(messages) < size else None


def _without_tool(asked: Asked, tool: ToolSpec, why: str) -> Asked:
    """After several tools of one source, such as an MCP server, all of it is left out: one refusal names one tool."""
    gone = [tool.name]
    if asked.refused_sources.count(tool.source) >= MAX_SINGLE_TOOLS:
        gone = [each.name for each in asked.tools if each.source == tool.source]
    return replace(
        asked,
        tools=tuple(each for each in asked.tools if each.name not in gone),
        left_out={**asked.left_out, **dict.fromkeys(gone, why)},
        refused_sources=(*asked.refused_sources, tool.source),
    )


def _tool_named(refusal: ProviderRefusal, offered: Sequence[str]) -> int | None:
    """Returns the place of the tool that a refusal is about."""
    said = f"{refusal.parameter or ''} {refusal.message}"
    if any(name in said for name in _OF_A_CALL):
        return None
    named = [name for name in offered if re.search(rf"(?<![\w:-]){re.escape(name)}(?![\w-])", said)]
    # A name that is a plain word may be there by chance.
    certain = [name for name in named if "_" in name or re.search(rf"[\"'`]{re.escape(name)}[\"'`]", said)]
    if certain:
        return offered.index(max(certain, key=len))
    places = (found for pattern in _PLACES if (found := pattern.search(said)))
    return next((int(place[1]) for place in places), None)


def _turns(talk: Sequence[BaseMessage]) -> list[list[BaseMessage]]:
    """Returns the messages from each of the user's to the next."""
    turns: list[list[BaseMessage]] = []
    for message in talk:
        if isinstance(message, HumanMessage) or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _cut(result: ToolMessage, most: int) -> ToolMessage:
    text = unfenced(result.text)
    return result if len(text) <= most else result.model_copy(update={"content": fenced(text[:most] + CUT)})


def _words(message: BaseMessage) -> str:
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    extra = message.additional_kwargs or ""
    return f"{message.text}{''.join(str(call['args']) for call in calls)}{extra}"
