"""An answer that was stored, and whose storing was not heard before a long outage, is charged once."""

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.responses import Response

from segue.config import Settings
from tests.support.logs import awaiting
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, says
from tests.support.proxy import door_to
from tests.support.service import running
from tests.support.stores import looking_into


@pytest.mark.sweep
@pytest.mark.hasty
async def test_an_answer_whose_storing_was_not_heard_is_charged_once_though_the_outage_outlasts_the_lease(
    settings: Settings, database_url: str, provider: Provider
) -> None:
    async def then_the_word_is_lost(_: dict[str, Any]) -> Response:
        lost.append(door.lose(b"INSERT 0 1"))
        return says("Here.")

    lost: list[asyncio.Event] = []
    provider.will(then_the_word_is_lost, says("Still here."))
    async with (
        door_to(database_url) as (door, behind),
        running(settings.model_copy(update={"database_url": SecretStr(behind), "turn_lease_s": 2})) as client,
        looking_into(settings) as stores,
        asyncio.timeout(PATIENCE_S),
    ):
        session = await client.new_session()
        async with awaiting("turn_cut_off") as cut_off:
            await client.send(session, "Where am I?", background=True)
            await provider.wait_for_requests(1)
            await lost[0].wait()
            await door.begin("refuses")
            await cut_off.wait()
        await door.open()
        await client.chat(session, "And now?")  # is taken once the end that was kept is stored
        turn, _ = await client.ended(session, 2)
        assert (turn["status"], turn["attempts"], turn["answer"]["usage"]["llm_calls"]) == ("completed", 1, 1)
        assert await stores.database.fetchval("SELECT sum(calls)::int FROM usage") == 2
