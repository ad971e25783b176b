"""Buttons: on a plan whose turn died, on one that runs, on one whose time passes in the queue."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.plans import ASK, THREE_STEPS, Frozen, deletion, offered, planned
from tests.support.provider import Provider, fails, says
from tests.support.service import Client

THINK = [THREE_STEPS[0], {"id": 2, "description": "Think", "tool": None}, THREE_STEPS[2]]


@pytest.mark.parametrize(("decision", "status"), [("confirm", "waiting"), ("reject", "cancelled")])
async def test_a_plan_whose_turn_died_can_be_decided_by_its_version(
    client: Client,
    provider: Provider,
    effects: list[str],
    decision: str,
    status: str,
) -> None:
    provider.will(planned(THINK), fails(500), *([says("Thought.")] if decision == "confirm" else []))
    session = await client.new_session()
    assert (await client.send(session, ASK)).status_code == 502
    body = {"decision": decision, "version": (await client.get(f"/sessions/{session}/plan"))["version"]}
    response = await client.http.post(f"/sessions/{session}/plan/decision", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["plan"]["status"] == status
    assert effects == []


async def test_a_late_button_does_not_end_a_plan_that_is_running(
    client: Client,
    provider: Provider,
    clock: Frozen,
) -> None:
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go.wait()
        return says("Thought.")

    provider.will(planned(THINK), held)
    session = await client.new_session()
    turn = asyncio.create_task(client.send(session, ASK))
    await provider.wait_for_requests(2)
    plan = await client.get(f"/sessions/{session}/plan")
    clock.now += timedelta(days=2)
    body = {"decision": "confirm", "version": plan["version"]}
    response = await client.http.post(f"/sessions/{session}/plan/decision", json=body)
    assert response.json()["code"] == "plan_changed"
    go.set()
    assert (await turn).status_code == 200


async def test_a_button_whose_turn_comes_after_the_expiry_runs_nothing(
    client: Client,
    provider: Provider,
    effects: list[str],
    clock: Frozen,
) -> None:
    session, answer = await offered(client, provider, [deletion(1), deletion(2)])
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go.wait()
        return says("Twelve.")

    provider.will(held)
    question = "How many items would you say there are altogether on the shelf in the hall downstairs?"
    first = asyncio.create_task(client.send(session, question))
    await provider.wait_for_requests(2)
    body = {"decision": "confirm", "version": answer["plan"]["version"]}
    button = asyncio.create_task(client.http.post(f"/sessions/{session}/plan/decision", json=body))
    while (await client.get(f"/sessions/{session}"))["message_count"] < 4:
        pass
    clock.now += timedelta(days=2)
    go.set()
    await first
    assert (await button).json()["plan"]["status"] == "expired"
    assert effects == []
