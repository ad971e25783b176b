"""A plan as models write it: whatever the wrapping, only what can be carried out becomes steps."""

import json
from typing import Any

import pytest

from segue.domain.plan import MAX_STEPS, Step
from segue.plans.plan_parser import parse_plan

TOOLS = ["mcp_search_emails", "mcp_get_email", "current_time"]
TWO = {
    "steps": [
        {"id": 1, "description": "search", "tool": "mcp_search_emails", "args": {"query": "x"}},
        {
            "id": 2,
            "description": "read",
            "tool": "mcp_get_email",
            "args": {"email_id": {"$from": 1, "path": "emails[0].id"}},
        },
    ]
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(TWO),
        f"```json\n{json.dumps(TWO, indent=2)}\n```",
        f"Sure! Here is the plan you asked for:\n{json.dumps(TWO)}\nShall I go on?",
        json.dumps(TWO).replace("}]", "},]"),
        json.dumps(TWO["steps"]),
        "First {an aside} and [another], then " + json.dumps(TWO),
    ],
    ids=["bare", "fenced", "prose", "trailing comma", "a list", "brackets in prose"],
)
def test_a_plan_is_found_however_it_is_wrapped(text: str) -> None:
    steps = parse_plan(text, tools=TOOLS)
    assert [(step.id, step.tool, step.status) for step in steps] == [
        (1, "mcp_search_emails", "pending"),
        (2, "mcp_get_email", "pending"),
    ]


def test_a_comma_is_mended_between_values_and_stays_in_a_text() -> None:
    told = 'see [a, ], \\"{b,}\\"'
    text = f'{{"steps": [{{"description": "x", "tool": "current_time", "args": {{"body": "{told}",}},}},]}}'
    [step] = parse_plan(text, tools=TOOLS)
    assert step.args == {"body": 'see [a, ], "{b,}"'}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no plan here",
        '{"steps": []}',
        '{"steps": "many"}',
        '{"steps": [{"tool": "mcp_get_email"}]}',
        "{" * 5000,
        '"' * 999,
    ],
)
def test_what_is_no_plan_has_no_steps(text: str) -> None:
    assert parse_plan(text, tools=TOOLS) == ()


def draft(*steps: dict[str, Any]) -> tuple[Step, ...]:
    return parse_plan(json.dumps({"steps": steps}), tools=TOOLS)


def test_ids_and_statuses_are_ours_and_references_follow() -> None:
    steps = draft(
        {"id": "a", "description": "search", "tool": "mcp_search_emails", "args": {}, "status": "complete"},
        {"id": "b", "description": "read", "tool": "mcp_get_email", "args": {"email_id": {"$from": "a"}}},
    )
    assert [step.status for step in steps] == ["pending", "pending"]
    assert steps[1].args == {"email_id": {"$from": 1}}


def test_a_tool_without_its_prefix_or_with_a_slip_is_recognised() -> None:
    steps = draft(
        {"description": "search", "tool": "search_emails", "args": {}},
        {"description": "read", "tool": "mcp_get_emails", "args": {}},
    )
    assert [step.tool for step in steps] == ["mcp_search_emails", "mcp_get_email"]


def test_an_unknown_tool_makes_the_plan_unusable() -> None:
    assert draft({"description": "launch", "tool": "launch_rocket", "args": {}}) == ()


@pytest.mark.parametrize("target", [2, 3, "nowhere"])
def test_a_reference_that_does_not_point_back_makes_the_plan_unusable(target: object) -> None:
    search = {"id": 1, "description": "search", "tool": "mcp_search_emails", "args": {}}
    read = {"id": 2, "description": "read", "tool": "mcp_get_email", "args": {"email_id": {"$from": target}}}
    assert draft(search, read) == ()


@pytest.mark.parametrize("name", [None, "", "none", "null", "None"])
def test_a_step_may_have_no_tool(name: str | None) -> None:
    [step] = draft({"description": "think", "tool": name})
    assert (step.tool, step.args) == (None, None)


def test_nine_steps_in_are_five_kept() -> None:
    steps = draft(*({"description": f"step {number}", "tool": None} for number in range(9)))
    assert len(steps) == MAX_STEPS == 5
