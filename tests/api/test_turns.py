"""Turns as a client handles them: background, busy sessions, idempotency, cancelling, reading. On two instances."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from starlette.responses import Response

from segue.agent.prompts import in_own_words
from segue.config import Settings
from segue.db.engine import Database
from segue.domain.identity import LOCAL_USER
from segue.domain.ids import utc_now
from segue.turns import admission, claims
from segue.turns.chat_request import ChatRequest
from tests.support.logs import until
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.stores import arrived, looking_into
from tests.support.streams import chatting, check, listening, replayed, texts

QUICK_S = 25.0  # less than the client would wait
STREAM = {"Idempotency-Key": "k", "Accept": "text/event-stream"}


@dataclass(slots=True)
class Held:
    """A model that answers when it is let go."""

    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, body: dict[str, Any]) -> Response:
        await self.go.wait()
        return says(f"answer to {in_own_words(body['messages'][-1]['content'])}")


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
async def there(settings: Settings) -> AsyncIterator[Client]:
    """Another instance on the same servers, which has no worker: `client` runs every turn."""
    async with running(settings, takes_turns=False) as served:
        yield served


async def send(
    client: Client, session: str, message: str, *, key: str | None = None, **options: Any
) -> httpx2.Response:
    headers = {"Idempotency-Key": key} if key is not None else {}
    return await client.http.post(f"/sessions/{session}/chat", json={"message": message, **options}, headers=headers)


async def cancel(client: Client, session: str, turn_id: str) -> dict[str, Any]:
    async with asyncio.timeout(QUICK_S):
        response = await client.http.post(f"/sessions/{session}/turns/{turn_id}/cancel")
    assert response.status_code == 200, response.text
    turn: dict[str, Any] = response.json()
    return turn


async def test_a_background_turn_is_accepted_at_once_and_read_later(
    client: Client, provider: Provider, held: Held
) -> None:
    provider.will(held)
    session = await client.new_session()
    accepted = await send(client, session, "hello", background=True)
    turn_id = accepted.json()["turn_id"]
    assert accepted.status_code == 202
    assert accepted.json() == {
        "turn_id": turn_id,
        "status": "running",
        "events_url": f"/sessions/{session}/turns/{turn_id}/events",
    }
    await provider.wait_for_requests(1)
    assert (await client.get(f"/sessions/{session}"))["running_turn_id"] == turn_id
    running_turn = await client.get(f"/sessions/{session}/turns/{turn_id}")
    assert (running_turn["status"], running_turn["attempts"], running_turn["answer"]) == ("running", 1, None)
    held.go.set()
    [turn] = await client.ended(session)
    assert turn["status"] == "completed"
    assert turn["answer"]["message"]["content"] == "answer to hello"
    assert turn["created_at"] <= turn["started_at"] <= turn["finished_at"]
    assert await client.get(f"/sessions/{session}/turns/{turn_id}") == turn


async def test_the_answer_read_later_is_the_answer_that_was_given(client: Client, provider: Provider) -> None:
    provider.will(calls(("current_time", {})), says("noon"), fails(500))
    session = await client.new_session()
    answer = await client.chat(session, "what time is it?")
    failed = (await client.send(session, "and now?")).json()
    first, second = await client.turns(session)
    assert first["answer"] == answer
    assert (second["status"], second["answer"]) == ("failed", None)
    assert {name: second["error"][name] for name in ("code", "status", "title", "detail")} == {
        name: failed[name] for name in ("code", "status", "title", "detail")
    }


async def test_turns_are_listed_newest_first_page_by_page(client: Client, provider: Provider) -> None:
    provider.will(*(says(str(number)) for number in range(5)))
    session = await client.new_session()
    sent = [(await client.chat(session, str(number)))["turn_id"] for number in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await client.get(f"/sessions/{session}/turns", limit=2, **cursor)
        seen += [turn["turn_id"] for turn in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == sent[::-1]


async def test_a_turn_of_another_session_or_of_nobody_is_not_found(client: Client, provider: Provider) -> None:
    provider.will(says("hi"))
    mine, other = await client.new_session(), await client.new_session()
    turn_id = (await client.chat(mine, "hello"))["turn_id"]
    for wrong in (turn_id, "turn_" + "0" * 26, "turn_x", "*"):
        for method, path in (("GET", wrong), ("POST", f"{wrong}/cancel")):
            response = await client.http.request(method, f"/sessions/{other}/turns/{path}")
            assert (response.status_code, response.json()["code"]) == (404, "turn_not_found"), (method, wrong)
    missing = await client.http.get(f"/sessions/ses_{'0' * 26}/turns")
    assert (missing.status_code, missing.json()["code"]) == (404, "session_not_found")


async def test_a_key_that_was_used_for_something_else_is_refused(client: Client, provider: Provider) -> None:
    provider.will(says("one"), says("two"))
    session, other = await client.new_session(), await client.new_session()
    await send(client, session, "one", key="k")
    others: list[dict[str, Any]] = [
        {"message": "something else"},
        {"force_web_search": True},
        {"approves": False},
        {"on_busy": "reject"},
        {"attachments": ["att_1"]},
    ]
    for another in others:
        refused = await send(client, session, **{"message": "one", "key": "k", **another})
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused"), another
    assert (await send(client, other, "two", key="k")).json()["message"]["content"] == "two"


async def test_a_repeated_key_gives_the_stored_failure_too(client: Client, provider: Provider) -> None:
    provider.will(fails(401))
    session = await client.new_session()
    first, second = [await send(client, session, "hello", key="k") for _ in range(2)]
    assert first.status_code == second.status_code == 502
    about = [{k: v for k, v in answer.json().items() if k != "request_id"} for answer in (first, second)]
    assert about[0] == about[1]


async def test_a_turn_that_failed_for_now_is_run_again_by_its_key_once_and_who_heard_it_fail_can_go_on(
    client: Client, there: Client, provider: Provider
) -> None:
    go = asyncio.Event()

    async def answers(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("the first answer")

    provider.will(fails(500), says("meanwhile"), answers, says("after all"))
    session, ask = await client.new_session(), {"message": "one"}
    async with listening(client, f"/sessions/{session}/chat", method="POST", json=ask, headers=STREAM) as stream:
        heard = await stream.rest()
    turn, position = heard[0].event["runId"], heard[-1].id
    assert heard[-1].type == "RUN_ERROR"
    await client.chat(session, "two")
    asking = [asyncio.create_task(send(each, session, "one", key="k")) for each in (client, there) * 2]
    await provider.wait_for_requests(3)
    late = asyncio.create_task(replayed(there, session, turn, after=position))
    go.set()
    told = [(await each).json() for each in asking]
    assert {(each["turn_id"], each["message"]["content"]) for each in told} == {(turn, "the first answer")}
    again = await late
    check(again)
    assert (again[0].type, again[-1].type) == ("RUN_STARTED", "RUN_FINISHED")
    assert again[0].id > position
    assert again == await replayed(client, session, turn)
    assert (await client.http.get(f"/sessions/{session}/turns/{turn}/events?after={again[-1].id}")).status_code == 204
    await client.chat(session, "three")
    assert [row["content"] for row in await client.messages(session) if row["role"] == "user"] == [
        "one",
        "two",
        "three",
    ]
    said = [message["content"] for message in provider.messages()[1:]]
    assert said == ["one", "the first answer", "two", "meanwhile", "three"]


async def test_a_turn_run_again_by_its_key_repeats_no_effect_but_what_may_be_repeated(
    settings: Settings, provider: Provider
) -> None:
    provider.will(calls(*((f"mcp_{tool}", {"item_id": "itm-1"}) for tool in ("look_up", "stamp_item"))), says("done"))
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with (
            running(settings.model_copy(update={"confirm": "never"})) as client,
            looking_into(settings) as stores,
        ):
            await client.connected("shelf")
            session = await client.new_session()
            waiting = asyncio.create_task(send(client, session, "stamp it", key="k"))
            await shelf.wait_for("look itm-1", "stamp itm-1")

            async def out_of_time() -> bool:
                lapsed = "UPDATE turns SET lease_until = now(), started_at = '2001-01-01' WHERE status = 'running'"
                return bool(await stores.database.execute(lapsed) == "UPDATE 0")

            await until(out_of_time)
            assert ((failed := await waiting).status_code, failed.json()["code"]) == (504, "turn_timeout")
            shelf.go.set()
            answer = (await send(client, session, "stamp it", key="k")).json()
    assert answer["message"]["content"] == "done"
    assert {call["tool_name"]: call["status"] for call in answer["tool_calls"]} == {
        "mcp_look_up": "succeeded",
        "mcp_stamp_item": "unknown",
    }
    assert Counter(shelf.effects) == {"look itm-1": 2, "stamp itm-1": 1}


async def test_a_turn_that_failed_for_now_waits_in_line_like_any_other(
    client: Client, provider: Provider, held: Held
) -> None:
    provider.will(fails(500), held)
    session = await client.new_session()
    await send(client, session, "one", key="k", on_busy="reject")
    running_turn = asyncio.create_task(client.chat(session, "two"))
    await provider.wait_for_requests(2)
    refused = await send(client, session, "one", key="k", on_busy="reject")
    assert (refused.status_code, refused.json()["code"]) == (409, "turn_in_progress")
    held.go.set()
    await running_turn
    provider.will(says("at last"))
    assert (await send(client, session, "one", key="k", on_busy="reject")).json()["message"]["content"] == "at last"


@pytest.mark.parametrize("key", ["", "with space", "é", "x" * 201])
async def test_a_key_that_cannot_be_one_is_refused(client: Client, key: str) -> None:
    session = await client.new_session()
    headers = [(b"Idempotency-Key", key.encode())]
    refused = await client.http.post(f"/sessions/{session}/chat", json={"message": "hello"}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


async def test_a_busy_session_rejects_who_does_not_want_to_wait(client: Client, provider: Provider, held: Held) -> None:
    provider.will(held, says("free again"))
    session = await client.new_session()
    first = asyncio.create_task(client.chat(session, "one"))
    await provider.wait_for_requests(1)
    refused = await send(client, session, "two", on_busy="reject")
    assert (refused.status_code, refused.json()["code"]) == (409, "turn_in_progress")
    held.go.set()
    assert refused.json()["turn_id"] == (await first)["turn_id"]
    assert (await client.chat(session, "three", on_busy="reject"))["message"]["content"] == "free again"
    assert [row["content"] for row in await client.messages(session) if row["role"] == "user"] == ["one", "three"]


async def test_ten_wait_behind_one_that_runs_and_no_more(client: Client, provider: Provider, held: Held) -> None:
    provider.will(*[held] * 11)
    session = await client.new_session()
    sent = await asyncio.gather(*(send(client, session, str(n), background=True) for n in range(15)))
    assert Counter(response.status_code for response in sent) == {202: 11, 429: 4}
    refused = next(response for response in sent if response.status_code == 429)
    assert refused.json()["code"] == "too_many_queued"
    assert int(refused.headers["retry-after"]) > 0
    assert (await send(client, session, "alone", background=True)).status_code == 429
    held.go.set()
    assert {turn["status"] for turn in await client.ended(session, 11)} == {"completed"}
    assert len(await client.messages(session)) == 22


async def test_an_interrupting_message_cancels_all_that_is_open_and_is_answered(
    client: Client,
    there: Client,
    provider: Provider,
    held: Held,
    settings: Settings,
) -> None:
    provider.will(held, says("this instead"))
    session = await client.new_session()
    withdrawn = [asyncio.create_task(client.send(session, "one"))]
    await provider.wait_for_requests(1)
    withdrawn.append(asyncio.create_task(client.send(session, "two")))
    await arrived(settings, session, 2)
    async with asyncio.timeout(QUICK_S):
        answer = await there.chat(session, "three", on_busy="interrupt")
    assert answer["message"]["content"] == "this instead"
    assert [(await each).json()["code"] for each in withdrawn] == ["turn_cancelled"] * 2
    assert [turn["status"] for turn in await client.turns(session)] == ["cancelled", "cancelled", "completed"]
    assert [message["content"] for message in provider.messages()[1:]] == ["one", "two", "three"]
    held.go.set()


CANCELS_NOTHING = """
CREATE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'gone'; END $$;
CREATE TRIGGER dies BEFORE UPDATE OF cancel_requested_at ON turns FOR EACH STATEMENT EXECUTE FUNCTION dies();
"""


async def test_an_interrupt_whose_process_died_before_it_cancelled_does_so_when_its_key_is_repeated(
    client: Client, there: Client, provider: Provider, held: Held, settings: Settings
) -> None:
    provider.will(held, says("this instead"))
    session = await client.new_session()
    withdrawn = asyncio.create_task(client.send(session, "one"))
    await provider.wait_for_requests(1)
    async with looking_into(settings) as stores:
        await stores.database.execute(CANCELS_NOTHING)
        try:
            died = await send(there, session, "two", key="k", on_busy="interrupt")
        finally:
            await stores.database.execute("DROP FUNCTION dies CASCADE")
    assert died.status_code == 500
    assert [turn["status"] for turn in await client.turns(session)] == ["running", "queued"]
    async with asyncio.timeout(QUICK_S):
        answer = await send(there, session, "two", key="k", on_busy="interrupt")
    assert answer.json()["message"]["content"] == "this instead"
    assert (await withdrawn).json()["code"] == "turn_cancelled"
    held.go.set()


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_running_turn_is_cancelled_from_any_instance(
    client: Client, there: Client, provider: Provider, held: Held, *, elsewhere: bool
) -> None:
    provider.will(held, says("next"))
    session = await client.new_session()
    waiting = asyncio.create_task(client.send(session, "hello"))
    await provider.wait_for_requests(1)
    [turn] = await client.turns(session)
    cancelled = await cancel(there if elsewhere else client, session, turn["turn_id"])
    assert (cancelled["status"], cancelled["error"]["code"]) == ("cancelled", "turn_cancelled")
    told = await waiting
    assert (told.status_code, told.json()["code"]) == (409, "turn_cancelled")
    assert told.json()["turn_id"] == turn["turn_id"]
    held.go.set()
    assert (await client.chat(session, "and now?"))["message"]["content"] == "next"
    assert await cancel(client, session, turn["turn_id"]) == cancelled
    assert [row["content"] for row in await client.messages(session)] == ["hello", "and now?", "next"]


async def test_a_stopped_answer_keeps_what_was_said_and_the_model_is_told_that_it_was_stopped(
    client: Client, provider: Provider, held: Held
) -> None:
    provider.will(streams("There was ", "once a ", held.go, "king"), says("Another story, then."))
    session = await client.new_session()
    async with chatting(client, session, "Tell me a story") as stream:
        heard = await stream.until("TEXT_MESSAGE_CONTENT")
        while "once" not in "".join(each.event.get("delta", "") for each in heard):
            heard += await stream.until("TEXT_MESSAGE_CONTENT")
        [turn] = await client.turns(session)
        await cancel(client, session, turn["turn_id"])
        heard += await stream.rest()
    held.go.set()
    check(heard)
    [(message_id, said)] = texts(heard).items()
    _, kept = await client.messages(session)
    assert (kept["id"], kept["content"], kept["cut_off"]) == (message_id, said.strip(), True)
    [question, answer] = (await client.get(f"/sessions/{session}/messages", include="turn"))["items"]
    assert "turn" not in question
    assert (answer["turn"]["status"], answer["turn"]["error"]["code"]) == ("cancelled", "turn_cancelled")
    await client.chat(session, "Not that one")
    [_, stopped, _] = provider.messages()[1:]
    assert stopped == {"role": "assistant", "content": f"{said.strip()}\n[The user stopped this answer here.]"}


async def test_a_turn_cancelled_in_a_tool_leaves_the_call_unknown_and_a_history_that_works(
    settings: Settings, provider: Provider
) -> None:
    provider.will(calls(("mcp_get_item", {"item_id": "itm-1"}), ("mcp_look_up", {"item_id": "itm-2"})), says("fine"))
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with running(settings) as client:
            session = await client.new_session()
            results = f"/sessions/{session}/tool-results"
            waiting = asyncio.create_task(client.send(session, "hello"))
            async with looking_into(settings) as stores:
                await stores.until("SELECT count(*) > 0 FROM tool_calls WHERE status = 'succeeded'")
            await shelf.wait_for_effects(2)
            [turn] = await client.turns(session)
            await cancel(client, session, turn["turn_id"])
            shelf.go.set()
            assert (await waiting).json()["code"] == "turn_cancelled"
            answer = await client.chat(session, "and now?")
            ledger = (await client.get(results))["items"]
            stored = await client.messages(session)
            heard = await replayed(client, session, turn["turn_id"])
    assert answer["message"]["content"] == "fine"
    told = {row["tool_call_id"]: row["content"]["status"] for row in stored if row["role"] == "tool"}
    assert told == {call["tool_call_id"]: call["status"] for call in ledger}
    check(heard)
    ended = [each.event for each in heard if each.type == "TOOL_CALL_RESULT"]
    assert {event["toolCallId"]: json.loads(event["content"])["status"] for event in ended} == told
    assert {call["tool_name"]: call["status"] for call in ledger} == {
        "mcp_get_item": "succeeded",
        "mcp_look_up": "unknown",
    }
    assert [message["role"] for message in provider.messages()[1:]] == ["user", "assistant", "tool", "tool", "user"]


async def test_a_queued_turn_is_cancelled_without_having_run(
    client: Client, provider: Provider, held: Held, settings: Settings
) -> None:
    provider.will(held)
    session = await client.new_session()
    first = asyncio.create_task(client.chat(session, "one"))
    await provider.wait_for_requests(1)
    second = asyncio.create_task(client.send(session, "two"))
    await arrived(settings, session, 2)
    turn = (await client.turns(session))[1]
    cancelled = await cancel(client, session, turn["turn_id"])
    assert (cancelled["status"], cancelled["attempts"]) == ("cancelled", 0)
    assert (await second).json()["code"] == "turn_cancelled"
    held.go.set()
    assert (await first)["message"]["content"] == "answer to one"


@pytest.mark.sweep
async def test_a_turn_whose_owner_is_gone_is_cancelled_all_the_same(client: Client, settings: Settings) -> None:
    assert settings.database_url is not None
    session = await client.new_session()
    database = Database(settings.database_url.get_secret_value())
    async with database.autocommit() as connection:
        await admission.begin_turn(connection, LOCAL_USER, session, ChatRequest("hello?"), now=utc_now(), room=9)
        claim = await claims.claim_next(connection, session, worker="gone", lease_s=600)
    await database.close()
    assert claim is not None
    assert (await cancel(client, session, claim.key.turn_id))["status"] == "cancelled"


@pytest.mark.sweep  # test_sessions.py deletes one while its turns run
async def test_a_session_deleted_on_another_instance_stops_what_runs_in_it(
    client: Client, there: Client, provider: Provider, held: Held
) -> None:
    provider.will(held)
    session = await client.new_session()
    waiting = asyncio.create_task(client.send(session, "hello"))
    await provider.wait_for_requests(1)
    assert (await there.http.delete(f"/sessions/{session}")).status_code == 204
    async with asyncio.timeout(QUICK_S):
        told = await waiting
    assert (told.status_code, told.json()["code"]) == (404, "session_not_found")
    held.go.set()


async def test_without_redis_an_instance_without_a_worker_runs_its_turns_itself(
    settings: Settings, provider: Provider
) -> None:
    provider.will(says("by myself"))
    away = settings.model_copy(update={"redis_url": SecretStr("redis://127.0.0.1:1/0")})
    async with running(away, takes_turns=False) as client:
        async with asyncio.timeout(QUICK_S):
            answer = await client.chat(await client.new_session(), "hello")
    assert answer["message"]["content"] == "by myself"


async def test_an_instance_without_a_worker_leaves_its_turns_to_one_that_has(
    client: Client, there: Client, provider: Provider
) -> None:
    provider.will(says("from there"))
    assert (await there.get("/health/ready"))["worker"] == "off"
    assert (await there.chat(await there.new_session(), "hello"))["message"]["content"] == "from there"
    assert (await client.get("/health/ready"))["worker"] == "ok"
