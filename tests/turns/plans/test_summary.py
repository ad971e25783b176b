"""A plan waits through more talk than a window holds."""

from typing import Any

import orjson
import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.plans import ASK, THREE_STEPS, offered
from tests.support.provider import Provider, says
from tests.support.service import Client
from tests.support.stores import looking_into

BESIDE = "Unrelated number {}: people like to talk about the weather, and the weather does not mind it at all, does it?"


@pytest.mark.sweep
async def test_a_plan_that_waits_is_carried_out_after_the_talk_about_it_has_become_a_summary(
    settings: Settings, client: Client, provider: Provider, effects: list[str]
) -> None:
    told: list[Any] = []

    async def sums_up(body: dict[str, Any]) -> Response:
        told.append(orjson.loads(body["messages"][-1]["content"])["messages"])
        return says("They spoke of the weather.")

    provider.summary = sums_up
    session, _ = await offered(client, provider, THREE_STEPS)
    for number in range(12):
        provider.will(says("Indeed."))
        await client.chat(session, BESIDE.format(number))
        assert "Goal: " + ASK in provider.notes()
    async with looking_into(settings) as stores:
        await stores.until("SELECT summary FROM sessions")
    asked_again = await client.chat(session, "sì")
    assert asked_again["plan"]["status"] == "waiting"
    provider.will(says("Done."))
    done = await client.chat(session, "sì")
    assert done["plan"]["status"] == "completed"
    assert effects == ["get itm-1", "delete itm-1"]
    assert told[0][0]["user"] == ASK
    assert "They spoke of the weather." in provider.messages()[0]["content"]
