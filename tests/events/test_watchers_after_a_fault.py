"""A statement that PostgreSQL refuses once ends no look for what others wait for."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.logs import awaiting
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, says
from tests.support.service import running
from tests.support.stores import looking_into


@pytest.mark.sweep
async def test_a_fault_that_is_no_outage_keeps_no_watcher_from_the_end_of_its_turn(
    settings: Settings, provider: Provider
) -> None:
    async def thought(_: Mapping[str, Any]) -> Response:
        await go.wait()
        return says("A long thought.")

    patient, go = settings.model_copy(update={"turn_lease_s": 600}), asyncio.Event()
    provider.will(thought)
    async with running(patient) as runs, running(patient, takes_turns=False) as client, looking_into(patient) as stores:
        session = await client.new_session()
        waiting = asyncio.create_task(client.send(session, "Think"))
        await provider.wait_for_requests(1)
        async with awaiting("ends_not_read") as told, stores.hidden("turns"), asyncio.timeout(PATIENCE_S):
            await told.wait()
        assert (await client.http.get("/health/ready")).json()["worker"] == "off"
        await stores.redis.flushall()
        go.set()
        await runs.ended(session)
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).status_code == 200
