"""The one form in which every request goes out: valid for the strictest endpoint and chat template. Pure.

`docs/providers.md` has the rules. The form of a message never depends on what comes after it, so the beginning of a
request stays the same and providers cache it. `ChatModel` applies it last; results must stand right behind their calls.
"""

import hashlib
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final, TypeGuard

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from segue.domain.ids import offered_name
from segue.language.lexicon import load_toml
from segue.models.reply import OPAQUE, opaque_of_call

NO_ANSWER: Final = "(no answer was given)"
RESULTS_NOTED: Final = "(results noted)"
CARRY_ON: Final = "(no new message from the user; carry on as instructed)"
NO_IMAGES: Final = "(the images cannot be shown)"
NO_FILES: Final = "(the files cannot be shown; results have their text)"
# Types of content parts that not every model takes, and what is said where one is left out.
MEDIA: Final = {"image_url": NO_IMAGES, "file": NO_FILES}
NO_WORDS: Final = "(an empty message)"
PLACEHOLDERS: Final = frozenset({NO_ANSWER, RESULTS_NOTED, CARRY_ON, NO_WORDS})

_ALPHABET: Final = string.digits + string.ascii_letters
_FITTING_ID = re.compile(r"[a-zA-Z0-9]{9}", re.ASCII)
_NO_ANSWER, _RESULTS_NOTED = AIMessage(NO_ANSWER), AIMessage(RESULTS_NOTED)
_CARRY_ON, _NO_WORDS = HumanMessage(CARRY_ON), HumanMessage(NO_WORDS)


@dataclass(frozen=True, slots=True)
class WireForm:
    """The limits of a family of models. Everything else holds for all models."""

    one_call_per_message: bool = False
    no_text_beside_calls: bool = False
    no_system_role: bool = False
    describes_parameters: bool = False
    call_id: str = ""  # form of ids that its template reads names from: the tool's `name`, how many came `before`
    wants_thinking: bool = False  # what it thought in its text before calls goes back there
    opaque_too: bool = False  # also messages with opaque parts, which else stay as they came: its endpoint refused one


ANY_MODEL: Final = WireForm()
FAMILIES: Final = load_toml("families.toml", package="segue.models")


@lru_cache
def form_of(model: str) -> WireForm:
    rows = ({**row} for row in FAMILIES["forms"])
    return next((WireForm(**row) for row in rows if _is_named(model, row.pop("name"))), ANY_MODEL)


def media_of(model: str) -> set[str]:
    """Returns which of MEDIA a model of this name is known to take."""
    return {kind for kind, names in FAMILIES["media"].items() if _is_named(model, *names)}


def begins_inside(model: str) -> bool:
    """Returns whether a model of this name is known to begin its answers inside its thinking."""
    return _is_named(model, *FAMILIES["thinking"]["begins_inside"])


def _is_named(model: str, *names: str) -> bool:
    return any(re.search(name, model, re.IGNORECASE) for name in names)


def normal_form(
    messages: Sequence[BaseMessage], form: WireForm = ANY_MODEL, *, media: Collection[str] = MEDIA
) -> list[BaseMessage]:
    """Returns the messages as they may be sent; the given ones stay as they are. System messages at the start become
    one. A later one is an instruction of the engine's: it goes into the user's message before it, or one of its own;
    one of images or files needs them among the `media`.
    """
    leading = list(takewhile(lambda message: isinstance(message, SystemMessage), messages))
    talk: Iterable[BaseMessage] = messages[len(leading) :]
    if unwanted := MEDIA.keys() - media:
        talk = (message for message in talk if message.type != "system" or not unwanted & media_in([message]))
    if form.one_call_per_message:
        talk = _with_one_call_each(talk, form)
    if form.no_text_beside_calls:
        talk = (each.model_copy(update={"content": ""}) if _may_change(each, form) else each for each in talk)
    shown = _with_fitting_calls(_alternating(talk), form)
    if form.no_system_role and leading:
        first, *rest = shown
        return [HumanMessage("\n\n".join([*(message.text for message in leading), first.text])), *rest]
    if len(leading) > 1:
        leading = [SystemMessage("\n\n".join(message.text for message in leading))]
    return [*leading, *shown]


