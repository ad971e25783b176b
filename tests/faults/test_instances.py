"""Two instances on the same stores: asked at once, stopped and woken, cut off and cancelled from either."""

import asyncio
import os
import signal
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from segue.agent.prompts import in_own_words
from tests.support.patience import PATIENCE_S
from tests.support.provider import Reply, calls, says, streams
from tests.support.service import Client, Process
from tests.support.site import Pair, Site
from tests.support.streams import chatting, check, listening, replayed, texts


@dataclass(slots=True)
class Held:
    """A model that repeats what it heard once it is let go, and knows whether it was asked twice at a time."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    most: int = 0

    async def __call__(self, body: dict[str, Any]) -> Response:
        self.asked.set()
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        self.running -= 1
        return says(f"answer to {in_own_words(body['messages'][-1]['content'])}")


async def post(client: Client, session: str, message: str, *, key: str, **options: Any) -> httpx2.Response:
    headers = {"Idempotency-Key": key}
    return await client.http.post(f"/sessions/{session}/chat", json={"message": message, **options}, headers=headers)


async def cancel(client: Client, session: str, turn_id: str) -> dict[str, Any]:
    response = await client.http.post(f"/sessions/{session}/turns/{turn_id}/cancel")
    assert response.status_code == 200, response.text
    turn: dict[str, Any] = response.json()
    return turn


async def test_ten_requests_with_one_key_are_one_turn_and_one_model_run(
    site: Site, here: Client, there: Client
) -> None:
    held = Held()
    site.provider.will(held)
    session = await here.new_session()
    before = len(site.provider.requests)
    asking = [asyncio.create_task(post((here, there)[n % 2], session, "once", key="k")) for n in range(10)]
    await site.provider.wait_for_requests(before + 1)
    held.go.set()
    answers = [(await answer).json() for answer in asking]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["message"]["content"] == "answer to once"
    assert (await post(there, session, "once", key="k")).json() == answers[0]
    background = await post(there, session, "once", key="k", background=True)
    assert (background.status_code, background.json()["status"]) == (202, "completed")
    assert len(await here.turns(session)) == 1
    assert len(await here.messages(session)) == 2
    assert len(site.provider.requests) == before + 1
    await site.is_unharmed(there, session)


@pytest.mark.sweep
async def test_eight_messages_at_once_are_answered_one_by_one_and_each_sees_those_before(
    site: Site, here: Client, there: Client
) -> None:
    held = Held()
    site.provider.always("of eight", held)
    session = await here.new_session()
    asking = [asyncio.create_task((here, there)[n % 2].chat(session, f"{n} of eight")) for n in range(8)]
    async with site.stores() as stores:
        await stores.until_messages(session, 8)
    held.go.set()
    answers = await asyncio.gather(*asking)
    assert [answer["message"]["content"] for answer in answers] == [f"answer to {n} of eight" for n in range(8)]
    arrived = [row["content"] for row in await here.messages(session) if row["role"] == "user"]
    heard = [
        [in_own_words(m["content"]) for m in asked["messages"] if m["role"] == "user"]
        for asked in site.provider.about("eight")
    ]
    assert heard == [arrived[: n + 1] for n in range(8)]
    assert held.most == 1
    assert [turn["answer"]["message"]["content"] for turn in await there.turns(session)] == [
        f"answer to {message}" for message in arrived
    ]
    await site.is_unharmed(here, session)


async def test_a_stream_cut_after_its_third_word_goes_on_at_the_other_instance(
    site: Site, here: Client, there: Client
) -> None:
    gates = [asyncio.Event() for _ in range(5)]
    site.provider.will(streams("zero", *(piece for n, gate in enumerate(gates, 1) for piece in (gate, f" {n}"))))
    session = await here.new_session()
    async with chatting(here, session, "count") as stream:
        first = await stream.until("TEXT_MESSAGE_CONTENT")
        for gate in gates[:2]:
            gate.set()
            first += await stream.until("TEXT_MESSAGE_CONTENT")
    turn = first[0].event["runId"]
    path = f"/sessions/{session}/turns/{turn}/events"
    async with listening(there, path, headers={"Last-Event-ID": str(first[-1].id)}) as stream:
        gates[2].set()
        second = await stream.until("TEXT_MESSAGE_CONTENT")
        for gate in gates[3:]:
            gate.set()
        second += await stream.rest()
    whole = await replayed(there, session, turn)
    check(whole)
    assert first + second == whole == await replayed(here, session, turn)
    stored = (await here.messages(session))[-1]
    assert texts(whole) == {stored["id"]: "zero 1 2 3 4 5"}
    assert stored["content"] == "zero 1 2 3 4 5"
    await site.is_unharmed(there, session)


@pytest.mark.sweep
@pytest.mark.in_turns(1)
@pytest.mark.parametrize("place", ["asking the model", "in a tool"])
async def test_a_process_that_was_stopped_and_wakes_up_after_its_turn_was_taken_changes_nothing(
    site: Site, pair: Pair, place: str
) -> None:
    held, item = Held(), {"item_id": f"of somebody stopped {place}"}
    first: Reply = held if place == "asking the model" else calls(("mcp_stamp_item", item))
    site.provider.will_to(place, first)
    before = len(site.provider.about(place))
    session = await pair[0][1].new_session()
    await pair[0][1].send(session, f"Stopped {place}", background=True)
    await (held.asked.wait() if first is held else site.shelf.wait_for(f"stamp {item['item_id']}"))
    [turn] = await pair[0][1].turns(session)
    owner, other = await owner_and_other(site, pair, turn["turn_id"])
    owner.log.clear()
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        site.provider.will_to(place, says("Taken over."))
        [turn] = await other.ended(session)
        found = await everything_of(other, session)
        held.go.set()
        site.shelf.go.set()
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    await asyncio.to_thread(owner.wait_for, "turn_lost")
    assert await everything_of(other, session) == found
    assert (turn["status"], turn["attempts"]) == ("completed", 2)
    assert turn["answer"]["message"]["content"] == "Taken over."
    assert len(site.provider.about(place)) == before + 2
    assert site.shelf.effects.count(f"stamp {item['item_id']}") == (place == "in a tool")
    site.shelf.go.clear()
    for _, client in pair:
        await site.is_unharmed(client, session)


async def owner_and_other(site: Site, pair: Pair, turn_id: str) -> tuple[Process, Client]:
    """The process that runs the turn, and a client of the one that does not."""
    async with site.stores() as stores:
        worker = await stores.database.fetchval("SELECT worker FROM turns WHERE id = $1", turn_id)
    [owner] = [process for process, _ in pair if worker.endswith(f":{process.pid}")]
    [other] = [client for process, client in pair if process is not owner]
    return owner, other


async def everything_of(client: Client, session: str) -> list[Any]:
    return [await client.get(f"/sessions/{session}{part}") for part in ("", "/messages", "/turns", "/tool-results")]


@pytest.mark.sweep
async def test_whoever_wins_a_race_between_an_answer_and_a_cancel_everybody_hears_the_same(
    site: Site, here: Client, there: Client
) -> None:
    sessions = [await here.new_session() for _ in range(12)]
    outcomes = await asyncio.gather(*(race(site, here, there, session, n) for n, session in enumerate(sessions)))
    assert set(outcomes) <= {"completed", "cancelled"}
    await site.is_unharmed(there, *sessions)


async def race(site: Site, here: Client, there: Client, session: str, number: int) -> str:
    """A turn that is let go and cancelled from both instances at once, by turns the one or the other first."""
    held = Held()
    site.provider.will_to(session, held)
    waiting = asyncio.create_task(here.send(session, f"race in {session}"))
    async with asyncio.timeout(PATIENCE_S):
        await held.asked.wait()
    [turn] = await there.turns(session)
    if number % 2:
        held.go.set()
    asking = [asyncio.create_task(cancel(client, session, turn["turn_id"])) for client in (here, there)]
    await here.get("/health/live")
    held.go.set()
    told = [await each for each in asking]
    answer = await waiting
    [turn] = await there.turns(session)
    assert told == [turn, turn]
    events = await replayed(there, session, turn["turn_id"])
    stored = [row["role"] for row in await there.messages(session)]
    if turn["status"] == "completed":
        assert answer.json() == turn["answer"] == events[-1].event["result"]
        assert stored == ["user", "assistant"]
    else:
        assert (answer.status_code, answer.json()["code"]) == (409, "turn_cancelled")
        assert events[-1].event["code"] == "turn_cancelled"
        assert stored == ["user"]
    return str(turn["status"])


@pytest.mark.sweep
async def test_of_many_who_interrupt_each_other_the_last_is_answered_and_the_others_hear_it(
    site: Site, here: Client, there: Client
) -> None:
    sessions = [await here.new_session() for _ in range(4)]
    site.provider.always("interrupting", says("This instead."))
    await asyncio.gather(*(interrupted(here, there, session) for session in sessions))
    await site.is_unharmed(here, *sessions)


async def interrupted(here: Client, there: Client, session: str) -> None:
    sent = await asyncio.gather(
        *((here, there)[n % 2].send(session, f"interrupting {n}", on_busy="interrupt") for n in range(8))
    )
    turns = await there.ended(session, 8)
    assert turns[-1]["status"] == "completed"
    by_id = {turn["turn_id"]: turn for turn in turns}
    for response in sent:
        turn = by_id[response.json()["turn_id"]]
        if turn["status"] == "completed":
            assert response.json() == turn["answer"]
        else:
            assert (response.status_code, response.json()["code"]) == (409, "turn_cancelled")


@pytest.mark.sweep
async def test_of_two_edits_of_one_message_at_once_one_is_refused_and_there_is_one_branch(
    site: Site, here: Client, there: Client
) -> None:
    held = Held()
    site.provider.will_to("at first", says("Well."))
    site.provider.will_to("edited", held)
    session = await here.new_session()
    await here.chat(session, "at first")
    asked, _ = await here.messages(session)
    path = f"/sessions/{session}/messages/{asked['id']}/edit"
    texts_of = {here: "edited here", there: "edited there"}
    asking = [asyncio.create_task(client.http.post(path, json={"message": text})) for client, text in texts_of.items()]
    [lost], _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    held.go.set()
    won, refused = sorted([await each for each in asking], key=lambda response: response.status_code)
    assert refused is lost.result()
    assert (won.status_code, refused.status_code, refused.json()["code"]) == (200, 409, "turn_in_progress")
    [left] = (await there.get(f"/sessions/{session}/branches"))["items"]
    assert (left["first_words"], left["message_count"]) == ("at first", 2)
    said = [row["content"] for row in await there.messages(session)]
    assert said[1] == won.json()["message"]["content"] == f"answer to {said[0]}"
    await site.is_unharmed(here, session)
