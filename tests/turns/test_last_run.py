"""What a turn's row holds of its last run is what the run did."""

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from segue.domain.session import (
    AcknowledgementReport,
    MemoryReport,
    PromptPart,
    PromptReport,
    TurnReport,
    Usage,
    WebSearchReport,
)
from segue.domain.telemetry import ModelRun, NodeRun, RunTimeline
from segue.turns.run_record import prompt_of, run_of, stored_run

PROMPT = PromptReport((PromptPart("tools", 90, cacheable=True), PromptPart("message", 9, cacheable=False)), 99)
REPORT = TurnReport(
    AcknowledgementReport(), None, WebSearchReport(), MemoryReport(), Usage(), "scripted", prompt=PROMPT
)
CALLS = (
    ModelRun("scripted", 0, 1, None, 0, "answered", 1, 0, 1, None),
    ModelRun("scripted", 2, 1, 1, 0, "answered", 1, 1, 1, 0.0),
    ModelRun("another", 4, 1, None, 2, "key", 0, 0, 0, None),
)
RUNS = [
    RunTimeline(),
    RunTimeline((NodeRun("plan", 0, 1), NodeRun("tool_loop", 1)), CALLS),
    RunTimeline((NodeRun("plan", 0, 0),), CALLS[:1], left_out=3),
]


@pytest.mark.parametrize("report", [REPORT, None], ids=["answered", "failed"])
@pytest.mark.parametrize("run", RUNS, ids=["nothing", "calls", "left_out"])
def test_a_row_gives_back_the_run_and_the_prompt_that_it_was_made_of(
    run: RunTimeline, report: TurnReport | None
) -> None:
    stored = orjson.loads(orjson.dumps(stored_run(run, report), default=tuple))
    row = cast(Any, SimpleNamespace(id="turn_1", run=stored))
    read = run_of(row)
    assert read is not None
    assert (read.timeline(report), read.prompt) == (run, report and PROMPT)


def test_an_answer_without_a_request_to_a_model_has_no_prompt() -> None:
    row = cast(Any, SimpleNamespace(id="turn_1", run=[]))
    assert prompt_of(row, TurnReport(**{name: getattr(REPORT, name) for name in REPORT.__slots__[:6]})) is None
