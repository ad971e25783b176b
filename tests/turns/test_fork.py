"""Sessions that go on from a message of another one: what they have of it, and what they do not."""

import asyncio
from functools import partial
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from segue import tool
from segue.config import Settings
from segue.domain.ids import new_id, utc_now
from tests.support.branches import branches, burn, code, retry, talk, texts
from tests.support.provider import Provider, calls, fails, says
from tests.support.results import listed, loaded
from tests.support.service import Client, running
from tests.support.steering import TIME, after, told
from tests.support.stores import Stores, looking_into
from tests.support.streams import listening
from tests.support.uploads import uploaded

LETTERS = [f"letter-{number}" for number in range(400)]


@tool(effect="read_only")
async def search(query: str) -> dict[str, Any]:
    """Searches letters."""
    return {"query": query, "letters": LETTERS}


@tool(effect="destructive")
async def read_mail(message_id: str) -> dict[str, Any]:
    """Reads a mail, which is marked as read then."""
    return {"message_id": message_id, "text": "hello"}


async def fork(client: Client, session: str, message: str) -> httpx2.Response:
    return await client.http.post(f"/sessions/{session}/fork", json={"message_id": message})


async def forked(client: Client, session: str, message: dict[str, Any]) -> dict[str, Any]:
    response = await fork(client, session, message["id"])
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def page(client: Client, session: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get(f"/sessions/{session}/messages", include="turn"))["items"]
    return items


def ids_in(value: Any) -> set[str]:
    """Every id of ours in a value."""
    match value:
        case dict():
            return set().union(*map(ids_in, value.values()))
        case list():
            return set().union(*map(ids_in, value))
        case str() if value.partition("_")[0] in ("ses", "turn", "msg", "call", "plan") and len(value) > 26:
            return {value}
    return set()


async def test_a_fork_goes_on_from_a_message_with_results_of_its_own_and_ends_alone(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, tools=[search]) as here, running(settings, tools=[search]) as there:
        source = await here.new_session(language="de", time_zone="Europe/Rome", metadata={"color": "red"})
        provider.will(calls(("search", {"query": "a"}), ("search", {"query": "b"})), says("Found."), says("Later."))
        await here.chat(source, "search a and b")
        await here.chat(source, "later")
        before = await page(here, source)
        async with listening(there, "/events") as feed:
            await feed.next()
            made = await forked(here, source, before[4])
            assert (await feed.until("session_created"))[-1].event == {
                "type": "session_created",
                "session_id": made["id"],
                "title": "search a and b",
            }
        assert (made["message_count"], made["language"], made["time_zone"]) == (5, "de", "Europe/Rome")
        assert made["metadata"] == {
            "color": "red",
            "forked_from": {"session_id": source, "message_id": before[4]["id"]},
        }
        copied = await page(there, made["id"])
        assert ids_in(copied).isdisjoint(ids_in(before))
        kept = ("seq", "role", "cut_off", "created_at")
        assert [[each[name] for name in kept] for each in copied] == [
            [each[name] for name in kept] for each in before[:5]
        ]
        asked = [call["id"] for call in copied[1]["tool_calls"]]
        assert set(asked) == {each["content"]["tool_call_id"] for each in copied[2:4]}  # either may have ended first
        assert asked == [each["tool_call_id"] for each in copied[4]["turn"]["tool_calls"]]
        [second, first] = await listed(there, made["id"])
        assert (await loaded(there, made["id"], first))["result"] == {"query": "a", "letters": LETTERS}
        assert first["result_ref"] == {
            "storage_type": "tool_results",
            "session_id": made["id"],
            "tool_call_id": first["tool_call_id"],
        }
        foreign = await here.http.get(f"/sessions/{made['id']}/tool-results/{ids_of_calls(before)[0]}")
        assert code(foreign) == (404, "tool_result_not_found")
        wanted = {"tool_call_id": second["tool_call_id"], "path": "letters[399]"}
        provider.will(calls(("get_tool_result", wanted)), says("Letter 399."))
        answer = await there.chat(made["id"], "what was the last one?")
        assert answer["memory_used"]["tool_results"] == 2
        assert "letter-399" in provider.messages(role="tool")[-1]["content"]
        assert "Later." not in str(provider.messages())
        assert (await here.http.delete(f"/sessions/{source}")).status_code == 204
    async with running(settings, tools=[search]) as again:
        assert (await loaded(again, made["id"], second))["result"]["query"] == "b"
        assert (await again.http.delete(f"/sessions/{made['id']}")).status_code == 204
    async with looking_into(settings) as stores:
        assert set((await stores.rows()).values()) == {0}


