"""Chooses what of a session the model is shown within a budget of tokens. Pure: it is given the pieces and their costs.

Reduced in this order and only as far as needed: results of calls that were made again; results, references and long
texts; whole turns; the oldest first. Never the turn that runs, nor a call whose outcome is unknown.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from segue.domain.session import Message
from segue.domain.tool import Reference, canonical_args

Form = Literal["whole", "reference", "brief"]
Turn = list[Message]

MOST_LISTED, LEAST_LISTED = 1 / 4, 1 / 8  # what references to earlier results may take of the room, and always may


@dataclass(frozen=True, slots=True)
class RecallLimits:
    """The model is shown at most so many messages and tokens. Without `summarises` what leaves is simply gone."""

    messages: int
    tokens: int
    summarises: bool


@dataclass(frozen=True, slots=True)
class Pieces:
    """What there is: the window, and references to earlier results, newest first.

    The results of the calls in `whole` could be shown whole. `fixed` tokens are taken by what is never reduced.
    `origin_id` is the message that the open plan goes back to.
    """

    window: Sequence[Message]
    earlier: Sequence[Reference]
    whole: Collection[str]
    fixed: int
    origin_id: str | None


@dataclass(frozen=True, slots=True)
class Costs:
    """Tokens of a message in this form, by `key_of`, and of a reference among the earlier results, by its call."""

    message: Callable[[str, Form], int]
    reference: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is shown. `forms` says how, by tool call for results and by id for texts; `listed` are references beside it.

    `cut_off` is the seq of the last turn that should go into the summary, where it is time for that.
    """

    history: list[Message]
    forms: Mapping[str, Form]
    listed: tuple[Reference, ...]
    cut_off: int | None


def recall(pieces: Pieces, limits: RecallLimits, costs: Costs) -> Recalled:
    """`pieces.window` ends with the running turn. Turns go whole, so a call and its answer are never parted."""
    forms = {key_of(message): _best_form(message, pieces.whole) for message in pieces.window}

    def cost(message: Message) -> int:
        return costs.message(key_of(message), forms[key_of(message)])

    turns = [list(turn) for _, turn in groupby(pieces.window, key=lambda message: message.turn_id)]
    sizes = [sum(map(cost, turn)) for turn in turns]
    room = limits.tokens - pieces.fixed
    cut_off = _cut_off(turns, sizes, room, limits, pieces.origin_id) if limits.summarises else None
    outside = (found.tool_call_id for found in pieces.earlier if found.tool_call_id not in forms)
    listed = sum(map(costs.reference, outside))
    most, least = int(room * MOST_LISTED), int(room * LEAST_LISTED)
    spare = room - sum(sizes)
    for wanted, reductions in ((most, _repeated), (least, _by_age)):
        steps = reductions(pieces.window, forms)
        while spare < min(wanted, listed) and (step := next(steps, None)) is not None:
            message, form = step
            before, forms[key_of(message)] = cost(message), form
            spare += before - cost(message)
    while spare < min(least, listed) and (oldest := next(filter(_may_go, turns[:-1]), None)) is not None:
        spare += sum(map(cost, oldest))
        turns.remove(oldest)
    history = [message for turn in turns for message in turn]
    return Recalled(history, forms, _listed(pieces.earlier, history, max(min(spare, most), least), costs), cut_off)


def _cut_off(
    turns: Sequence[Turn], sizes: Sequence[int], room: int, limits: RecallLimits, origin_id: str | None
) -> int | None:
    """The seq of the last turn before those that fill half the window, where one more like the last would not fit.

    What is still open stays: the turn that the open plan came from, and calls with an unknown outcome.
    """
    grown = [*turns, *turns[-2:-1]], [*sizes, *sizes[-2:-1]]
    if sum(map(len, grown[0])) <= limits.messages and sum(grown[1]) <= room:
        return None
    first, messages, tokens = len(turns) - 1, len(turns[-1]), sizes[-1]
    for index in reversed(range(first)):
        messages, tokens = messages + len(turns[index]), tokens + sizes[index]
        if messages > limits.messages / 2 or tokens > room / 2:
            break
        first = index
    for index, turn in enumerate(turns[:first]):
        if not _may_go(turn) or any(message.id == origin_id for message in turn):
            first = index
            break
    return turns[first - 1][0].seq if first > 0 else None


def _repeated(window: Sequence[Message], _: Mapping[str, Form]) -> Iterator[tuple[Message, Form]]:
    """Results of calls that succeeded again later, the oldest first."""
    succeeded: set[tuple[str, str]] = set()
    repeated: list[Message] = []
    for message in reversed(window):
        result = _result(message)
        if "args" not in result:
            continue
        call = result["tool_name"], canonical_args(result["args"])
        if call in succeeded:
            repeated.append(message)
        elif result["status"] == "succeeded":
            succeeded.add(call)
    for message in reversed(repeated):
        yield message, "brief"


def _by_age(window: Sequence[Message], forms: Mapping[str, Form]) -> Iterator[tuple[Message, Form]]:
    """First results become references, then references lose all but their identifiers, then texts their middle."""
    earlier = [message for message in window if message.turn_id != window[-1].turn_id]
    results = [message for message in earlier if _result(message).get("status", "unknown") != "unknown"]
    yield from ((message, "reference") for message in results if forms[key_of(message)] == "whole")
    yield from ((message, "brief") for message in results if forms[key_of(message)] == "reference")
    yield from ((message, "brief") for message in earlier if not _result(message))


def _listed(
    earlier: Sequence[Reference], history: Sequence[Message], allowed: int, costs: Costs
) -> tuple[Reference, ...]:
    """The newest of the references to what is not in the history."""
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


def _may_go(turn: Turn) -> bool:
    return all(_result(message).get("status") != "unknown" for message in turn)


def _best_form(message: Message, whole: Collection[str]) -> Form:
    return "reference" if _result(message) and key_of(message) not in whole else "whole"


def _result(message: Message) -> dict[str, Any]:
    """The reference that a tool message holds; nothing for others."""
    return message.content if isinstance(message.content, dict) else {}


def key_of(message: Message) -> str:
    """Unlike its id alone, of one message only: an answer that history repaired has the id of the call."""
    return message.tool_call_id or message.id
