"""How the offline model corrects a plan: pure, without a service."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from segue.agent.prompts import TEXTS, with_notes, with_plan
from segue.around.offline.offline_model import correct_plan
from segue.domain.plan import Step
from tests.support.plans import new_plan

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TABLE = {
    "name": "Marco Rossi",
    "email": "marco@home.example",
    "day": "2026-11-21",
    "people": 2,
    "note": "by the window",
}


def corrected(reply: str, *args: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of the steps that the reply makes of these, one call each."""
    steps = [Step(number, "Book", "book_table", each) for number, each in enumerate(args, start=1)]
    plan = new_plan("plan_1", goal="a table", origin="msg_1", steps=steps, at=NOON)
    said = with_notes(reply, f"It is {NOON:%A}, {NOON.date()}, {NOON:%H:%M} (UTC, +0000).")
    instruction = with_plan(f"{TEXTS['planner']}\n\n{TEXTS['amender']}", plan)
    made = json.loads(correct_plan([HumanMessage(f"{said}\n\n{instruction}")]))
    return [step["args"] for step in made["steps"]]


@pytest.mark.parametrize(
    ("reply", "changed"),
    [
        ("no, write to anna@home.example", {"email": "anna@home.example"}),
        ("no, for Anna Bianchi", {"name": "Anna Bianchi"}),
        ("make it 4 people", {"people": 4}), ("no, on November 25th", {"day": "2026-11-25"}),
        ("no, il 25 novembre", {"day": "2026-11-25"}), ("不，11月25日", {"day": "2026-11-25"}),
        ("no, the day after tomorrow", {"day": "2026-11-22"}),
    ],
)  # fmt: skip
def test_a_correction_replaces_the_one_argument_of_its_kind(reply: str, changed: dict[str, Any]) -> None:
    assert corrected(reply, TABLE) == [TABLE | changed]


@pytest.mark.parametrize(
    "reply", ["no, a quieter one", "no, 4 people or 5", "no, anna@home.example or eva@home.example", "on the 25th"]
)
def test_a_correction_without_a_value_or_with_two_of_a_kind_changes_nothing(reply: str) -> None:
    assert corrected(reply, TABLE) == []


@pytest.mark.parametrize("reply", ["yes, but on 30 February", "sì, ma il 30 febbraio", "no, on 2027-13-45"])
def test_a_day_that_there_is_not_changes_nothing(reply: str) -> None:
    assert corrected(reply, {**TABLE, "guest": "Bob"}, {"guest": "Bob"}) == []
    assert corrected(reply, {"guest": "Bob", "people": 2}) == []


@pytest.mark.parametrize(
    ("reply", "before", "after"),
    [
        ("no, only 05", 2, 5), ("لا، ٥ فقط", 2, 5), ("no, 2.50 only", 2, 2.5), ("no, 4 only", 2.5, 4),
        ("no, only 99999999999999999999", 2, 1e20), ("no, only 05", "2", "05"),
    ],
)  # fmt: skip
def test_a_number_is_read_as_it_is_written(reply: str, before: Any, after: Any) -> None:
    assert corrected(reply, {"people": before}) == [{"people": after}]


def test_a_name_begins_with_capitals_and_takes_the_place_of_a_text_alone() -> None:
    assert corrected("لا، خمسة فقط", {"who": "Bob"}) == []
    assert corrected("no, for Żaneta Ólafs", {"who": "Bob"}) == [{"who": "Żaneta Ólafs"}]
    assert corrected("no, for Anna Bianchi", {"who": None, "is_new": True}) == []


def test_of_two_arguments_of_a_kind_none_is_replaced() -> None:
    assert corrected("no, for Anna Bianchi", TABLE, TABLE) == []
    assert corrected("4 people", {**TABLE, "chairs": 2}) == []
