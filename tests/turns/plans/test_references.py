"""An argument whose reference leads to nothing is asked for, and otherwise ends the step."""

import json
from datetime import timedelta
from typing import Any

import pytest

from segue.config import Settings
from tests.support.plans import ASK, Frozen, planned
from tests.support.provider import Provider, calls, says
from tests.support.results import TOOLBOX, use_toolbox
from tests.support.service import running
from tests.support.sweeps import first


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("folder", [{"$from": 1, "path": "none"}, [{"$from": 1, "path": "none"}]])
async def test_an_argument_that_came_to_nothing_is_not_left_out(
    settings: Settings, provider: Provider, folder: Any
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"t": {"command": "python", "args": [TOOLBOX]}}}))
    steps = [
        {"id": 1, "description": "Count", "tool": "mcp_count", "args": {"of": "x"}},
        {"id": 2, "description": "Echo", "tool": "mcp_echo", "args": {"all": True, "only_in": folder}},
    ]
    provider.will(planned(steps), calls(("mcp_echo", {"all": True})), says("It could not be found."))
    async with running(settings) as client:
        answer = await client.chat(await client.new_session(), ASK)
    assert [call["tool_name"] for call in answer["tool_calls"]] == ["mcp_count"]
    assert answer["plan"]["status"] == "failed"
    assert "only_in" in answer["plan"]["steps"][1]["error"]


@pytest.mark.parametrize(
    ("found", "path", "invented", "why"),
    [
        ([], "items[0].id", None, "step 1 has found nothing"),
        ([], "mails[0].id", {"to": "", "title": None}, "to, title could not be found"),
        ([{"name": "x"}], "items[0].id", {"to": "Ada", "title": ""}, "title could not be found"),
    ],
)
async def test_what_a_step_needs_of_a_result_without_it_is_not_made_up(
    settings: Settings, provider: Provider, found: Any, path: str, invented: dict[str, Any] | None, why: str
) -> None:
    """A model that has to call the tool writes something: it is told to leave empty what was not found."""
    use_toolbox(settings)
    from_first = {"$from": 1, "path": path}
    steps = [
        {"id": 1, "description": "Search", "tool": "echo", "args": {"items": found}},
        {"id": 2, "description": "Write", "tool": "echo", "args": {"to": from_first, "title": from_first}},
    ]
    provider.will(planned(steps), *([calls(("echo", invented))] if invented else []), says("There was none."))
    async with running(settings) as client:
        answer = await client.chat(await client.new_session(), ASK)
    assert [call["args"] for call in answer["tool_calls"]] == [{"items": found}]
    assert why in answer["plan"]["steps"][1]["error"]
    if invented:
        assert "is left empty: make nothing up" in str(provider.requests[1]["messages"][-1]["content"])


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("days", "status", "error"), [(0, "completed", None), (2, "failed", "step 1 has no result to")]
)
async def test_a_step_refers_to_what_another_turn_gave_for_as_long_as_that_is_kept(
    days: int, status: str, error: str | None, settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings)
    steps = [
        {"id": 1, "description": "Echo", "tool": "echo", "args": {"items": [{"id": "itm-100"}]}},
        {"id": 2, "description": "Count", "tool": "count", "args": {"of": "x"}, "requires_confirmation": True},
        {"id": 3, "description": "Echo", "tool": "echo", "args": {"id": {"$from": 1, "path": "items[0].id"}}},
    ]
    provider.will(planned(steps), says("That was it."))
    clock = Frozen()
    long = settings.model_copy(update={"plan_ttl_s": 864_000, "tool_result_ttl_days": 1})
    async with running(long, clock=clock) as client:
        session = await client.new_session()
        await client.chat(session, ASK)
        clock.now += timedelta(days=days)
        plan = (await client.chat(session, "sì, grazie"))["plan"]
    assert plan["status"] == status
    assert plan["steps"][2]["args"] == ({"id": "itm-100"} if days == 0 else steps[2]["args"])
    assert (plan["steps"][2]["error"] or "").startswith(error or "")


@pytest.mark.parametrize("step", first(2, [[], {}, None, "1", 1.5]))
async def test_what_looks_like_a_reference_in_a_call_of_the_model_waits_and_runs_as_it_was_shown(
    step: Any, settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings, confirm=["echo"])
    provider.will(calls(("echo", {"id": {"$from": step}})), says("Echoed."))
    async with running(settings) as client:
        session = await client.new_session()
        asked = await client.chat(session, "Echo it.")
        answer = await client.chat(session, "yes")
    assert asked["plan"]["steps"][0]["args"] == {"id": {"$from": step}}
    assert [(call["args"], call["status"]) for call in answer["tool_calls"]] == [({"id": {"$from": step}}, "succeeded")]


async def test_long_arguments_are_run_whole_and_shown_to_the_model_in_part(
    settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings)
    steps = [
        {"id": 1, "description": "Load", "tool": "big", "args": {"n_bytes": 300_000}},
        {"id": 2, "description": "Echo", "tool": "echo", "args": {"a": {"$from": 1}, "b": {"$from": 1, "path": "no"}}},
    ]
    provider.will(planned(steps), calls(("echo", {"b": "found"})), says("Done."))
    async with running(settings) as client:
        answer = await client.chat(await client.new_session(), ASK)
    echoed = answer["plan"]["steps"][1]
    assert (echoed["status"], len(echoed["args"]["a"]), echoed["args"]["b"]) == ("complete", 300_000, "found")
    assert max(len(json.dumps(request)) for request in provider.requests) < 60_000
