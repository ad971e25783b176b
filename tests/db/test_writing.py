"""A row leaves out what its reader fills in."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from segue.db.rows import reader, without_defaults
from segue.domain.plan import Step
from segue.domain.session import (
    AcknowledgementReport,
    MemoryReport,
    PromptPart,
    PromptReport,
    TurnOptions,
    TurnReport,
    Usage,
    WebSearchReport,
)
from segue.domain.telemetry import ModelRun, NodeRun, RunTimeline
from segue.turns.chat_request import Origin, TurnRequest
from tests.support.plans import new_plan

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
PLAN = new_plan(
    "plan_1",
    goal="look",
    origin="msg_1",
    steps=[Step(1, "look", "find", {"x": 0}), Step(2, "write", None, None, requires_confirmation=True)],
    at=NOON,
)
STORED = [
    TurnReport(AcknowledgementReport(), None, WebSearchReport(), MemoryReport(), Usage(), "scripted"),
    TurnReport(
        AcknowledgementReport("confirm", "weak", "bare_yes", "it", "plan_1", 2),
        PLAN,
        WebSearchReport(requested=True, performed=True, reason="asked"),
        MemoryReport(short_term=True, long_term=1, history_messages=2, tool_results=3),
        Usage(1, 2, 3, 4, 5, True, 0.0, 6),
        "scripted",
        agent="segue",
        agent_gone="clerk",
        asked_again="args_changed",
        prompt=PromptReport((PromptPart("tools", 0, False),), 0),
    ),
    TurnRequest(False),
    TurnRequest(
        True,
        "plan_1",
        True,
        True,
        "session",
        ("plan_1", 2),
        True,
        Origin("r"),
        "it",
        "Europe/Rome",
        "turn_1",
        False,
        TurnOptions('{"b":0,"a":0}', ("END",), 9, 0.0, "Be brief.", "scripted"),
    ),
    RunTimeline(),
    RunTimeline((NodeRun("plan", 0),), (ModelRun("scripted", 0, 1, None, 0, "answered", 1, 0, 1, None),), 1, Usage()),
]


@pytest.mark.parametrize("value", STORED, ids=repr)
def test_what_is_left_out_is_filled_in_by_the_reader(value: Any) -> None:
    stored = orjson.loads(orjson.dumps(without_defaults(value), default=tuple))
    assert reader(type(value))(stored) == value


def test_a_row_keeps_what_the_release_before_needs() -> None:
    assert without_defaults(STORED[0]) == {
        "acknowledgement": {},
        "plan": None,
        "web_search": {},
        "memory_used": {},
        "usage": {"llm_calls": 0},
        "model": "scripted",
    }
    assert without_defaults(TurnRequest(False)) == {"force_web_search": False}
    assert without_defaults(RunTimeline()) == {}
