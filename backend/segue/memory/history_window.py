"""Selects the part of a session that the model is shown, as providers demand it, within a budget of tokens. Tokens are
counted by the model's tokenizer if its file is in TIKTOKEN_CACHE_DIR, else estimated. Otherwise pure.

Reduces only as far as needed, the oldest first: opaque parts of calls; results of calls that were made again; then
results, references and long texts; then whole turns; never the running one, nor a call with an unknown outcome.
"""

import hashlib
import math
import os
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from segue.domain.session import Message, RequestedCall, UnreadableMessage
from segue.domain.tool import Reference, canonical_args

if TYPE_CHECKING:
    from tiktoken import Encoding

ShownForm = Literal["whole", "reference", "brief"]
TurnMessages = list[Message]

KEPT = 1 / 4  # of the window when a summary takes the rest: to cut seldom keeps the beginning of requests the same
MOST_LISTED, LEAST_LISTED = 1 / 4, 1 / 8  # of the room: what references to earlier results may take, and always get
SUMMARY_LISTED = 1 / 16  # of the budget: what those take that every request lists beside a summary
INTERRUPTED = "The call was interrupted before its outcome was recorded; whether it took effect is unknown."
_HIGH = bytes(range(128, 256))
# The name tiktoken gives the file in TIKTOKEN_CACHE_DIR, and the SHA-256 it expects.
_FILES = {
    "cl100k_base": ("9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
                    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    "o200k_base": ("fb374d419588a4632f3f557e76b4b70aebbca790",
                   "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """The model is shown at most so many messages and tokens. Without `summarises` no summary covers the rest."""

    messages: int
    tokens: int
    summarises: bool


@dataclass(frozen=True, slots=True)
class WindowParts:
    """The messages there are, and references to earlier results, newest first. `whole` are the calls whose results may
    be shown whole, `fixed` is the tokens of the parts that are never reduced, `origin_id` the message that asked for
    the open plan. `opaque` are the messages that come with opaque parts if they are whole.
    """

    window: Sequence[Message]
    earlier: Sequence[Reference]
    whole: Collection[str]
    fixed: int
    origin_id: str | None
    opaque: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class WindowCosts:
    """Tokens of a message in a form, by `message_key`, and of a reference among the earlier results, by its call."""

    message: Callable[[str, ShownForm], int]
    reference: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """The selection. `forms` is by `message_key`; `listed` are the references to results that are not in the history.
    `cut_off` is the seq of the last turn that should go into the summary, None if none should yet.
    """

    history: list[Message]
    forms: Mapping[str, ShownForm]
    listed: tuple[Reference, ...]
    cut_off: int | None


def provider_valid(window: Sequence[Message]) -> list[Message]:
    """Returns the messages as providers demand them: a user message first, and the answers of calls right after them. A
    call without an answer gets one that says so; answers without a call are left out, as are unreadable messages.
    """
    window = [message for message in window if not isinstance(message, UnreadableMessage)]
    start = next((index for index, message in enumerate(window) if message.role == "user"), len(window))
    answers = {message.tool_call_id: message for message in window[start:] if message.role == "tool"}
    repaired: list[Message] = []
    for message in window[start:]:
        if message.role == "tool":
            continue
        repaired.append(message)
        repaired.extend(answers.get(call.id) or _interrupted(message, call) for call in message.tool_calls)
    return repaired


def _interrupted(message: Message, call: RequestedCall) -> Message:
    content = {"tool_call_id": call.id, "tool_name": call.name, "status": "unknown", "summary": INTERRUPTED}
    return replace(message, role="tool", content=content, tool_calls=(), tool_call_id=call.id)


def select_window(parts: WindowParts, limits: WindowLimits, costs: WindowCosts) -> HistoryWindow:
    """Returns the parts that fit. `parts.window` ends with the running turn; a turn is left out whole or not at all."""
    forms: dict[str, ShownForm] = {
        message_key(each): "reference" if _result(each) and each.tool_call_id not in parts.whole else "whole"
        for each in parts.window
    }

    def cost(message: Message) -> int:
        return costs.message(message_key(message), forms[message_key(message)])

    turns = [list(turn) for _, turn in groupby(parts.window, key=lambda message: message.turn_id)]
    sizes = [sum(map(cost, turn)) for turn in turns]
    room = limits.tokens - parts.fixed
    cut_off = _cut_off(turns, sizes, room, limits, parts.origin_id) if limits.summarises else None
    outside = (found.tool_call_id for found in parts.earlier if found.tool_call_id not in forms)
    listed = sum(map(costs.reference, outside))
    most, least = int(room * MOST_LISTED), int(room * LEAST_LISTED)
    spare = room - sum(sizes)
    repeated, by_age = _repeated(parts.window), _by_age(parts.window, forms)
    for target, steps in ((least, _with_opaque_parts(parts)), (most, repeated), (least, by_age)):
        while spare < min(target, listed) and (step := next(steps, None)) is not None:
            message, form = step
            before, forms[message_key(message)] = cost(message), form
            spare += before - cost(message)
    while spare < min(least, listed) and (oldest := next(filter(_is_settled, turns[:-1]), None)) is not None:
        spare += sum(map(cost, oldest))
        turns.remove(oldest)
    history = [message for turn in turns for message in turn]
    return HistoryWindow(history, forms, _listed(parts.earlier, history, max(min(spare, most), least), costs), cut_off)


def _cut_off(
    turns: Sequence[TurnMessages], sizes: Sequence[int], room: int, limits: WindowLimits, origin_id: str | None
) -> int | None:
    """Returns the seq of the last turn before those that fill KEPT of the window, once two more turns would not fit:
    the summary is written while the first of them runs, and the window still has room for it. Turns that are still open
    stay: the one that asked for the open plan, and those with an unknown outcome.
    """
    # Each is taken to be as large as the last one that ended.
    to_come = (2 * len(turns[-2]), 2 * sizes[-2]) if len(turns) > 1 else (0, 0)
    if sum(map(len, turns)) + to_come[0] <= limits.messages and sum(sizes) + to_come[1] <= room:
        return None
    first, messages, tokens = len(turns) - 1, len(turns[-1]), sizes[-1]
    for index in reversed(range(first)):
        messages, tokens = messages + len(turns[index]), tokens + sizes[index]
        if messages > limits.messages * KEPT or tokens > room * KEPT:
            break
        first = index
    for index, turn in enumerate(turns[:first]):
        if not _is_settled(turn) or any(message.id == origin_id for message in turn):
            first = index
            break
    return turns[first - 1][0].seq if first > 0 else None


def _with_opaque_parts(parts: WindowParts) -> Iterator[tuple[Message, ShownForm]]:
    running = parts.window[-1].turn_id
    for message in parts.window:
        if message_key(message) in parts.opaque and message.turn_id != running:
            yield message, "reference"


def _repeated(window: Sequence[Message]) -> Iterator[tuple[Message, ShownForm]]:
    """Yields the results of calls that succeeded again later, the oldest first."""
    succeeded: set[tuple[str, str]] = set()
    repeated: list[Message] = []
    for message in reversed(window):
        result = _result(message)
        if "args" not in result:
            continue
        call = result["tool_name"], canonical_args(result["args"])
        if call in succeeded and result["status"] != "unknown" and message.turn_id != window[-1].turn_id:
            repeated.append(message)
        elif result["status"] == "succeeded":
            succeeded.add(call)
    for message in reversed(repeated):
        yield message, "brief"


def _by_age(window: Sequence[Message], forms: Mapping[str, ShownForm]) -> Iterator[tuple[Message, ShownForm]]:
    """Yields results to make references, then references to keep only the identifiers of, then texts to shorten."""
    earlier = [message for message in window if message.turn_id != window[-1].turn_id]
    results = [message for message in earlier if _result(message).get("status", "unknown") != "unknown"]
    yield from ((message, "reference") for message in results if forms[message_key(message)] == "whole")
    yield from ((message, "brief") for message in results if forms[message_key(message)] == "reference")
    yield from ((message, "brief") for message in earlier if not _result(message))


def _listed(
    earlier: Sequence[Reference], history: Sequence[Message], allowed: int, costs: WindowCosts
) -> tuple[Reference, ...]:
    """Returns the newest references to results that are not in the history, as far as `allowed` tokens go."""
    in_view = {message.tool_call_id for message in history}
    listed: list[Reference] = []
    for reference in earlier:
        if reference.tool_call_id in in_view:
            continue
        allowed -= costs.reference(reference.tool_call_id)
        if allowed < 0:
            break
        listed.append(reference)
    return tuple(listed)


def _is_settled(turn: TurnMessages) -> bool:
    return all(_result(message).get("status") != "unknown" for message in turn)


def _result(message: Message) -> dict[str, Any]:
    """Returns the reference that a tool message holds, an empty dict for another message."""
    return message.content if isinstance(message.content, dict) else {}


def message_key(message: Message) -> str:
    """Returns a key that is unique to a message; its id is not, since a repaired tool message has that of its call."""
    return message.tool_call_id or message.id


CountTokens = Callable[[str], int]

# Tokens per character, between what tokenizers of 100,000 and of 200,000 entries take. English words, JSON's marks
# and digits, Arabic or Cyrillic (two bytes), Chinese (three): 0.28, 0.55, 0.55, 1.25; an emoji is 1.95.
PER_LETTER, PER_MARK, PER_HIGH_BYTE, PER_HIGH_CHAR = 0.28, 0.55, 0.7, -0.85

_LETTERS = f"{string.ascii_letters} ".encode()


def estimate(text: str) -> int:
    """Returns the tokens of a text in any script, rather too many than too few. Takes microseconds per kilobyte."""
    encoded = text.encode(errors="replace")
    others = encoded.translate(None, _LETTERS)
    marks = len(others.translate(None, _HIGH))
    letters, high_bytes = len(encoded) - len(others), len(others) - marks
    high_chars = len(text) - letters - marks
    return math.ceil(PER_LETTER * letters + PER_MARK * marks + PER_HIGH_BYTE * high_bytes + PER_HIGH_CHAR * high_chars)


def counter_for(model: str) -> CountTokens:
    """Returns the counter for a model. Loading a tokenizer takes a moment."""
    encoding = _local_encoding(model)
    return estimate if encoding is None else counting_with(encoding)


def counting_with(encoding: "Encoding") -> CountTokens:
    """Returns a counter with a cache: the same few texts are counted turn after turn."""

    @lru_cache(maxsize=1024)
    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count


def _local_encoding(model: str) -> "Encoding | None":
    # tiktoken would fetch a missing or wrong file from the network: it is only asked for one that is right.
    folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    if not folder:
        return None
    import tiktoken  # noqa: PLC0415 (most have no such folder)

    try:
        name = tiktoken.encoding_name_for_model(model)
        file, digest = _FILES[name]
        found = Path(folder, file).read_bytes()
    except (KeyError, OSError):
        return None
    return tiktoken.get_encoding(name) if hashlib.sha256(found).hexdigest() == digest else None
