"""Messages said anew, answers asked for again, turns run again: what leaves the history, and what stays of it."""

import asyncio
from typing import Any

import pytest
from starlette.responses import Response

from segue import tool
from segue.agent.prompts import TEXTS
from segue.config import Settings
from segue.db.engine import Database
from segue.domain.ids import new_id, utc_now
from segue.memory.summary import DueSummary, store_summary
from tests.support.branches import branches, burn, code, edit, regenerate, retry, talk, texts
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.service import Client, running
from tests.support.stores import looking_into
from tests.support.streams import chatting


@tool(effect="write", confirm=False)
async def order(item: str) -> str:
    """Orders an item."""
    return f"ordered {item}"


async def test_an_edited_message_takes_the_place_of_all_that_came_after_which_stays_readable(
    client: Client, provider: Provider
) -> None:
    session, before = await talk(client, provider, "one", "two", "three")
    provider.will(says("ZWEI"), says("DEUX"), says("SINCE"))
    edited = await edit(client, session, before[2]["id"], "zwei", key="k")
    assert edited.json()["message"]["content"] == "ZWEI"
    assert texts(provider.messages()[1:]) == ["one", "ONE", "zwei"]
    history = await client.messages(session)
    assert [(each["content"], each["seq"], each["branch"]) for each in history] == [
        ("one", 1, None),
        ("ONE", 2, None),
        ("zwei", 7, None),
        ("ZWEI", 8, None),
    ]
    assert (await client.get(f"/sessions/{session}"))["message_count"] == 4
    [left] = await branches(client, session)
    turns = await client.turns(session)
    assert [turn["branch"] for turn in turns] == [None, left["id"], left["id"], None]
    assert turns[2]["finished_at"] < left["created_at"] < turns[3]["finished_at"]
    assert (left["from_seq"], left["message_count"], left["first_words"]) == (3, 4, "two")
    listed = await client.get(f"/sessions/{session}/messages", branch=left["id"])
    assert listed["items"] == [each | {"branch": left["id"]} for each in before[2:]]
    assert (await client.get("/sessions", query="three"))["items"] == []
    assert "three" not in (await client.http.get(f"/sessions/{session}/export?format=markdown")).text
    again = await edit(client, session, before[2]["id"], "zwei", key="k")
    assert again.json() == edited.json()
    assert code(await edit(client, session, before[2]["id"], "zwo", key="k")) == (422, "idempotency_key_reused")
    assert code(await edit(client, session, before[2]["id"], "zwo")) == (409, "not_in_history")
    assert code(await edit(client, session, history[3]["id"], "zwo")) == (422, "not_the_users")
    await edit(client, session, history[2]["id"], "deux")
    first, second = await branches(client, session)
    assert (first["first_words"], second) == ("zwei", left)
    page = await client.get(f"/sessions/{session}/branches", limit=1)
    assert await branches(client, session, cursor=page["next_cursor"]) == [left]
    await client.chat(session, "since")
    assert texts(provider.messages()[1:]) == ["one", "ONE", "deux", "DEUX", "since"]
    for unknown in (new_id("br", utc_now()), "nonsense"):
        missing = await client.http.get(f"/sessions/{session}/messages", params={"branch": unknown})
        assert code(missing) == (404, "branch_not_found")


async def test_an_answer_is_had_again_without_what_the_session_had_remembered_of_it(
    settings: Settings, client: Client, provider: Provider
) -> None:
    session, messages = await talk(client, provider, "one", "two", "three")
    async with looking_into(settings) as stores:
        kept = "SELECT summary, summary_seq, summary_until FROM sessions WHERE id = $1"
        await stores.database.execute("UPDATE sessions SET summary = 'so far', summary_seq = 3, summary_until = 5")
        provider.will(says("again"))
        await regenerate(client, session, messages[5]["id"])
        assert tuple(await stores.database.fetchrow(kept, session)) == ("so far", 3, None)
        assert settings.database_url is not None
        database = Database(settings.database_url.get_secret_value())
        async with database.autocommit() as connection:  # of messages that were read before they left
            due = DueSummary("local", session, "so far", after=3, until=5, time_zone="UTC")
            assert not await store_summary(connection, due, "and three", covers=5, references=[])
        await database.close()
        provider.will(says("anew"))
        answer = (await regenerate(client, session, messages[3]["id"])).json()
        assert tuple(await stores.database.fetchrow(kept, session)) == (None, 0, None)
    assert texts(provider.messages()[1:]) == ["one", "ONE", "two"]
    assert texts(await client.messages(session)) == ["one", "ONE", "two", "anew"]
    assert answer["memory_used"]["short_term"] is True
    provider.will(says("from the start"))
    answer = (await regenerate(client, session, messages[0]["id"])).json()
    assert answer["memory_used"]["short_term"] is False
    memory = await client.get(f"/sessions/{session}/memory")
    assert memory["short_term"]["last_assistant_message"] == "from the start"


