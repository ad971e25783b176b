"""What is shown of a session within a budget, in which order it is reduced, and what never is."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from segue.domain.session import Message, RequestedCall
from segue.domain.tool import CallStatus, Reference
from segue.memory.history_window import (
    HistoryWindow,
    ShownForm,
    TurnMessages,
    WindowCosts,
    WindowLimits,
    WindowParts,
    select_window,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
PLENTY = 10**6
TOKENS: dict[ShownForm, int] = {"whole": 100, "reference": 10, "brief": 1}
REFERENCE = 50


def turn(number: int, *called: str, status: CallStatus = "succeeded") -> TurnMessages:
    """A question, calls with these arguments and their results, an answer. Its seqs start at ten times its number."""
    seq, turn_id = number * 10, f"turn_{number}"
    ids = [f"call_{number}{index}" for index in range(len(called))]
    calls = tuple(RequestedCall(call_id, "find", {"q": query}) for call_id, query in zip(ids, called, strict=True))
    spoken = [Message(f"msg_{seq}", seq, turn_id, "user", "?", AT)]
    if calls:
        spoken.append(Message(f"msg_{seq + 1}", seq + 1, turn_id, "assistant", "", AT, tool_calls=calls))
    for index, call in enumerate(calls, start=2):
        found = {"tool_call_id": call.id, "tool_name": "find", "args": call.args, "status": status}
        spoken.append(Message(f"msg_{seq + index}", seq + index, turn_id, "tool", found, AT, tool_call_id=call.id))
    return [*spoken, Message(f"msg_{seq + 9}", seq + 9, turn_id, "assistant", "!", AT)]


def asked(number: int) -> TurnMessages:
    return turn(number)[:1]


def earlier(count: int) -> list[Reference]:
    return [Reference(f"call_old{index}", "find", {}, "succeeded", 1, "", "", ()) for index in range(count)]


def shown(
    *turns: TurnMessages, tokens: int = PLENTY, messages: int = 1000, listed: int = 0, origin_id: str | None = None
) -> HistoryWindow:
    window = [message for each in turns for message in each]
    whole = [message.tool_call_id for message in window if message.tool_call_id]
    parts = WindowParts(window, earlier(listed), whole=whole, fixed=0, origin_id=origin_id)
    limits = WindowLimits(messages, tokens, summarises=True)
    return select_window(parts, limits, WindowCosts(lambda _, form: TOKENS[form], lambda _: REFERENCE))


def total(selected: HistoryWindow) -> int:
    messages = sum(TOKENS[selected.forms[message.tool_call_id or message.id]] for message in selected.history)
    return messages + REFERENCE * len(selected.listed)


def turns_in(history: Sequence[Message]) -> list[str]:
    return list(dict.fromkeys(message.turn_id for message in history))


TALK = [turn(1, "a"), turn(2, "b"), turn(3, "a"), asked(4)]  # 13 messages, 3 results, the first made again


@pytest.mark.parametrize(
    ("tokens", "results", "texts", "turns"),
    [
        pytest.param(1300, ["whole", "whole", "whole"], "whole", 4, id="all of it"),
        pytest.param(1299, ["brief", "whole", "whole"], "whole", 4, id="a call that was made again is not shown twice"),
        pytest.param(1200, ["brief", "reference", "whole"], "whole", 4, id="the oldest becomes a reference"),
        pytest.param(1021, ["brief", "reference", "reference"], "whole", 4, id="then the next"),
        pytest.param(1012, ["brief", "brief", "reference"], "whole", 4, id="references lose all but identifiers"),
        pytest.param(1002, ["brief", "brief", "brief"], "brief", 4, id="then texts are shortened"),
        pytest.param(113, ["brief", "brief", "brief"], "brief", 4, id="all of them"),
        pytest.param(111, ["brief", "brief"], "brief", 3, id="then the oldest turn goes, whole"),
        pytest.param(103, [], "brief", 1, id="then all but the question"),
        pytest.param(1, [], "whole", 1, id="which stays whatever it takes"),
    ],
)
def test_what_is_reduced_first(tokens: int, results: list[ShownForm], texts: ShownForm, turns: int) -> None:
    selected = shown(*TALK, tokens=tokens)
    forms = [selected.forms[message.tool_call_id] for message in selected.history if message.tool_call_id]
    said = [selected.forms[message.id] for message in selected.history if not message.tool_call_id]
    assert (forms, said[0] if turns > 1 else texts, len(turns_in(selected.history))) == (results, texts, turns)
    assert said[-1] == "whole"
    assert total(selected) <= max(tokens, 100)


@pytest.mark.parametrize("tokens", range(50, 1400, 50))
def test_whatever_the_budget_calls_keep_their_answers_and_the_question_stays(tokens: int) -> None:
    selected = shown(*TALK, tokens=tokens, listed=5)
    called = [call.id for message in selected.history for call in message.tool_calls]
    answered = [message.tool_call_id for message in selected.history if message.tool_call_id]
    assert called == answered
    assert selected.history[0].role == "user"
    assert selected.history[-1] == TALK[-1][0]


def test_references_beside_the_window_shrink_before_turns_go() -> None:
    counts = [len(shown(*TALK, tokens=tokens, listed=20).listed) for tokens in (6000, 1600, 1340, 600)]
    assert counts == [20, 7, 4, 1]
    assert len(turns_in(shown(*TALK, tokens=600, listed=20).history)) == 4


def test_results_of_turns_that_went_are_among_the_references() -> None:
    window = [turn(1, "a"), turn(2, "b"), asked(3)]
    found = [Reference("call_10", "find", {"q": "a"}, "succeeded", 1, "", "", ()), *earlier(1)]
    parts = WindowParts([message for each in window for message in each], found, whole=(), fixed=0, origin_id=None)
    selected = select_window(
        parts, WindowLimits(9, 1200, summarises=False), WindowCosts(lambda *_: 200, lambda _: REFERENCE)
    )
    assert turns_in(selected.history) == ["turn_2", "turn_3"]
    assert [reference.tool_call_id for reference in selected.listed] == ["call_10", "call_old0"]


def test_a_call_of_unknown_outcome_is_always_shown() -> None:
    selected = shown(turn(1), turn(2, "a", status="unknown"), turn(3), asked(4), tokens=120)
    assert turns_in(selected.history) == ["turn_2", "turn_4"]
    assert selected.forms["call_20"] == "whole"


def test_a_result_that_came_again_stays_whole_if_it_is_unknown_or_of_the_running_turn() -> None:
    running = turn(4, "b", "b")[:-1]
    selected = shown(turn(1, "a"), turn(2, "a", status="unknown"), turn(3, "a"), running, tokens=900)
    assert {key: selected.forms[key] for key in ("call_10", "call_20", "call_40", "call_41")} == {
        "call_10": "brief", "call_20": "whole", "call_40": "whole", "call_41": "whole",
    }  # fmt: skip


def test_a_window_that_is_half_empty_is_not_cut() -> None:
    assert shown(turn(1), turn(2), asked(3), messages=10).cut_off is None


def test_a_window_that_is_nearly_full_is_cut_so_that_a_quarter_of_it_stays() -> None:
    assert shown(*map(turn, range(1, 7)), asked(7), messages=14).cut_off == 50


def test_a_window_that_nearly_fills_the_budget_is_cut_too() -> None:
    assert shown(*map(turn, range(1, 7)), asked(7), tokens=1699).cut_off == 50
    assert shown(*map(turn, range(1, 7)), asked(7), tokens=1700).cut_off is None


def test_the_turn_a_plan_came_from_and_unknown_outcomes_are_not_cut_off() -> None:
    later = [*map(turn, range(3, 6)), asked(6)]
    assert shown(turn(1), turn(2), *later, messages=11).cut_off == 50
    assert shown(turn(1), turn(2), *later, messages=11, origin_id="msg_20").cut_off == 10
    assert shown(turn(1), turn(2, "a", status="unknown"), *later, messages=11).cut_off == 10
    assert shown(turn(1), turn(2), *later, messages=11, origin_id="msg_10").cut_off is None