def refused_form(messages: Iterable[BaseMessage], form: WireForm) -> WireForm | None:
    """Returns the form to try once one was refused, in which no message is whole; None if that changes nothing."""
    if form.opaque_too or not (form.one_call_per_message or form.no_text_beside_calls):
        return None
    calling = (each for each in messages if isinstance(each, AIMessage) and each.tool_calls and _is_opaque(each))
    return replace(form, opaque_too=True) if any(calling) else None


def _alternating(messages: Iterable[BaseMessage]) -> list[BaseMessage]:
    """Returns user and assistant in turn, with a user at the start and no assistant at the end. Templates count neither
    results nor messages with calls, so a user's message after a result needs an answer too.
    """
    shown: list[BaseMessage] = []
    last = "assistant"  # who spoke last, without results: `user`, `assistant` or its `calls`
    for message in messages:
        match message:
            case ToolMessage():
                shown.append(message)
            case AIMessage():
                if last == "assistant":
                    shown.append(_CARRY_ON)
                is_empty = not message.tool_calls and not _is_opaque(message) and _is_blank(message)
                shown.append(_NO_ANSWER if is_empty else message)
                last = "calls" if message.tool_calls else "assistant"
            case SystemMessage() if last == "user":
                shown[-1] = HumanMessage(_joined(shown[-1], message))
            case _:
                is_instruction = isinstance(message, SystemMessage)
                if last != "assistant":
                    shown.append(_RESULTS_NOTED if is_instruction else _NO_ANSWER)
                if is_instruction:
                    shown.append(HumanMessage(message.content))
                else:
                    shown.append(_NO_WORDS if _is_blank(message) else message)
                last = "user"
    if last == "assistant":
        shown.append(_CARRY_ON)
    return shown


def media_in(messages: Iterable[BaseMessage]) -> set[str]:
    lists = (message.content for message in messages if isinstance(message.content, list) and message.type != "ai")
    return {str(part.get("type")) for parts in lists for part in parts if isinstance(part, dict)} & MEDIA.keys()


def without_media(messages: Sequence[BaseMessage], kinds: Collection[str]) -> list[BaseMessage]:
    """Returns the messages with a remark for what they have of these media."""
    return [_without(message, gone) if (gone := media_in([message]) & {*kinds}) else message for message in messages]


def _without(message: BaseMessage, gone: Collection[str]) -> BaseMessage:
    parts = [part for part in message.content if isinstance(part, dict) and part.get("type") not in gone]
    parts += [{"type": "text", "text": MEDIA[kind]} for kind in sorted(gone)]
    is_text = all(part["type"] == "text" for part in parts)
    return HumanMessage("\n\n".join(part["text"] for part in parts) if is_text else [*parts])


