"""kill -9 in the middle of an edit, a fork, a decision that grants and a title: before a transaction ends or after."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from tests.support.logs import until
from tests.support.plans import planned
from tests.support.provider import calls, says
from tests.support.service import Client
from tests.support.site import Site
from tests.support.stores import Stores

DELETE = "mcp_delete_item"
COMMITTED = b"COMMIT\0"
SMALL = "SELECT sum(calls) FROM usage WHERE session_id = $1 AND model = 'small'"
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Killed:
    """Sessions by the word they are known by, and the messages that each had before; a client of the next process."""

    site: Site
    client: Client
    sessions: dict[str, str]
    before: dict[str, Rows]

    async def edit(self, word: str) -> httpx2.Response:
        return await edit(self.client, self.sessions[word], self.before[word][0], word)

    async def branches(self, word: str) -> Rows:
        items: Rows = (await self.client.get(f"/sessions/{self.sessions[word]}/branches"))["items"]
        return items

    async def forks(self, word: str) -> list[str]:
        listed = (await self.client.get("/sessions", limit=200))["items"]
        origins = ((each["id"], each["metadata"].get("forked_from", {})) for each in listed)
        return [fork for fork, origin in origins if origin.get("session_id") == self.sessions[word]]

    async def are_unharmed(self, word: str) -> None:
        await self.site.is_unharmed(self.client, self.sessions[word])


async def edit(client: Client, session: str, message: dict[str, Any], word: str) -> httpx2.Response:
    path = f"/sessions/{session}/messages/{message['id']}/edit"
    return await client.http.post(path, json={"message": f"Say {word} anew"}, headers={"Idempotency-Key": word})


async def fork(client: Client, session: str, message: dict[str, Any]) -> httpx2.Response:
    return await client.http.post(f"/sessions/{session}/fork", json={"message_id": message["id"]})


async def talked(site: Site, client: Client) -> dict[str, str]:
    """Sessions with one turn each: that of `edited` has deleted something, that of `granted` asks whether to."""
    delete = {"item_id": "granted"}
    step = {"id": 1, "description": "Delete it", "tool": DELETE, "args": delete, "requires_confirmation": True}
    after = {"id": 2, "description": "Look", "tool": "mcp_find_items", "args": {"query": "granted"}}
    site.provider.will_to("edited", calls((DELETE, {"item_id": "edited"})), says("Deleted."))
    site.provider.will_to("granted", planned([step, after]))
    for word in ("kept", "whole", "copied", "titled"):
        site.provider.will_to(word, says("Well."))
    asked = {word: f"What about {word}?" for word in ("kept", "whole", "copied")}
    asked |= {
        "edited": "Delete edited",
        "granted": "Delete granted, then look, and then say so",
        "titled": "titled",
    }
    sessions = {word: await client.new_session(title=None if word == "titled" else word) for word in asked}
    await asyncio.gather(*(client.chat(sessions[word], message) for word, message in asked.items()))
    return sessions


@pytest.fixture(scope="module")
async def killed(site: Site) -> AsyncIterator[Killed]:
    assert not site.processes, "another process would take the turns over"
    never = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    site.provider.title = silent
    site.provider.will_to("edited anew", silent)
    async with site.stores() as stores:
        async with site.serving(LLM_SMALL_MODEL="small") as (process, client):
            sessions = await talked(site, client)
            before = {word: await client.messages(session) for word, session in sessions.items()}
            await until(lambda: asked_for_a_title(site))
            cut_off = [asyncio.create_task(edit(client, sessions["edited"], before["edited"][0], "edited"))]
            await site.provider.wait_for_request_about("edited anew")
            lost = site.postgres.lose(COMMITTED, after=before["copied"][1]["id"].encode())
            cut_off.append(asyncio.create_task(fork(client, sessions["copied"], before["copied"][1])))
            await lost.wait()
            async with site.stores() as locking, locking.database.transaction():
                cut_off += await waiting(client, sessions, before, locking, stores)
                site.kill(process)
                for lost_one in await asyncio.gather(*cut_off, return_exceptions=True):
                    in_time = isinstance(lost_one, httpx2.TransportError)  # else Postgres did not answer for so long
                    assert in_time or (isinstance(lost_one, httpx2.Response) and lost_one.status_code == 503), lost_one
        await stores.database.execute("UPDATE sessions SET title_due_at = now() WHERE id = $1", sessions["titled"])
        site.provider.title = says("A title")
        site.provider.will_to("edited anew", says("Said anew."))
        site.provider.will_to("granted", says("Gone."))
        async with site.serving(LLM_SMALL_MODEL="small") as (_, client):
            for session in sessions.values():
                await client.ended(session)
            never.set()
            yield Killed(site, client, sessions, before)
    site.provider.title = None


async def asked_for_a_title(site: Site) -> bool:
    return bool(site.provider.titles)


async def waiting(
    client: Client, sessions: dict[str, str], before: dict[str, Rows], locking: Stores, stores: Stores
) -> list[asyncio.Task[httpx2.Response]]:
    """An edit that waits for its session, a fork in the middle of its copies, and a run that was decided on and waits
    to note the call it is about to make.
    """

    async def waits(statement: str) -> None:
        await stores.until_locked(statement)

    await locking.database.execute("SELECT FROM sessions WHERE id = $1 FOR UPDATE", sessions["kept"])
    await locking.database.execute("LOCK TABLE tool_calls IN SHARE MODE")
    cut_off = [asyncio.create_task(edit(client, sessions["kept"], before["kept"][0], "kept"))]
    await waits("%FOR NO KEY UPDATE%")
    cut_off.append(asyncio.create_task(fork(client, sessions["whole"], before["whole"][1])))
    await waits("INSERT INTO tool_calls%")
    version = (await client.get(f"/sessions/{sessions['granted']}/plan"))["version"]
    decision = {"session_id": sessions["granted"], "version": version, "decision": "confirm", "remember": "session"}
    decided = await client.http.post("/approvals/decisions", json={"items": [decision]})
    assert decided.status_code == 202, decided.text
    await waits("WITH fenced AS%")
    return cut_off


@pytest.mark.sweep
async def test_an_edit_killed_before_its_transaction_ends_changes_nothing_and_can_be_made_again(killed: Killed) -> None:
    assert await killed.client.messages(killed.sessions["kept"]) == killed.before["kept"]
    assert await killed.branches("kept") == []
    killed.site.provider.will_to("kept anew", says("Anew."))
    assert (await killed.edit("kept")).json()["message"]["content"] == "Anew."
    [left] = await killed.branches("kept")
    assert left["message_count"] == 2
    await killed.are_unharmed("kept")


@pytest.mark.sweep
async def test_an_edit_killed_after_that_goes_on_once_beside_one_branch_and_what_tools_had_done(killed: Killed) -> None:
    session = killed.sessions["edited"]
    [left] = await killed.branches("edited")
    gone, turn = await killed.client.turns(session)
    assert (gone["branch"], turn["branch"], turn["attempts"]) == (left["id"], None, 2)
    rows = await killed.client.messages(session)
    assert [row["content"] for row in rows] == ["Say edited anew", "Said anew."]
    listed = await killed.client.get(f"/sessions/{session}/messages", branch=left["id"])
    assert listed["items"] == [row | {"branch": left["id"]} for row in killed.before["edited"]]
    [call] = (await killed.client.get(f"/sessions/{session}/tool-results"))["items"]
    assert (call["tool_name"], call["status"]) == (DELETE, "succeeded")
    assert killed.site.shelf.effects.count("delete edited") == 1
    first, again = killed.site.provider.about("edited anew")
    assert first == again
    assert DELETE in str(first["messages"])
    assert (await killed.edit("edited")).json() == turn["answer"]
    await killed.are_unharmed("edited")


@pytest.mark.sweep
async def test_a_fork_killed_among_its_copies_is_not_made_and_one_killed_after_that_is_there_once(
    killed: Killed,
) -> None:
    assert await killed.forks("whole") == []
    made = await fork(killed.client, killed.sessions["whole"], killed.before["whole"][1])
    assert await killed.forks("whole") == [made.json()["id"]]
    [there] = await killed.forks("copied")
    kept = [(row["seq"], row["content"]) for row in killed.before["copied"]]
    assert [(row["seq"], row["content"]) for row in await killed.client.messages(there)] == kept
    await killed.site.is_unharmed(killed.client, made.json()["id"], there)
    await killed.are_unharmed("whole")


@pytest.mark.sweep
async def test_a_decision_killed_before_its_call_is_carried_out_once_and_its_grant_is_there(killed: Killed) -> None:
    session = killed.sessions["granted"]
    _, turn = await killed.client.turns(session)
    assert (turn["status"], turn["attempts"], turn["answer"]["plan"]["status"]) == ("completed", 2, "completed")
    assert killed.site.shelf.effects.count("delete granted") == 1
    [grant] = (await killed.client.get(f"/sessions/{session}/grants"))["items"]
    assert (grant["tool"], grant["in_force"]) == (DELETE, True)
    await killed.are_unharmed("granted")


async def test_a_title_killed_while_the_model_thinks_comes_once_and_is_paid_once(killed: Killed) -> None:
    session = killed.sessions["titled"]
    async with killed.site.stores() as stores:
        assert await stores.until("SELECT title FROM sessions WHERE id = $1 AND title_due_at IS NULL", session)
        assert await stores.until(SMALL, session) == 1
    assert (await killed.client.get(f"/sessions/{session}"))["title"] == "A title"
    assert len(killed.site.provider.titles) == 2
    await killed.are_unharmed("titled")