async def test_a_fork_keeps_ids_that_only_look_like_ours_and_has_its_own_instead_of_ours(
    settings: Settings, provider: Provider
) -> None:
    theirs = ["msg_" + "z" * length for length in (24, 30)]
    async with running(settings, tools=[read_mail]) as client:
        session = await client.new_session()
        provider.will(calls(*(("read_mail", {"message_id": each}) for each in theirs)), says("Read."))
        await client.chat(session, f"read the mails {' and '.join(theirs)}")
        await client.chat(session, "yes")
        before = await page(client, session)
        made = await forked(client, session, before[-1])
        copied = await page(client, made["id"])
        asked, done = [turn["answer"]["plan"]["steps"] for turn in await client.turns(made["id"])]
        assert [step["args"]["message_id"] for step in (*asked, *done)] == [*theirs, *theirs]
        assert {call["args"]["message_id"] for call in await listed(client, made["id"])} == set(theirs)
        assert [step["args_origin"]["message_id"] for step in done] == [f"message:{copied[0]['id']}"] * 2
        assert ids_in(copied) & ids_in(before) == set(theirs)


def ids_of_calls(messages: list[dict[str, Any]]) -> list[str]:
    return [each["tool_call_id"] for each in messages if each["tool_call_id"]]


@pytest.mark.sweep
async def test_a_fork_counts_its_results_and_drops_the_oldest_as_any_session(
    settings: Settings, provider: Provider
) -> None:
    tight = settings.model_copy(update={"tool_result_session_bytes": 12_000})
    async with running(tight, tools=[search]) as client:
        session = await client.new_session()
        for query in "ab":
            provider.will(calls(("search", {"query": query})), says("Found."))
            await client.chat(session, query)
        made = await forked(client, session, (await client.messages(session))[-1])
        provider.will(calls(("search", {"query": "c"})), says("Found."))
        await client.chat(made["id"], "c")
        [new, _, old] = await listed(client, made["id"])
        gone = await client.http.get(f"/sessions/{made['id']}/tool-results/{old['tool_call_id']}")
        assert code(gone) == (410, "tool_result_expired")
        assert (await loaded(client, made["id"], new))["result"]["query"] == "c"
        for each in await listed(client, session):
            await loaded(client, session, each)


async def test_a_turn_that_is_divided_can_be_run_again_or_left_behind(settings: Settings, provider: Provider) -> None:
    async with running(settings, tools=[search]) as client:
        source = await client.new_session()
        provider.will(calls(("search", {"query": "a"}), ("search", {"query": "b"})), says("Found."))
        await client.chat(source, "search a and b")
        asked, calling, told, _, _ = await client.messages(source)
        alone = await forked(client, source, asked)
        [turn] = await client.turns(alone["id"])
        assert (turn["status"], turn["error"]["code"]) == ("cancelled", "turn_cancelled")
        provider.will(says("Anew."), says("And on."))
        assert (await retry(client, alone["id"], turn["turn_id"])).json()["message"]["content"] == "Anew."
        assert texts(await client.messages(alone["id"])) == ["search a and b", "Anew."]
        left = await forked(client, source, asked)
        await client.chat(left["id"], "never mind")
        sent = provider.requests[-1]["messages"][1:]
        assert [each["role"] for each in sent] == ["user", "assistant", "user"]
        for cut, answered in ((calling, 0), (told, 1)):
            made = await forked(client, source, cut)
            assert len(await listed(client, made["id"])) == answered
            provider.will(says("On we go."))
            await client.chat(made["id"], "and now?")
            made_calls = [call for each in provider.messages() for call in each.get("tool_calls") or ()]
            assert len(made_calls) == len(provider.messages(role="tool")) == answered
            assert "unknown" not in str(provider.messages(role="tool"))