def _joined(first: BaseMessage, second: BaseMessage) -> str | list[str | dict[Any, Any]]:
    if isinstance(first.content, str) and isinstance(second.content, str):
        return f"{first.content}\n\n{second.content}"
    parts: list[str | dict[Any, Any]] = []
    for message in (first, second):
        parts += [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    return parts


def _may_change(message: BaseMessage, form: WireForm) -> TypeGuard[AIMessage]:
    """Whether a message is one with calls that need not stay as it came."""
    is_whole = _is_opaque(message) and not form.opaque_too
    return isinstance(message, AIMessage) and bool(message.tool_calls) and not is_whole


def _with_one_call_each(messages: Iterable[BaseMessage], form: WireForm) -> Iterator[BaseMessage]:
    """Yields each call with its result behind it. The first has the text, and what came with the whole message."""
    results: dict[str, ToolMessage] = {}
    waiting: list[AIMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage) and waiting:
            results[message.tool_call_id] = message
            continue
        yield from _pairs(waiting, results)
        waiting, results = [], {}
        if _may_change(message, form) and len(message.tool_calls) > 1:
            waiting = list(_split(message))
        else:
            yield message
    yield from _pairs(waiting, results)


def _split(message: AIMessage) -> Iterator[AIMessage]:
    opaque = message.additional_kwargs.get(OPAQUE)
    for index, call in enumerate(message.tool_calls):
        extra = {OPAQUE: opaque_of_call(opaque, index)} if opaque else {}
        if index == 0:
            extra = {**message.additional_kwargs, **extra}
            yield message.model_copy(update={"tool_calls": [call], "additional_kwargs": extra})
        else:
            yield AIMessage("", tool_calls=[call], additional_kwargs=extra)


def _pairs(calls: Sequence[AIMessage], results: dict[str, ToolMessage]) -> Iterator[BaseMessage]:
    for message in calls:
        yield message
        yield from (result for call in message.tool_calls if (result := results.get(call["id"] or "")) is not None)


def _with_fitting_calls(messages: Sequence[BaseMessage], form: WireForm) -> list[BaseMessage]:
    """Returns the messages with ids and names of calls that every endpoint takes, or that the model's family wants."""
    ids = sent_ids(messages, form)
    if not ids:
        return [*messages]
    shown: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            sent_id = ids.get(message.tool_call_id) or short_id(message.tool_call_id)
            shown.append(message.model_copy(update={"tool_call_id": sent_id}))
        elif isinstance(message, AIMessage) and message.tool_calls:
            calls = [
                {**call, "id": ids[call["id"] or ""], "name": offered_name(call["name"])} for call in message.tool_calls
            ]
            shown.append(message.model_copy(update={"tool_calls": calls}))
        else:
            shown.append(message)
    return shown


@lru_cache(4096)
def short_id(call_id: str) -> str:
    """Returns the id that a call goes out under: 9 letters and digits, always the same for the same call."""
    if _FITTING_ID.fullmatch(call_id):
        return call_id
    number, base = int.from_bytes(hashlib.sha256(call_id.encode(errors="replace")).digest()[:8]), len(_ALPHABET)
    return "".join(_ALPHABET[number // base**place % base] for place in range(9))


def sent_ids(messages: Iterable[BaseMessage], form: WireForm, short: Callable[[str], str] = short_id) -> dict[str, str]:
    """Returns the ids that the calls of one request go out under, each a short one of its own, by their own."""
    ids: dict[str, str] = {}
    taken: set[str] = set()
    for call in (call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls):
        own, tries = call["id"] or "", 0
        if own in ids:
            continue
        sent = form.call_id.format(name=offered_name(call["name"]), before=len(ids)) or short(own)
        while sent in taken:
            tries += 1
            sent = short(f"{own}/{tries}")
        taken.add(sent)
        ids[own] = sent
    return ids


def own_ids(args: dict[str, Any] | None, own: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the arguments of a call with our own ids for those that calls were sent under, by these."""
    return args and {name: own.get(value, value) if isinstance(value, str) else value for name, value in args.items()}


def without_opaque(messages: Sequence[BaseMessage]) -> list[BaseMessage] | None:
    """Returns the messages as they would be without opaque parts, None if there are none."""
    if not any(isinstance(each, AIMessage) and _is_opaque(each) for each in messages):
        return None
    return [each.model_copy(update={"additional_kwargs": {}}) if _is_opaque(each) else each for each in messages]


def _is_opaque(message: BaseMessage) -> bool:
    """Whether a provider wants the message back as it gave it: signatures, reasoning, or content in parts."""
    return bool(message.additional_kwargs) or not isinstance(message.content, str)


def _is_blank(message: BaseMessage) -> bool:
    return isinstance(message.content, str) and (not message.content or message.content.isspace())