async def test_effects_in_what_was_taken_back_are_told_and_its_plan_is_cancelled(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, tools=[order, burn]) as client:
        session = await client.new_session()
        provider.will(calls(("order", {"item": "lamp"}), ("current_time", {})), says("Ordered."))
        provider.will(calls(("burn", {"item": "desk"})))
        first = (await client.chat(session, "order a lamp"))["message"]["id"]
        assert (await client.chat(session, "burn the desk"))["plan"]["status"] == "waiting"
        provider.will(says("It is ordered already."), says("Bye."))
        await regenerate(client, session, first)
        assert code(await client.http.get(f"/sessions/{session}/plan")) == (404, "no_open_plan")
        [plan] = (await client.get(f"/sessions/{session}/plans"))["items"]
        assert plan["status"] == "cancelled"
        noted = provider.notes()
        assert TEXTS["taken_back"] in noted
        assert '"item":"lamp"' in noted
        made = (await client.get(f"/sessions/{session}/tool-results"))["items"]
        assert {call["branch"] for call in made} == {branch["id"] for branch in await branches(client, session)}
        assert "current_time" not in noted
        assert "burn" not in noted
        await client.chat(session, "bye")
        [asked, _] = [each for each in provider.requests[-1]["messages"] if each["role"] == "user"]
        assert '"item":"lamp"' in asked["content"]
        note = (await client.messages(session))[0]["metadata"]["note"]
        assert TEXTS["taken_back"] in note


async def test_of_two_edits_at_once_one_is_accepted_and_none_during_a_turn(
    settings: Settings, client: Client, provider: Provider
) -> None:
    session, [asked, _] = await talk(client, provider, "one")
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("UNO")

    provider.will(held)
    async with running(settings) as there:
        both = [edit(each, session, asked["id"], "uno", background=True) for each in (client, there)]
        answers = sorted(await asyncio.gather(*both), key=lambda each: each.status_code)
        assert answers[0].status_code == 202
        assert code(answers[1]) == (409, "turn_in_progress")
        assert answers[1].json()["turn_id"] == answers[0].json()["turn_id"]
        await provider.wait_for_requests(2)
        assert code(await regenerate(there, session, asked["id"])) == (409, "turn_in_progress")
        assert code(await retry(there, session, answers[0].json()["turn_id"])) == (409, "turn_in_progress")
        go.set()
        await client.ended(session, 2)
    assert len(await branches(client, session)) == 1


async def test_an_edit_that_cannot_be_stored_leaves_all_as_it_was(
    settings: Settings, client: Client, provider: Provider
) -> None:
    session, before = await talk(client, provider, "one", "two")
    async with looking_into(settings) as stores, stores.hidden("plans"):
        assert (await edit(client, session, before[0]["id"], "uno")).status_code >= 500
    assert await client.messages(session) == before
    assert await branches(client, session) == []
    assert [turn["status"] for turn in await client.turns(session)] == ["completed"] * 2


async def test_a_failed_turn_is_run_again_and_one_that_was_answered_or_has_left_is_not(
    client: Client, provider: Provider
) -> None:
    session, _ = await talk(client, provider, "one")
    provider.will(fails(500))
    await client.send(session, "two")
    answered, failed = [turn["turn_id"] for turn in await client.turns(session)]
    assert code(await retry(client, session, answered)) == (409, "cannot_retry")
    provider.will(fails(500), says("TWO"))
    assert code(await retry(client, session, failed)) == (502, "model_unavailable")
    got = await retry(client, session, failed, **{"Idempotency-Key": "k"})
    assert (got.json()["turn_id"], got.json()["message"]["content"]) == (failed, "TWO")
    assert (await retry(client, session, failed, **{"Idempotency-Key": "k"})).json() == got.json()
    assert code(await retry(client, session, failed)) == (409, "cannot_retry")
    assert texts(await client.messages(session)) == ["one", "ONE", "two", "TWO"]
    provider.will(fails(500))
    sent: dict[str, Any] = {"json": {"message": "three"}, "headers": {"Idempotency-Key": "t"}}
    first = await client.http.post(f"/sessions/{session}/chat", **sent)
    [*_, asked] = await client.messages(session)
    provider.will(says("DREI"))
    await edit(client, session, asked["id"], "drei")
    assert code(await client.http.post(f"/sessions/{session}/chat", **sent)) == code(first)
    assert code(await retry(client, session, asked["turn_id"])) == (409, "cannot_retry")


@pytest.mark.sweep
async def test_a_stopped_turn_is_run_again_without_what_was_said_until_then(client: Client, provider: Provider) -> None:
    go = asyncio.Event()
    provider.will(streams("There was ", "once ", go, "a king"), says("Once upon a time"))
    session = await client.new_session()
    async with chatting(client, session, "Tell me a story") as stream:
        await stream.until("TEXT_MESSAGE_CONTENT")
        [turn] = await client.turns(session)
        await client.http.post(f"/sessions/{session}/turns/{turn['turn_id']}/cancel")
        await stream.rest()
    go.set()
    [_, said] = await client.messages(session)
    assert said["cut_off"]
    assert (await retry(client, session, turn["turn_id"])).json()["message"]["content"] == "Once upon a time"
    assert texts(provider.messages()[1:]) == ["Tell me a story"]
    assert texts(await client.messages(session)) == ["Tell me a story", "Once upon a time"]
    [left] = await branches(client, session)
    assert (left["from_seq"], left["message_count"]) == (said["seq"], 1)
    assert (await client.get(f"/sessions/{session}"))["message_count"] == 2
