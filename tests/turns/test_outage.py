"""A turn that runs while Postgres goes away for a moment."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url
from starlette.responses import Response

from segue.config import Settings
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, says
from tests.support.proxy import Proxy, proxied
from tests.support.service import Client, running


@pytest.fixture
async def postgres(database_url: str) -> AsyncIterator[Proxy]:
    query = make_url(database_url).query
    async with proxied(Path(f"{query['host']}/.s.PGSQL.{query['port']}")) as proxy:
        yield proxy


@pytest.fixture
async def client(settings: Settings, database_url: str, postgres: Proxy) -> AsyncIterator[Client]:
    database = make_url(database_url).set(host="127.0.0.1", port=postgres.port, query={})
    url = SecretStr(database.render_as_string(hide_password=False))
    async with running(settings.model_copy(update={"database_url": url})) as served:
        yield served


async def test_who_waits_for_an_answer_does_not_hear_of_an_outage_that_is_over_before_it(
    client: Client, provider: Provider, postgres: Proxy
) -> None:
    thought = asyncio.Event()

    async def thinks(_: dict[str, Any]) -> Response:
        await thought.wait()
        return says("a long thought")

    provider.will(thinks)
    session = await client.new_session()
    waiting = asyncio.create_task(client.send(session, "think"))
    await provider.wait_for_requests(1)
    await postgres.begin("refuses")
    while (await client.http.get(f"/sessions/{session}")).status_code != 503:
        pass
    await postgres.open()
    thought.set()
    answer = await waiting
    assert answer.status_code == 200, answer.text
    assert answer.json()["message"]["content"] == "a long thought"


async def test_a_turn_whose_end_could_not_be_stored_does_not_hold_its_session_up(
    client: Client, provider: Provider, postgres: Proxy
) -> None:
    async def falls(_: dict[str, Any]) -> Response:
        await postgres.begin("refuses")
        return says("lost")

    provider.will(falls, says("here I am"))
    session = await client.new_session()
    async with asyncio.timeout(PATIENCE_S):
        refused = await client.send(session, "are you there?")
    assert (refused.status_code, "turn_id" in refused.json()) == (503, True)
    await postgres.open()
    async with asyncio.timeout(PATIENCE_S):
        assert (await client.chat(session, "and now?"))["message"]["content"] == "here I am"
    assert [message["role"] for message in await client.messages(session)] == ["user", "user", "assistant"]
