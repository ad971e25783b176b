"""The session behind an id that a client made: one of the caller's, whoever else uses the id; and what in it is a new
request, and what one that comes again.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from segue.api.chat import ClientRequest
from segue.api.deps import Services
from segue.api.doors.every_door import MAX_CLIENT_ID_CHARS, session_of_client
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.ids import new_id, utc_now
from segue.main import create_app
from segue.memory import session_store
from segue.turns.chat_request import Origin
from tests.support.plans import Frozen, deletion, planned
from tests.support.provider import Provider, fails, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    app = create_app(settings)
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        yield state["services"]


async def test_a_clients_id_is_one_session_of_each_caller_also_if_two_requests_come_at_once(services: Services) -> None:
    both = await asyncio.gather(*(session_of_client(asked_by(services, "ada"), "chat 1") for _ in range(2)))
    again = await session_of_client(asked_by(services, "ada"), "chat 1")
    assert {again.id} == {session.id for session in both}
    assert await list_of(services, "ada") == [again.id]
    assert (await session_of_client(asked_by(services, "bob"), "chat 1")).id != again.id
    assert (await session_of_client(asked_by(services, "ada"), again.id)).id == again.id
    await services.turns.delete_session("ada", again.id)
    assert (await session_of_client(asked_by(services, "ada"), "chat 1")).id != again.id


def asked_by(services: Services, caller: str) -> ClientRequest:
    return ClientRequest(caller, services, Request({"type": "http", "headers": []}), Origin())


async def list_of(services: Services, owner: str) -> list[str]:
    async with services.database.read_only() as connection:
        return [each.id for each in await session_store.list_sessions(connection, owner, before=None, limit=9)]


async def test_an_id_of_ours_that_is_not_the_callers_is_not_found_and_a_bad_one_of_a_client_is_refused(
    services: Services,
) -> None:
    theirs = (await session_of_client(asked_by(services, "bob"), "chat 1")).id
    bad = ["", "x" * (MAX_CLIENT_ID_CHARS + 1), "a\nb", "\x00", "\ud800"]
    codes = {}
    for client_id in (theirs, new_id("ses", utc_now()), "ses_1", *bad):
        with pytest.raises(AppError) as refused:
            await session_of_client(asked_by(services, "ada"), client_id)
        codes[client_id] = refused.value.code
    assert codes == dict.fromkeys(codes.keys() - bad, "session_not_found") | dict.fromkeys(bad, "invalid_request")
    with pytest.raises(AppError, match="no agent"):
        await session_of_client(asked_by(services, "ada"), "chat 2", agent="nobody")
    assert await list_of(services, "ada") == []


NEW, AGAIN = {"x-stainless-retry-count": "0"}, {"x-stainless-retry-count": "2"}
# What clients send that name their conversation: some send the same bytes for the same words.
DOORS: dict[str, Callable[[str, str, int], tuple[str, dict[str, Any]]]] = {
    "chat completions": lambda chat, words, _: (
        "/v1/chat/completions",
        {"model": "segue", "conversation": chat, "messages": [{"role": "user", "content": words}]},
    ),
    "streamed": lambda chat, words, _: (
        "/v1/chat/completions",
        {"model": "segue", "conversation": chat, "messages": [{"role": "user", "content": words}], "stream": True},
    ),
    "responses": lambda chat, words, _: (
        "/v1/responses",
        {"model": "segue", "conversation": chat, "input": words},
    ),
    "AG-UI": lambda chat, words, number: (
        "/agui",
        {
            "threadId": chat,
            "runId": f"run {number}",
            "messages": [{"id": f"m{number}", "role": "user", "content": words}],
        },
    ),
    "useChat": lambda chat, words, number: (
        "/api/chat",
        {
            "id": chat,
            "messages": [{"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": words}]}],
        },
    ),
}


@pytest.mark.sweep
async def test_a_yes_said_three_times_approves_three_steps_at_every_door(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    ask_for = "Delete the first item, then delete the second one, then the third"
    async with running(settings) as client:
        await client.connected("shelf")
        provider.will(planned([deletion(number) for number in (1, 2, 3)]))  # later it is the same plan
        for door, headers in (*((door, {}) for door in DOORS), ("streamed", NEW)):
            shelf.effects.clear()
            provider.will(says("All three are gone."))
            for number, words in enumerate((ask_for, "yes", "yes", "yes")):
                path, body = DOORS[door](f"{door} {headers}", words, number)
                answer = await client.http.post(path, json=body, headers=headers)
                assert answer.status_code == 200, answer.text
            assert shelf.effects == ["delete itm-1", "delete itm-2", "delete itm-3"], (door, headers)


@pytest.mark.sweep
async def test_an_idempotency_key_is_one_turn_at_every_door(client: Client, provider: Provider) -> None:
    for door, sent in DOORS.items():
        provider.will(says("Noon"), says("Midnight"))

        async def ask(words: str, number: int, key: str, door: str = door, sent: Any = sent) -> httpx2.Response:
            path, body = sent(door, words, number)
            return await client.http.post(path, json=body, headers={"Idempotency-Key": key, **NEW})

        answers = [await ask("What time is it?", number, key) for number, key in enumerate(("a", "a", "b"))]
        said = [("Noon" in each.text, "Midnight" in each.text) for each in answers]
        assert said == [(True, False), (True, False), (False, True)], door
        reused = await ask("And now?", 3, "a")
        assert reused.status_code == 422, door
        found = reused.json()
        assert found.get("error", found)["code"] == "idempotency_key_reused"


@pytest.mark.sweep
async def test_a_key_of_a_conversation_that_has_no_name_is_one_turn_too(client: Client, provider: Provider) -> None:
    provider.will(says("Noon."), says("One."))
    said = {"model": "segue", "messages": [{"role": "user", "content": "What time is it?"}]}
    sessions = []
    for key in ("a", "a", "b"):
        answer = await client.http.post("/v1/chat/completions", json=said, headers={"Idempotency-Key": key, **NEW})
        sessions.append(answer.headers["x-session-id"])
    assert [sessions.index(each) for each in sessions] == [0, 0, 2]


ASKED = DOORS["chat completions"]("chat", "What time is it?", 1)


async def leave(client: Client, provider: Provider, *, told: asyncio.Event) -> None:
    """A client asks, and is gone before the answer, which the model gives once it is `told`."""

    async def late(_: object) -> Response:
        await told.wait()
        return says("One.")

    provider.will(late)
    asking = asyncio.create_task(client.http.post(ASKED[0], json=ASKED[1]))
    await provider.wait_for_requests(1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.sweep
async def test_what_a_client_says_of_its_retries_counts_and_else_whether_it_has_heard_the_answer(
    settings: Settings, provider: Provider
) -> None:
    clock, told = Frozen(), asyncio.Event()
    path, body = ASKED

    async def ask(headers: dict[str, str] | None = None) -> str:
        answer = await client.http.post(path, json=body, headers=headers)
        return str(answer.json().get("choices", [{}])[0].get("message", answer.json())["content"])

    async with running(settings, clock=clock) as client:
        await leave(client, provider, told=told)
        provider.will(says("Two."), says("Three."), says("Four."), says("Five."))
        first = asyncio.create_task(ask())  # it runs: the same turn
        told.set()
        assert await first == "One."
        # Each was heard. The API of Open WebUI itself sends the header of a message without an id.
        assert [await ask({"X-OpenWebUI-Message-Id": ""}), await ask()] == ["Two.", "Three."]
        assert [await ask(AGAIN), await ask(NEW)] == ["Three.", "Four."]
        clock.now += timedelta(minutes=2)
        assert await ask() == "Five."


async def test_an_answer_that_no_client_has_read_is_given_to_the_next_that_asks_for_a_while(
    settings: Settings, provider: Provider
) -> None:
    clock, told = Frozen(), asyncio.Event()
    path, body = ASKED
    async with running(settings, clock=clock) as client:
        await leave(client, provider, told=told)
        provider.will(says("Two."))
        told.set()
        [session] = (await client.get("/sessions"))["items"]
        await client.ended(session["id"])
        clock.now += timedelta(seconds=50)
        assert "One." in (await client.http.post(path, json=body)).text
        clock.now += timedelta(minutes=1)
        assert "Two." in (await client.http.post(path, json=body)).text


async def test_a_turn_that_failed_for_now_is_run_again_by_the_same_request(client: Client, provider: Provider) -> None:
    path, body = ASKED
    provider.will(fails(500), says("Noon."))
    assert (await client.http.post(path, json=body)).status_code == 502
    assert "Noon." in (await client.http.post(path, json=body)).text
    [session] = (await client.get("/sessions"))["items"]
    assert [turn["status"] for turn in await client.turns(session["id"])] == ["completed"]
