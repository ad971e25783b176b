"""The state machine of one tool: as a table, and against what its rules say of any course of events."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segue.domain.tool import DependencyGroup, ManualStatus, ReasonCode, ToolSpec, ToolState, ToolStatus
from segue.tools.normalize import no_payload
from segue.tools.run import CallOutcome, Fault
from segue.tools.tool_health import (
    NEVER_RAN,
    ToolHealth,
    after_call,
    is_blocked,
    needs_reset,
    reset,
    set_by_person,
    tool_state,
)
from segue.tools.tool_settings import ToolSettings

Event = Literal["success", "failure", "lost", "refused_login", "bad_arguments", "refusal", "wait", "reset"]

START = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
SETTINGS = ToolSettings(tool_failure_threshold=3, tool_failure_duration_s=300, tool_fleet_threshold=3)
TOOL = ToolSpec("moody", "", {})
DEPENDENT = ToolSpec("dependent", "", {}, depends_on=(DependencyGroup("any", ("base", "other")),))

FAULTS: dict[str, Fault] = {
    "failure": "tool",
    "lost": "tool",
    "refused_login": "unauthorized",
    "bad_arguments": "arguments",
    "refusal": "refused",
}


def outcome(event: str) -> CallOutcome:
    if event == "success":
        return CallOutcome("succeeded", no_payload(), None, 1)
    return CallOutcome(
        "unknown" if event == "lost" else "failed", no_payload(), "the shelf is closed", 1, FAULTS[event]
    )


def apply(health: ToolHealth, event: str, now: datetime) -> ToolHealth:
    if event == "reset":
        return reset(health, now)
    if event in get_args(ManualStatus):
        return set_by_person(health, now, event, None)  # type: ignore[arg-type]  # looked up in the line above
    return after_call(health, outcome(event), now, settings=SETTINGS)


def state_after(events: str) -> ToolState:
    """The state a second after the last of these events; `wait` lets the time of a failure pass."""
    health, now = NEVER_RAN, START
    for event in events.split():
        now += timedelta(seconds=300 if event == "wait" else 1)
        health = health if event == "wait" else apply(health, event, now)
    return tool_state(TOOL, {TOOL.name: health}, {}, now=now + timedelta(seconds=1), settings=SETTINGS)


@pytest.mark.parametrize(
    ("events", "status", "available", "code"),
    [
        pytest.param("", "available", True, None, id="what never ran may run"),
        pytest.param("success", "available", True, None, id="a success changes nothing"),
        pytest.param("failure failure", "available", True, None, id="two failures are forgiven"),
        pytest.param("failure failure failure", "failed", False, "consecutive_failures", id="the third one fails it"),
        pytest.param("failure failure lost", "failed", False, "consecutive_failures", id="a lost call is a failure"),
        pytest.param("failure failure success failure", "available", True, None, id="a success starts the count anew"),
        pytest.param("failure failure bad_arguments", "available", True, None, id="bad arguments are the model's"),
        pytest.param("failure failure refusal refusal", "available", True, None, id="what was refused never ran"),
        pytest.param("refused_login", "failed", False, "unauthorized", id="a refused credential fails it at once"),
        pytest.param("failure failure failure wait", "failed", True, "half_open", id="after a while it may be tried"),
        pytest.param("failure failure failure wait success", "available", True, "succeeded", id="a good try closes"),
        pytest.param(
            "failure failure failure wait failure", "failed", False, "consecutive_failures", id="a bad try re-opens"
        ),
        pytest.param("failure failure failure wait failure wait", "failed", True, "half_open", id="and so on"),
        pytest.param(
            "failure failure failure wait bad_arguments", "failed", True, "half_open", id="no try without arguments"
        ),
        pytest.param("failure failure failure reset", "available", True, "reset", id="a reset lifts a failure"),
        pytest.param("failure failure reset failure", "available", True, "reset", id="a reset forgives failures"),
        pytest.param("maintenance", "maintenance", False, "set_by_person", id="a person takes it out before it ran"),
        pytest.param("maintenance success", "maintenance", False, "set_by_person", id="no success lifts maintenance"),
        pytest.param(
            "unavailable failure failure failure", "unavailable", False, "set_by_person", id="nor do failures change it"
        ),
        pytest.param("maintenance refused_login", "maintenance", False, "set_by_person", id="nor a refused credential"),
        pytest.param("maintenance wait wait", "maintenance", False, "set_by_person", id="nor time"),
        pytest.param("maintenance available", "available", True, "set_by_person", id="a person lifts it"),
        pytest.param("maintenance reset", "available", True, "reset", id="or resets it"),
        pytest.param(
            "maintenance failure failure available failure", "available", True, "set_by_person", id="with a clean start"
        ),
        pytest.param(
            "failure failure failure maintenance wait", "maintenance", False, "set_by_person", id="failed or not"
        ),
        pytest.param("failure failure failure available", "available", True, "set_by_person", id="a person knows best"),
    ],
)
def test_what_events_make_of_a_tool(events: str, status: ToolStatus, available: bool, code: ReasonCode) -> None:  # noqa: FBT001 (a column of the table)
    state = state_after(events)
    assert (state.status, state.available, state.reason_code) == (status, available, code)
    assert is_blocked(state) is not available


def test_a_failed_tool_says_why_when_it_is_tried_again_and_what_helps() -> None:
    state = state_after("failure failure failure")
    assert state.reason == "the shelf is closed"
    assert state.retry_at == START + timedelta(seconds=303)
    assert state.suggested_actions == (
        "wait until 2026-11-20T09:05:03Z, then it is tried once",
        "reset it if the cause is mended",
    )


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ("", None),
        ("success", "Its last call succeeded."),
        ("failure", "1 of 3 failures in a row that fail it: the shelf is closed"),
        ("success failure failure", "2 of 3 failures in a row that fail it: the shelf is closed"),
        ("failure success", "Its last call succeeded."),
        ("failure bad_arguments", "1 of 3 failures in a row that fail it: the shelf is closed"),
        ("failure failure failure wait success", "Its last call succeeded."),
        ("success failure reset", None),
        ("failure reset success", "Its last call succeeded."),
        ("maintenance available", "Set to available by a person."),
        ("maintenance failure", "Set to maintenance by a person."),
    ],
)
def test_a_state_says_why_it_is_so_unless_nothing_has_been_counted(events: str, reason: str | None) -> None:
    assert state_after(events).reason == reason


def test_a_row_of_a_release_that_gave_no_reason_says_why_too() -> None:
    def reason(**fields: Any) -> str | None:
        return tool_state(TOOL, {"moody": ToolHealth(**fields)}, {}, now=START, settings=SETTINGS).reason

    assert reason(last_success_time=START, execution_count=1) == "Its last call succeeded."
    assert reason(consecutive_failures=1, execution_count=1) == "1 of 3 failures in a row that fail it."


def test_times_and_counts_outlive_failures_and_resets() -> None:
    state = state_after("success failure failure failure reset")
    assert (state.consecutive_failures, state.execution_count) == (0, 4)
    assert state.last_success_time == START + timedelta(seconds=1)
    assert state.last_failure_time == START + timedelta(seconds=4)
    assert state.last_updated == START + timedelta(seconds=5)


def test_a_failure_of_the_whole_fleet_counts_until_the_later_of_both_may_be_tried() -> None:
    def failed(code: ReasonCode, seconds: int) -> ToolHealth:
        return ToolHealth(status="failed", reason_code=code, failed_at=START + timedelta(seconds=seconds))

    def code(own: ToolHealth, fleet_at: int, seconds: int) -> ReasonCode | None:
        fleet, now = {"moody": failed("fleet_failed", fleet_at)}, START + timedelta(seconds=seconds)
        return tool_state(TOOL, {"moody": own}, fleet, now=now, settings=SETTINGS).reason_code

    own = failed("unauthorized", 30)
    assert code(NEVER_RAN, 60, 100) == "fleet_failed"
    assert [code(own, 60, seconds) for seconds in (100, 330, 359, 360)] == ["unauthorized"] * 3 + ["half_open"]
    assert [code(own, 0, seconds) for seconds in (100, 300, 330)] == ["unauthorized"] * 2 + ["half_open"]
    assert code(set_by_person(own, START, "maintenance", None), 60, 100) == "set_by_person"


@pytest.mark.parametrize(
    ("given", "told"), [("It is being moved.", "It is being moved."), (None, "Set to maintenance by a person.")]
)
def test_what_a_person_takes_out_says_why(given: str | None, told: str) -> None:
    own = set_by_person(NEVER_RAN, START, "maintenance", given)
    assert tool_state(TOOL, {"moody": own}, {}, now=START, settings=SETTINGS).reason == told


def test_dependencies_lock_a_tool_until_one_has_succeeded_and_a_reset_locks_nothing() -> None:
    def state(**session: ToolHealth) -> ToolState:
        return tool_state(DEPENDENT, session, {}, now=START, settings=SETTINGS)

    base = apply(NEVER_RAN, "success", START)
    locked = state(base=apply(NEVER_RAN, "failure", START))
    assert (locked.status, locked.available, locked.reason_code) == ("available", False, "missing_dependencies")
    assert locked.missing_dependencies == ("base", "other")
    assert locked.reason == "To unlock: run one of base, other first."
    assert not is_blocked(locked)
    assert state(base=base).available
    assert state(base=base).reason == "Unlocked, since these have succeeded: base."
    assert state(base=reset(base, START)).available
    assert state(base=set_by_person(base, START, "maintenance", None)).available


def test_what_blocks_a_tool_that_is_locked_too_is_said_first() -> None:
    failed = apply(NEVER_RAN, "refused_login", START)
    state = tool_state(DEPENDENT, {"dependent": failed}, {}, now=START, settings=SETTINGS)
    assert (state.reason_code, state.missing_dependencies) == ("unauthorized", ("base", "other"))


def test_only_what_has_something_held_against_it_needs_reset() -> None:
    burdens = {
        "": False,
        "success": False,
        "failure": True,
        "failure success": False,
        "refused_login": True,
        "refused_login reset": False,
        "maintenance": True,
        "maintenance available": False,
    }
    for events, burdened in burdens.items():
        health = NEVER_RAN
        for event in events.split():
            health = apply(health, event, START)
        assert needs_reset(health) is burdened, events
    assert needs_reset(ToolHealth(reason_code="state_unreadable"))


class Course(RuleBasedStateMachine):
    """Any course of events. What is expected is read off their list, whatever state was stored on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.health = NEVER_RAN
        self.events: list[tuple[str, datetime]] = []

    @rule(event=st.sampled_from(["success", "failure", "lost", "refused_login", "bad_arguments", "refusal"]))
    def call_ends(self, event: str) -> None:
        self._happens(event)

    @rule(event=st.sampled_from([*get_args(ManualStatus), "reset"]))
    def person_acts(self, event: str) -> None:
        self._happens(event)

    @rule(seconds=st.integers(0, 400))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    def _happens(self, event: str) -> None:
        self.events.append((event, self.now))
        self.health = apply(self.health, event, self.now)

    @invariant()
    def the_rules_hold(self) -> None:
        state = tool_state(TOOL, {TOOL.name: self.health}, {}, now=self.now, settings=SETTINGS)
        said = (state.status, state.available, state.consecutive_failures, state.retry_at)
        assert said == expected(self.events, self.now)
        ran = [event for event, _ in self.events if event in ("success", "failure", "lost", "refused_login")]
        assert state.execution_count == len(ran)
        assert state.last_success_time == last(self.events, ("success",))
        assert state.last_failure_time == last(self.events, ("failure", "lost", "refused_login"))


def expected(events: Sequence[tuple[str, datetime]], now: datetime) -> tuple[str, bool, int, datetime | None]:
    """Status, availability, failures in a row, next try."""
    words = [event for event, _ in events if event in (*get_args(ManualStatus), "reset")]
    failures: list[tuple[str, datetime]] = []
    for event, at in events:
        if event in ("success", *get_args(ManualStatus), "reset"):
            failures = []
        elif event in ("failure", "lost", "refused_login"):
            failures.append((event, at))
    if words and words[-1] in ("unavailable", "maintenance"):
        return words[-1], False, len(failures), None
    if len(failures) < 3 and "refused_login" not in [event for event, _ in failures]:
        return "available", True, len(failures), None
    retry_at = failures[-1][1] + timedelta(seconds=300)
    return "failed", now >= retry_at, len(failures), retry_at


def last(events: Sequence[tuple[str, datetime]], kinds: tuple[str, ...]) -> datetime | None:
    return next((at for event, at in reversed(events) if event in kinds), None)


TestAnyCourseOfEvents = Course.TestCase
