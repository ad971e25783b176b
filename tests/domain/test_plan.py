"""The moves of a plan: what the tables allow, and what can never happen."""

from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.domain.plan import (
    MAX_STEPS,
    PLAN_TRANSITIONS,
    STEP_TRANSITIONS,
    IllegalTransition,
    Plan,
    PlanStatus,
    Step,
    StepStatus,
    end,
    replace_open_steps,
    update_step,
)
from tests.support.plans import new_plan

NOW = datetime(2026, 11, 20, tzinfo=UTC)
STEP_STATUSES: tuple[StepStatus, ...] = get_args(StepStatus)


def plan_of(count: int) -> Plan:
    return new_plan(
        "plan_x",
        goal="goal",
        origin="msg_x",
        steps=[Step(number, f"step {number}", "tool", {}) for number in range(1, count + 1)],
        at=NOW,
    )


def test_every_status_stands_in_the_tables() -> None:
    assert set(PLAN_TRANSITIONS) == set(get_args(PlanStatus))
    assert set(STEP_TRANSITIONS) == set(STEP_STATUSES)


def test_a_step_that_is_over_moves_no_more() -> None:
    plan = update_step(update_step(plan_of(2), 1, "running"), 1, "complete")
    for status in STEP_STATUSES:
        with pytest.raises(IllegalTransition):
            update_step(plan, 1, status)


def test_a_step_cannot_be_running_twice_without_ending() -> None:
    with pytest.raises(IllegalTransition):
        update_step(update_step(plan_of(1), 1, "running"), 1, "running")


def test_the_last_step_completes_the_plan() -> None:
    plan = plan_of(2)
    for number in (1, 2):
        plan = update_step(update_step(plan, number, "running"), number, "complete")
    assert plan.status == "completed"
    assert plan.current_step == 2


@pytest.mark.parametrize("fate", ["failed", "unknown"])
def test_a_step_that_did_not_succeed_fails_the_plan_and_skips_what_follows_with_the_reason(fate: StepStatus) -> None:
    plan = update_step(update_step(plan_of(3), 1, "running"), 1, fate)
    assert plan.status == "failed"
    assert [step.status for step in plan.steps] == [fate, "skipped", "skipped"]
    assert plan.steps[1].error == "step 1 did not succeed"


def test_a_waiting_plan_that_is_cancelled_skips_what_had_not_started() -> None:
    plan = end(update_step(plan_of(2), 1, "waiting"), "cancelled")
    assert plan.status == "cancelled"
    assert {step.status for step in plan.steps} == {"skipped"}


def test_a_closed_plan_takes_no_other_end() -> None:
    with pytest.raises(IllegalTransition):
        end(end(plan_of(1), "cancelled"), "expired")


def test_an_amended_plan_keeps_what_is_done_and_numbers_on() -> None:
    plan = update_step(update_step(plan_of(3), 1, "running"), 1, "complete")
    amended = replace_open_steps(update_step(plan, 2, "waiting"), [Step(1, "other", "tool", {})])
    assert [(step.id, step.description, step.status) for step in amended.steps] == [
        (1, "step 1", "complete"),
        (2, "other", "pending"),
    ]


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(STEP_STATUSES)), max_size=20))
def test_whatever_is_tried_the_version_grows_with_each_move_and_no_step_waits_or_runs_in_a_closed_plan(
    moves: list[tuple[int, StepStatus]],
) -> None:
    plan = plan_of(3)
    for number, status in moves:
        try:
            moved = update_step(plan, number, status)
        except IllegalTransition:
            continue
        assert moved.version == plan.version + 1
        plan = moved
    if not plan.is_open:
        assert not {step.status for step in plan.steps} & {"pending", "waiting"}


def test_a_new_plan_is_open_and_begins_at_its_first_step() -> None:
    plan = plan_of(2)
    assert (plan.version, plan.current_step, plan.is_open) == (1, 1, True)
    assert (plan.waiting_step, plan.running_step, plan.started_steps) == (None, None, ())
    assert plan.next_step == plan.steps[0]
    assert not end(plan, "cancelled").is_open


def test_a_plan_tells_which_step_runs_waits_and_comes_next() -> None:
    plan = update_step(update_step(plan_of(4), 1, "running"), 1, "complete")
    plan = update_step(plan, 2, "running")
    assert (plan.running_step, plan.waiting_step, plan.next_step) == (plan.steps[1], None, plan.steps[2])
    plan = update_step(update_step(plan, 2, "complete"), 3, "waiting")
    assert (plan.running_step, plan.waiting_step) == (None, plan.steps[2])
    assert plan.current_step == 3


def test_an_amended_plan_has_room_for_as_many_steps_as_are_left() -> None:
    plan = update_step(update_step(plan_of(3), 1, "running"), 1, "complete")
    plan = update_step(update_step(plan, 2, "running"), 2, "complete")
    amended = replace_open_steps(plan, plan_of(MAX_STEPS).steps)
    assert [step.id for step in amended.steps] == list(range(1, MAX_STEPS + 1))
    assert amended.started_steps == plan.steps[:2]
