"""Under a lease that does not end within a test: a process that dies is replaced at once, and no other is."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from starlette.responses import Response

from tests.support.left_turns import left_running
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.provider import says
from tests.support.service import Client, Process
from tests.support.site import Pair, Site
from tests.support.stores import Stores

UNLOCKED = """SELECT count(*) FROM turns WHERE status = 'running' AND NOT EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended(turns.worker, 1))"""


@pytest.fixture(scope="module")
def site(site: Site) -> Site:
    """Where leases are long."""
    return replace(site, environment={**site.environment, "TURN_LEASE_S": "600", "LLM_TIMEOUT_S": "250"})


@dataclass(slots=True)
class Thinking:
    """A model that answers once it is let go."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def __call__(self, _: Mapping[str, Any]) -> Response:
        self.asked.put_nowait(None)
        await self.go.wait()
        return says("A long thought.")

    async def is_asked(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.asked.get()


async def thinking(site: Site, client: Client, about: str) -> tuple[str, Thinking]:
    """A turn that the model thinks about."""
    thought = Thinking()
    site.provider.will_to(about, thought)
    session = await client.new_session()
    await client.send(session, about, background=True)
    await thought.is_asked()
    return session, thought


async def owner(site: Site, stores: Stores, session: str) -> Process:
    """The process that runs the session's turn, once each turn has the name of one that holds its lock."""

    async def are_there() -> bool:
        return not await stores.database.fetchval(UNLOCKED)

    await until(are_there)
    worker = await stores.database.fetchval("SELECT worker FROM turns WHERE session_id = $1", session)
    return next(each for each in site.processes if worker.endswith(f":{each.pid}"))


async def test_a_turn_leaves_a_process_that_dies_and_none_that_is_stopped_or_cut_off_by_a_restart_of_postgres(
    site: Site, pair: Pair
) -> None:
    clients = dict(pair)
    asked = [(client, f"Keep {number}") for number in range(2) for client in clients.values()]
    sessions, thoughts = zip(*[await thinking(site, *each) for each in asked], strict=True)
    async with site.stores() as stores:
        first = await owner(site, stores, sessions[0])
        [other] = [process for process in site.processes if process is not first]
        os.kill(first.pid, signal.SIGSTOP)
        try:
            await one_left_behind_is_taken_over(site, clients[other])
        finally:
            os.kill(first.pid, signal.SIGCONT)
    async with site.down("postgres"):
        pass
    async with site.stores() as stores:
        assert await owner(site, stores, sessions[0]) is first
    for session, thought in zip(sessions[1:], thoughts[1:], strict=True):
        thought.go.set()
        [turn] = await clients[other].ended(session)
        assert (turn["status"], turn["attempts"]) == ("completed", 1)
    for _ in range(2):
        site.provider.will_to("Keep 0", thoughts[0])
    site.kill(first)
    await thoughts[0].is_asked()
    site.kill(other)
    async with site.serving() as (_, client):
        await thoughts[0].is_asked()
        thoughts[0].go.set()
        [turn] = await client.ended(sessions[0])
        assert (turn["status"], turn["attempts"]) == ("completed", 3)
        await site.is_unharmed(client, *sessions)


async def one_left_behind_is_taken_over(site: Site, client: Client) -> None:
    """Shows that the process looks for those that are gone, and has by now looked at all turns."""
    site.provider.will_to("gone/1:1", says("Taken over."))
    left = await left_running(site.settings, client, "gone/1:1")
    [turn] = await client.ended(left["gone/1:1"])
    assert (turn["status"], turn["attempts"]) == ("completed", 2)