@pytest.mark.sweep
async def test_a_fork_has_what_was_said_to_a_turn_where_the_turn_read_it(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    provider.will(after(client, session, calls(TIME), "in Rome"), says("Noon."))
    await client.chat(session, "what time is it?")
    before = await client.messages(session)
    whole = await client.messages((await forked(client, session, before[-1]))["id"])
    assert [told(whole), [each["metadata"] for each in whole]] == [told(before), [each["metadata"] for each in before]]
    assert len({each["turn_id"] for each in whole}) == 1
    for cut, heard in ((before[2], ["what time is it?"]), (before[3], ["what time is it?", "in Rome"])):
        made = (await forked(client, session, cut))["id"]
        [turn] = await client.turns(made)
        provider.will(says("Noon again."))
        await retry(client, made, turn["turn_id"])
        assert texts(provider.messages(role="user")) == heard
        assert told(await client.messages(made)) == [
            *told(before[: before.index(cut) + 1]),
            ("assistant", "Noon again."),
        ]


async def test_what_left_the_history_what_waits_and_what_was_remembered_stays_behind(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, tools=[burn]) as client, looking_into(settings) as stores:
        session, messages = await talk(client, provider, "one", "two", "three")
        provider.will(says("ZWEI"), calls(("burn", {"item": "desk"})))
        edited = f"/sessions/{session}/messages/{messages[2]['id']}/edit"
        await client.http.post(edited, json={"message": "zwei"})
        waiting = (await client.chat(session, "burn the desk"))["plan"]
        *_, asked = before = await client.messages(session)
        covered = "UPDATE sessions SET summary = 'so far', summary_seq = $1, summary_references = $2"
        await stores.database.execute(covered, before[2]["seq"], '["{\\"tool_call_id\\":\\"call_%s\\"}"]' % ("0" * 26))
        after = (await forked(client, session, before[4]))["id"]
        kept = "SELECT summary, summary_seq, summary_references FROM sessions WHERE id = $1"
        summary, seq, references = await stores.database.fetchrow(kept, after)
        assert (summary, seq) == ("so far", 3)
        assert ("0" * 26) not in references
        assert ("0" * 13) in references
        for cut in before[:3]:
            made = (await forked(client, session, cut))["id"]
            assert tuple(await stores.database.fetchrow(kept, made)) == (None, 0, None)
        whole = await forked(client, session, asked)
        assert (whole["pending_plan"], whole["message_count"]) == (None, 6)
        assert (await client.get(f"/sessions/{whole['id']}/plans"))["items"] == []
        assert await branches(client, whole["id"]) == []
        [*_, answered] = await client.turns(whole["id"])
        told = answered["answer"]["plan"]["steps"][0]
        [origin] = told.pop("args_origin").values()
        assert origin == f"message:{answered['answer']['plan']['origin_message_id']}"
        assert told.items() <= waiting["steps"][0].items()
        assert ids_in(answered).isdisjoint(ids_in(waiting))
        assert [each["seq"] for each in await client.messages(whole["id"])] == [1, 2, 3, 4, 5, 6]
        provider.will(says("Yes to what?"))
        assert (await client.chat(whole["id"], "yes"))["plan"] is None
        assert (await client.get(f"/sessions/{session}/plan"))["id"] == waiting["id"]


async def test_an_approved_call_of_a_fork_names_the_question_and_the_yes_of_the_fork(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, tools=[burn]) as client, looking_into(settings) as stores:
        session = await client.new_session()
        provider.will(calls(("burn", {"item": "desk"})), says("Burnt."))
        await client.chat(session, "burn the desk")
        await client.chat(session, "yes")
        before = await client.messages(session)
        made = (await forked(client, session, before[-1]))["id"]
        copied = await client.messages(made)
        assert ids_in(copied).isdisjoint(ids_in(before))
        assert "approved_by" in str(copied)
        named = "SELECT approval->>'message_id', effect->>'asked_in' FROM tool_calls WHERE session_id = $1"
        asked, said = copied[1]["turn_id"], next(each["id"] for each in copied if each["content"] == "yes")
        assert tuple(await stores.database.fetchrow(named, made)) == (said, asked)
        ran = "SELECT count(*) FROM turns WHERE session_id = $1 AND (run IS NOT NULL OR timeline IS NOT NULL)"
        assert [await stores.database.fetchval(ran, each) for each in (session, made)] == [2, 0]


async def test_what_cannot_be_forked_is_refused_and_nothing_is_made(
    settings: Settings, client: Client, provider: Provider
) -> None:
    session, [first, *_] = await talk(client, provider, "one", "two")
    other, [foreign, _] = await talk(client, provider, "elsewhere")
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("uno")

    provider.will(held)
    await client.http.post(f"/sessions/{session}/messages/{first['id']}/regenerate", json={"background": True})
    await provider.wait_for_requests(4)
    queued = await client.send(session, "queued", background=True)
    await client.http.post(f"/sessions/{session}/turns/{queued.json()['turn_id']}/cancel")
    [running_on, waited] = await client.messages(session)
    for message, problem in (
        (foreign["id"], (404, "message_not_found")),
        (new_id("msg", utc_now()), (404, "message_not_found")),
        ("nonsense", (404, "message_not_found")),
        (first["id"], (409, "not_in_history")),
        (running_on["id"], (409, "turn_in_progress")),
        (waited["id"], (409, "turn_in_progress")),
    ):
        assert code(await fork(client, session, message)) == problem
    assert code(await fork(client, new_id("ses", utc_now()), first["id"])) == (404, "session_not_found")
    assert (await client.http.post(f"/sessions/{session}/fork", json={})).json()["errors"][0]["loc"][-1] == "message_id"
    go.set()
    await client.ended(session, 4)
    async with looking_into(settings) as stores:
        for table in ("tool_states", "turns"):
            async with stores.hidden(table):
                assert (await fork(client, other, foreign["id"])).status_code >= 500
    assert len((await client.get("/sessions"))["items"]) == 2


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("damage", ["tool_calls = '7'", "tool_calls = '[7, {\"id\": 7}]'"])
async def test_a_row_that_cannot_be_read_is_copied_as_it_is(
    settings: Settings, client: Client, provider: Provider, damage: str
) -> None:
    session, [_, said, *_] = await talk(client, provider, "one", "two")
    async with looking_into(settings) as stores:
        await stores.database.execute(f"UPDATE messages SET {damage} WHERE id = $1", said["id"])  # noqa: S608
        await stores.database.execute("UPDATE turns SET request = '7', report = '7' WHERE id = $1", said["turn_id"])
        await stores.database.execute("UPDATE sessions SET metadata = '7', summary_references = '7'")
    *_, last = await client.messages(session)
    made = await forked(client, session, last)
    assert [each.get("unreadable") for each in await client.messages(made["id"])] == [None, True, None, None]


async def test_a_fork_has_files_of_its_own(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    provider.will(says("Seen."), says("Seen again."))
    carried, other = [await uploaded(client, session, each, "notes.txt") for each in (b"tea", b"coffee")]
    answer = await client.chat(session, "Look", attachments=[carried])
    path = f"/sessions/{session}/fork"
    fork = (await client.http.post(path, json={"message_id": answer["message"]["id"]})).json()["id"]
    [file] = (await client.get(f"/sessions/{fork}/attachments"))["items"]
    [said, *_] = await client.messages(fork)
    assert [each["id"] for each in said["metadata"]["attachments"]] == [file["id"]]
    assert file["id"] not in (carried, other)
    await client.http.delete(f"/sessions/{session}")
    assert (await client.http.get(f"/sessions/{fork}/attachments/{file['id']}")).content == b"tea"
    [call] = (await client.get(f"/sessions/{fork}/tool-results"))["items"]
    assert call["args"] == {"attachment_id": file["id"]}
    again = (await client.http.post(f"/sessions/{fork}/messages/{said['id']}/regenerate")).json()
    assert again["tool_calls"][0]["status"] == "succeeded"


async def test_a_fork_takes_no_more_room_for_files_than_their_user_has(settings: Settings, provider: Provider) -> None:
    provider.will(says("Hello."), says("Seen."))
    async with running(settings.model_copy(update={"attachment_user_bytes": 1_000})) as client:
        session = await client.new_session()
        plain = await client.chat(session, "Hello")
        file = await uploaded(client, session, b"x" * 400, "notes.txt")
        answer = await client.chat(session, "Look", attachments=[file])
        path = f"/sessions/{session}/fork"
        refused = await client.http.post(path, json={"message_id": answer["message"]["id"]})
        assert (refused.status_code, refused.json()["code"]) == (413, "attachment_quota_exceeded")
        assert len((await client.get("/sessions"))["items"]) == 1
        assert (await client.http.post(path, json={"message_id": plain["message"]["id"]})).status_code == 201


async def test_operators_see_no_turn_again_because_it_was_copied_or_imported(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(says("Ciao!"), fails(401))
    await client.chat(session, "ciao")
    await client.send(session, "come va?")
    source, failed = await client.turns(session)
    copy = (await forked(client, session, (await client.messages(session))[-1]))["id"]
    provider.will(says("好的"))
    earlier = [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "你好！"}]
    said = {"model": "segue", "messages": [*earlier, {"role": "user", "content": "谢谢"}]}
    assert (await client.http.post("/v1/chat/completions", json=said)).status_code == 200

    async def seen() -> tuple[list[str], int]:
        [user] = (await client.get("/ops/users"))["items"]
        ended = (await client.get("/ops/turns", status="any"))["items"]
        return [each["turn_id"] for each in ended], user["overview"]["turns_today"]

    [newest, *older], today = await seen()
    assert (older, today) == ([failed["turn_id"], source["turn_id"]], 3)
    assert (await client.get("/ops/turns", status="failed", session_id=copy))["items"] == []
    provider.will(says("Bene."))
    again = (await client.turns(copy))[-1]["turn_id"]
    assert (await retry(client, copy, again)).status_code == 200
    ended, today = await seen()
    assert ({*ended}, today) == ({again, newest, *older}, 4)


async def test_a_fork_that_is_asked_for_again_with_its_key_is_the_same_session(
    settings: Settings, provider: Provider, stores: Stores
) -> None:
    provider.will(says("Hello."))
    async with running(settings) as client, looking_into(settings) as others:
        session = await client.new_session()
        await client.chat(session, "hello")
        asked, answer = await client.messages(session)
        again = partial(client.http.post, f"/sessions/{session}/fork", headers={"Idempotency-Key": "k-1"})
        async with stores.database.transaction():
            await stores.database.execute("LOCK TABLE sessions IN EXCLUSIVE MODE")
            coming = [asyncio.create_task(again(json={"message_id": answer["id"]})) for _ in range(2)]
            await others.until_locked("INSERT INTO sessions%", 2)
        both = await asyncio.gather(*coming)
        made = both[0].json()["id"]
        await client.http.patch(f"/sessions/{made}", json={"metadata": {}, "title": "Mine"})
        third = await again(json={"message_id": answer["id"]})
        assert [(each.status_code, each.json()["id"]) for each in (*both, third)] == [(201, made)] * 3
        assert texts(await client.messages(made)) == texts([asked, answer])
        other = await again(json={"message_id": asked["id"]})
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        assert len((await client.get("/sessions"))["items"]) == 2
