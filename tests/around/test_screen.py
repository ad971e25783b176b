"""What of a turn's events reaches the terminal, and what does not."""

from io import StringIO
from typing import Any

from segue.around.chat_screen import Screen, TurnView


def shown(*events: dict[str, Any]) -> str:
    out = StringIO()
    view = TurnView(Screen(out, out))
    for event in events:
        view.show(event)
    return out.getvalue()


def finished(content: str) -> dict[str, Any]:
    return {"type": "RUN_FINISHED", "result": {"message": {"id": "m", "content": content}, "plan": None}}


START = {"type": "TEXT_MESSAGE_START", "messageId": "m"}


def words(text: str) -> dict[str, Any]:
    return {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": text}


def test_no_control_character_reaches_the_terminal() -> None:
    assert shown(START, words("\x1b]0;owned\x07a\rb\x9b2J\u202ec\n")) == "]0;ownedab2Jc\n"


def test_an_answer_is_shown_once_whether_its_words_were_heard_or_lost() -> None:
    assert shown(START, words("三つ "), words("あります"), {"type": "TEXT_MESSAGE_END"}, finished("三つ あります")) == (
        "三つ あります\n"
    )
    assert shown(finished("All of it.")) == "All of it.\n"


def test_a_plan_is_shown_whole_and_then_only_what_moves() -> None:
    steps = [
        {"id": number, "description": f"do {number}", "tool": None, "args": None, "status": "pending", "error": None}
        for number in (1, 2)
    ]
    plan = {"id": "p", "version": 1, "status": "active", "goal": "both", "steps": steps}
    moved = {"op": "replace", "path": "/plan/steps/0", "value": {**steps[0], "status": "complete"}}
    said = shown(
        {"type": "STATE_SNAPSHOT", "snapshot": {"plan": plan}},
        {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/plan/version", "value": 2}, moved]},
    )
    assert said.splitlines() == ["Plan, active: both", "  [ ] 1. do 1", "  [ ] 2. do 2", "  [x] 1. do 1"]


def test_a_turn_that_failed_is_one_line() -> None:
    problem = {"title": "The model is unavailable", "status": 502}
    said = shown({"type": "RUN_ERROR", "message": "It cannot be reached.", "metadata": {"problem": problem}})
    assert said == "The model is unavailable: It cannot be reached.\n"
