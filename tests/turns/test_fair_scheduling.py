"""One user's backlog does not keep the others waiting."""

import asyncio
from typing import Any

import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.identity import new_key, speaking
from tests.support.provider import Provider, says
from tests.support.service import Client, running

PLACES = 4
BACKLOG = 30


async def backlog_of(client: Client, count: int) -> list[str]:
    sessions = [await client.new_session() for _ in range(count)]
    for session in sessions:
        assert (await client.send(session, "from ada", background=True)).status_code == 202
    return sessions


@pytest.mark.sweep
async def test_who_comes_after_a_backlog_is_next_and_none_of_the_backlog_is_forgotten(
    settings: Settings, provider: Provider
) -> None:
    gates = [asyncio.Event() for _ in range(PLACES)]
    waiting = iter(gates)

    async def answer(_: dict[str, Any]) -> Response:
        if (gate := next(waiting, None)) is not None:
            await gate.wait()
        return says("done")

    provider.will(*[answer] * (BACKLOG + 1))
    guarded = settings.model_copy(update={"auth": "api_key", "worker_concurrency": PLACES})
    async with (
        running(guarded) as service,
        speaking(service, await new_key(settings, "ada")) as ada,
        speaking(service, await new_key(settings, "bob")) as bob,
    ):
        sessions = await backlog_of(ada, BACKLOG)
        await provider.wait_for_requests(PLACES)
        session = await bob.new_session()
        await bob.send(session, "from bob", background=True)
        gates[0].set()
        await provider.wait_for_requests(PLACES + 1)
        assert "from bob" in provider.messages(PLACES, role="user")[0]["content"]
        for gate in gates:
            gate.set()
        assert [turn["status"] for turn in await bob.ended(session)] == ["completed"]
        for each in sessions:
            assert [turn["status"] for turn in await ada.ended(each)] == ["completed"]


@pytest.mark.sweep
async def test_a_user_alone_has_all_the_places(settings: Settings, provider: Provider) -> None:
    go = asyncio.Event()

    async def answer(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("done")

    provider.will(*[answer] * (PLACES + 2))
    async with running(settings.model_copy(update={"worker_concurrency": PLACES})) as client:
        sessions = await backlog_of(client, PLACES + 2)
        await provider.wait_for_requests(PLACES)
        go.set()
        for session in sessions:
            await client.ended(session)
