"""kill -9 right after a commit that the process never heard of, and in the middle of words that somebody listens to."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
import pytest
from starlette.responses import Response

from segue.models.untrusted import unfenced
from tests.support.provider import calls, says, streams
from tests.support.service import Client
from tests.support.site import Site
from tests.support.streams import Sent, chatting, check, kinds, listening, replayed, texts

KEY = {"Idempotency-Key": "once"}
STORED = b"INSERT 0 1\0"  # how Postgres says that the answer is stored
COMMITTED = b"COMMIT\0"


@dataclass(frozen=True, slots=True)
class Killed:
    """Three sessions whose process was killed, what was heard of the one that spoke, and a client of the next."""

    site: Site
    client: Client
    stored: str
    recorded: str
    spoken: str
    heard: list[Sent]


@pytest.fixture(scope="module")
async def killed(site: Site) -> AsyncIterator[Killed]:
    assert not site.processes, "another process would take the turns over"
    provider, go_on, never = site.provider, asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await go_on.wait()
        return says("Stored, and nobody knows.")

    async with site.serving() as (process, client):
        stored, recorded, spoken = [await client.new_session() for _ in range(3)]
        provider.will_to("is stored", held)
        provider.will_to("is recorded", calls(("mcp_stamp_item", {"item_id": "recorded"})))
        provider.will_to("is spoken", streams("One,", never))
        async with chatting(client, spoken, "What is spoken?") as stream:
            heard = await stream.until("TEXT_MESSAGE_CONTENT")
        waiting = [asyncio.create_task(post(client, stored, "What is stored?"))]
        waiting.append(asyncio.create_task(post(client, recorded, "What is recorded?")))
        await all_stand_where_they_are_killed(site, spoken, heard)
        [turn] = await client.turns(recorded)
        lost = site.postgres.lose(COMMITTED, after=turn["turn_id"].encode())
        site.shelf.go.set()
        await lost.wait()
        lost = site.postgres.lose(STORED)
        go_on.set()
        await lost.wait()
        site.kill(process)
        for refused in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(refused, httpx2.TransportError), refused
    provider.will_to("is recorded", says("Stamped once."))
    provider.will_to("is spoken", says("One, two, three."))
    async with site.serving() as (_, client):
        for session in (stored, recorded, spoken):
            await client.ended(session)
        never.set()
        yield Killed(site, client, stored, recorded, spoken, heard)
    site.shelf.go.clear()


async def post(client: Client, session: str, message: str) -> httpx2.Response:
    return await client.http.post(f"/sessions/{session}/chat", json={"message": message}, headers=KEY)


async def all_stand_where_they_are_killed(site: Site, session: str, heard: list[Sent]) -> None:
    """The model is asked, the tool is at work, and Redis holds what was heard."""
    await site.shelf.wait_for("stamp recorded")
    await site.provider.wait_for_request_about("is stored")
    log = f"segue:events:{session}:{heard[0].event['runId']}"
    async with site.stores() as stores:
        await stores.until_key(lambda: stores.redis.xrange(log, min=f"{heard[-1].id}-0"))


@pytest.mark.sweep
async def test_an_answer_that_was_stored_is_the_answer_though_its_process_never_knew(killed: Killed) -> None:
    [turn] = await killed.client.turns(killed.stored)
    assert (turn["status"], turn["attempts"]) == ("completed", 1)
    assert turn["answer"]["message"]["content"] == "Stored, and nobody knows."
    assert (await post(killed.client, killed.stored, "What is stored?")).json() == turn["answer"]
    told = await replayed(killed.client, killed.stored, turn["turn_id"])
    assert told[-1].event["result"] == turn["answer"]
    assert len(killed.site.provider.about("is stored")) == 1
    await killed.site.is_unharmed(killed.client, killed.stored)


@pytest.mark.sweep
async def test_a_result_that_was_recorded_is_used_and_its_effect_is_not_repeated(killed: Killed) -> None:
    [turn] = await killed.client.turns(killed.recorded)
    assert turn["answer"]["message"]["content"] == "Stamped once."
    assert [call["status"] for call in turn["answer"]["tool_calls"]] == ["succeeded"]
    assert killed.site.shelf.effects.count("stamp recorded") == 1
    [*_, result] = killed.site.provider.about("is recorded")[-1]["messages"]
    assert orjson.loads(unfenced(result["content"])) == {"stamped": "recorded"}
    await killed.site.is_unharmed(killed.client, killed.recorded)


async def test_a_stream_whose_process_was_killed_goes_on_at_another_without_gap_or_repetition(killed: Killed) -> None:
    turn = killed.heard[0].event["runId"]
    path = f"/sessions/{killed.spoken}/turns/{turn}/events"
    async with listening(killed.client, path, headers={"Last-Event-ID": str(killed.heard[-1].id)}) as stream:
        rest = await stream.rest()
    whole = await replayed(killed.client, killed.spoken, turn)
    check(whole)
    assert killed.heard + rest == whole
    assert "CUSTOM attempt" in kinds(rest)
    assert [*texts(whole).values()] == ["One,", "One, two, three."]
    await killed.site.is_unharmed(killed.client, killed.spoken)
