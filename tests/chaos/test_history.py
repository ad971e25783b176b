"""The search of `make chaos` on histories written by hand: what a session may do is explained, nothing else is."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.history import Call, Op, Round
from tests.chaos.model import Said, Seen, Turn

DELETION = Call("turn_2", "h1x", "succeeded", True, ("plan_1", 1))


def op(number: int, kind: str, invoked: float, returned: float, about: Any = None, **heard: Any) -> Op:
    known: dict[str, Any] = {name: heard.pop(name) for name in ("decision", "on_busy") if name in heard}
    return Op(kind, f"op{number}", known, about, invoked, invoked, returned, 0, heard or None)


def turn(number: int, text: str, at: int, answer_at: int = 0, heard: str = "", **more: Any) -> Turn:
    """One that is answered at a seq, cancelled without one."""
    words = tuple(word for word in text.split() if word.startswith("h"))
    opening = Said(f"said_{number}", at, at, text, words, more.pop("branch", None))
    answer = Said(f"answer_{number}", answer_at, at, f"answer {number}", (), opening.branch) if answer_at else None
    status, told = ("completed", tuple(heard.split())) if answer else ("cancelled", None)
    return Turn(f"turn_{number}", f"op{number}", at, status, opening, answer=answer, heard=told, **more)


def answered(number: int, invoked: float, returned: float, *, kind: str = "chat", **more: Any) -> Op:
    message = {"id": f"answer_{number}", "content": f"answer {number}"}
    return op(number, kind, invoked, returned, turn_id=f"turn_{number}", status="completed", message=message, **more)


def history(*ops: Op, turns: list[Turn], deletions: int = 1) -> Round:
    said = [each for turn in turns for each in (turn.opening, turn.answer) if each]
    seen = Seen(
        {each.id: each for each in turns}, {each.id: each for each in said}, {"plan_1": (5, "completed", "said_1")}
    )
    return Round(ops, seen, calls=[DELETION], effects={"h1x": deletions})


OPS = [
    answered(1, 0, 2),
    answered(2, 3, 5, kind="decision", about=("plan_1", 2), decision="confirm"),
    op(3, "decision", 3, 4, ("plan_1", 2), decision="reject", code="plan_changed"),
    op(4, "chat", 6, 6.5, turn_id="turn_4", status="running"),
    answered(5, 6.6, 9),
    op(6, "chat", 7, 9.5, turn_id="turn_6", code="turn_cancelled"),
    op(7, "cancel", 7.5, 8, "turn_6", turn_id="turn_6", status="cancelled"),
    op(8, "chat", 7, float("inf")),
    op(9, "chat", 8.1, float("inf")),
    answered(10, 20, 22, kind="edit", about="said_4"),
    op(11, "read", 23, 24, shown=("said_1", "answer_1", "said_2", "answer_2", "said_10", "answer_10")),
    op(12, "chat", 20.5, 21, code="turn_in_progress", turn_id="turn_10", on_busy="reject"),
]
TURNS = [
    turn(1, "delete h1x", 1, 2, "h1x", plan=("plan_1", 2, "waiting")),
    turn(2, "👍", 3, 6, "h1x", plan=("plan_1", 5, "completed"), ran="plan_1"),
    turn(4, "carry h4x", 7, 11, "h1x h4x", branch="b"),
    turn(5, "tell h5x", 8, 12, "h1x h4x h5x", branch="b"),
    turn(6, "tell h6x", 9, branch="b"),
    turn(8, "tell h8x", 10, 13, "h1x h4x h5x h6x h8x", branch="b"),
    turn(10, "tell h10x", 14, 15, "h1x h10x"),
]


def changed(number: int, **changes: Any) -> list[Turn]:
    return [replace(each, **changes) if each.id == f"turn_{number}" else each for each in TURNS]


def overtaken() -> list[Turn]:
    answers = {"turn_4": "answer_5", "turn_5": "answer_4"}
    at = {each.answer.id: each.answer.at for each in TURNS if each.answer}
    return [
        replace(each, answer=replace(each.answer, at=at[answers[each.id]]))
        if each.id in answers and each.answer
        else each
        for each in TURNS
    ]


def asked(number: int, **changes: Any) -> list[Op]:
    return [replace(each, **changes) if each.key == f"op{number}" else each for each in OPS]


def test_a_history_of_answers_refusals_a_cancel_an_edit_and_lost_answers_is_explained() -> None:
    assert history(*OPS, turns=TURNS).wrongs() == []


WAITS, MADE, NONE = {"plan": ("plan_1", 2), "active": None}, {"plan": None, "active": "plan_2"}, {"plan": None}
ASKS = answered(1, 0, 1)
GAVE_UP = replace(turn(2, "delete h2x", 3), status="failed", code="turn_gave_up")
CHANGED = op(4, "decision", 6, 7, ("plan_1", 2), decision="confirm", code="plan_changed")


def another_plan(*ops: Op, plan_1: str = "superseded", plan_2: str | None = "active", **more: Any) -> list[str]:
    """A turn asks for a yes, and the next one makes a plan. Without `asks` its process died too often before that."""
    asks, reads, steer = more.get("asks", False), [], more.get("steer")
    second = turn(2, "delete h2x", 3, 4, "h1x h2x", plan=("plan_2", 5, "waiting")) if asks else GAVE_UP
    if steer:
        second = turn(2, "delete h2x", 3, 6, "h1x h2x h3x", plan=("plan_2", 6, "superseded"))
        read = Said("said_3", 5, 3, steer, ("h3x",))
        reads = [replace(turn(3, steer, 4), status="completed", read_by="turn_2", opening=read)]
    turns = [turn(1, "delete h1x", 1, 2, "h1x", plan=("plan_1", 2, "waiting")), second, *reads]
    done = history(ASKS, op(2, "chat", 2, 3, turn_id="turn_2", status="running"), *ops, turns=turns)
    plans = {
        "plan_1": (2 if plan_1 == "waiting" else 3, plan_1, "said_1"),
        **({"plan_2": (5, plan_2, "said_2")} if plan_2 else {}),
    }
    return replace(done, seen=replace(done.seen, plans=plans), calls=(), effects={}).wrongs()


def test_a_plan_takes_the_place_of_the_one_before_it_at_once_and_asks_a_moment_later() -> None:
    looks = [op(5, "look", 3, 4, **WAITS), op(6, "look", 5, 6, **MADE), op(7, "look", 7, 8, plan=("plan_2", 5))]
    assert another_plan(*looks, plan_2="waiting", asks=True) == []
    for seen, last in ((NONE, looks[2]), (MADE, op(7, "look", 7, 8, **WAITS)), (MADE, op(7, "look", 7, 8, **NONE))):
        [wrong] = another_plan(looks[0], op(6, "look", 5, 6, **seen), last, plan_2="waiting", asks=True)
        assert " look " in wrong.partition("of\n")[0]


def test_a_turn_that_gives_up_leaves_its_plan_in_place_of_the_one_before_it() -> None:
    assert another_plan(CHANGED, op(5, "look", 7, 8, **MADE)) == []
    assert another_plan(op(5, "look", 7, 8, **WAITS), plan_1="waiting", plan_2=None) == []
    for wrong in (
        another_plan(CHANGED, plan_2=None),
        another_plan(CHANGED, plan_1="waiting", plan_2=None),
        another_plan(op(5, "look", 7, 8, **MADE), op(6, "look", 9, 10, **NONE)),
        another_plan(op(5, "look", 7, 8, **MADE), op(6, "look", 9, 10, **WAITS)),
        another_plan(op(5, "look", 7, 8, **MADE), plan_1="waiting", plan_2="superseded"),
        another_plan(
            op(4, "decision", 6, 7, ("plan_1", 2), decision="confirm", code="no_open_plan"),
            op(5, "look", 4, 5, **MADE),
        ),
    ):
        assert "no order explains" in "".join(wrong)


def test_a_plan_that_fails_before_it_asks_leaves_none() -> None:
    assert another_plan(op(5, "look", 3, 4, **MADE), op(6, "look", 5, 6, **NONE), plan_2="failed") == []


def test_a_plan_may_wait_and_be_over_again_in_a_turn_that_reads_a_message() -> None:
    steers = op(3, "chat", 3, 4, on_busy="steer", turn_id="turn_2")
    looks = [op(5, "look", 3, 4, plan=("plan_2", 5)), op(6, "look", 5, 6, **NONE)]
    assert another_plan(steers, *looks, plan_2="superseded", steer="tell h3x") == []
    assert another_plan(*looks, plan_2="superseded") != []


def test_a_message_that_the_running_turn_reads_is_explained_and_one_that_another_turn_reads_is_not() -> None:
    steer = replace(turn(2, "tell h2x", 2), status="completed", read_by="turn_1", opening=Said("s", 3, 1, "", ("h2x",)))
    read = [turn(1, "carry h1x", 1, 4, "h1x h2x"), steer]
    ops = [
        op(1, "chat", 0, 1, turn_id="turn_1", status="running"),
        op(2, "chat", 2, 3, on_busy="steer", turn_id="turn_1"),
    ]
    assert replace(history(*ops, turns=read), calls=(), effects={}).wrongs() == []
    read = [
        turn(1, "carry h1x", 1, 3, "h1x"),
        turn(3, "tell h3x", 4, 6, "h1x h3x h2x"),
        replace(steer, read_by="turn_3"),
    ]
    late = replace(history(*ops, op(3, "chat", 2, 3), turns=read), calls=(), effects={})
    assert "turn_2 is read by turn_3" in late.wrongs()[0]


@pytest.mark.parametrize(
    ("what", "ops", "turns", "deletions"),
    [
        ("h1x happened 2 times", OPS, TURNS, 2),
        ("h1x happened 0 times", OPS, TURNS, 0),
        ("of which nothing is left", OPS, [each for each in TURNS if each.id != "turn_10"], 1),
        ("asked for by nobody", [each for each in OPS if each.key != "op8"], TURNS, 1),
        (
            "op30 decision",
            [*OPS, answered(30, 5.1, 5.9, kind="decision", about=("plan_1", 2), decision="confirm")],
            [*TURNS[:2], turn(30, "👍", 6, 7, "h1x")],
            1,
        ),
        ("op5 chat", asked(5, invoked=-3, returned=-2), TURNS, 1),
        ("turn_4 (carry h4x) is completed", OPS, overtaken(), 1),
        (
            "turn_6 (tell h6x) is completed",
            asked(6, heard=None),
            changed(6, status="completed", answer=Said("late", 12, 9, "", (), "b")),
            1,
        ),
        ("turn_5 (tell h5x) is cancelled", asked(5, heard=None), changed(5, status="cancelled", answer=None), 1),
        ("turn_5 (tell h5x) is completed", OPS, changed(5, heard=("h1x", "h5x")), 1),
        ("op11 read", asked(11, heard={"shown": ("said_1", "answer_1")}), TURNS, 1),
        ("op10 edit", OPS, changed(5, opening=replace(TURNS[3].opening, branch=None)), 1),
        ("op12 chat", asked(12, tried=22.5, returned=23), TURNS, 1),
        ("another answer is stored", OPS, changed(10, answer=Said("answer_10", 15, 14, "else")), 1),
        ("ran without a yes", asked(2, body={"decision": "reject"}), TURNS, 1),
    ],
)
def test_a_broken_promise_is_told(what: str, ops: list[Op], turns: list[Turn], deletions: int) -> None:
    assert what in "\n".join(history(*ops, turns=turns, deletions=deletions).wrongs())


def test_a_history_that_no_order_explains_is_drawn_with_what_is_wrong_marked() -> None:
    [wrong] = history(*asked(12, tried=22.5, returned=23), turns=TURNS).wrongs()
    drawn = wrong.partition("of\n")[2].splitlines()
    [refused], [edited], [lost] = ([line for line in drawn if f" {name} " in line] for name in ("op12", "op10", "op8"))
    assert (refused.split()[0], edited.split()[0][0]) == ("x", "|")
    assert edited.rindex("|") <= refused.index("|")  # it was refused because of one that had been answered
    assert ">" in lost


def test_a_call_that_was_refused_before_it_ran_needs_no_yes_unless_it_took_effect() -> None:
    refused = Call("turn_2", "h1x-too", "failed", True)
    seen = history(*OPS, turns=TURNS, deletions=1)
    assert replace(seen, calls=[DELETION, refused]).wrongs() == []
    [wrong] = replace(seen, calls=[DELETION, refused], effects={"h1x": 1, "h1x-too": 1}).wrongs()
    assert wrong.startswith("h1x-too happened 1 times")
