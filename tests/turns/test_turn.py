"""A turn from the outside: what is stored, what the model is sent, what comes back."""

import asyncio
import gc
from typing import Any

import asyncpg
from pydantic import SecretStr
from starlette.responses import Response

from segue.config import Settings
from segue.turns.runner import TurnRun
from tests.support.logs import awaiting
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.stores import arrived, plain


async def test_four_messages_send_the_model_one_to_four_user_messages_and_store_eight_rows(
    client: Client, provider: Provider
) -> None:
    provider.will(*(says(f"answer {number}") for number in range(1, 5)))
    session = await client.new_session()
    for number in range(1, 5):
        await client.chat(session, f"message {number}")
    sent = [len([m for m in request["messages"] if m["role"] == "user"]) for request in provider.requests]
    assert sent == [1, 2, 3, 4]
    rows = await client.messages(session)
    assert [row["seq"] for row in rows] == list(range(1, 9))
    assert [row["content"] for row in rows] == [
        text for number in range(1, 5) for text in (f"message {number}", f"answer {number}")
    ]


async def test_a_failed_turn_is_a_problem_that_names_the_turn_and_the_session_goes_on(
    client: Client, provider: Provider
) -> None:
    provider.will(fails(500), says("back again"))
    session = await client.new_session()
    failed = await client.send(session, "hello?")
    assert failed.status_code == 502
    assert failed.headers["content-type"] == "application/problem+json"
    problem = failed.json()
    assert problem["code"] == "model_unavailable"
    assert problem["turn_id"].startswith("turn_")
    answer = await client.chat(session, "and now?")
    assert answer["message"]["content"] == "back again"
    assert [m["content"] for m in provider.messages(role="user")] == ["hello?", "and now?"]


async def test_a_turn_whose_time_is_up_is_no_fault_of_the_service_in_its_log(
    settings: Settings, provider: Provider
) -> None:
    go = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("too late")

    provider.always("hello?", silent)
    async with running(settings.model_copy(update={"turn_timeout_s": 1})) as client, awaiting("turn_raised") as raised:
        failed = await client.send(await client.new_session(), "hello?")
        assert (failed.status_code, failed.json()["code"]) == (504, "turn_timeout")
        assert not raised.is_set()
        go.set()


async def test_an_error_that_quotes_what_postgres_cannot_hold_ends_its_turn_and_the_worker_goes_on(
    client: Client, provider: Provider
) -> None:
    provider.will(*[says('{"a\\u0000b": "x"}')] * 2, says("back again"))
    session, numbers = await client.new_session(), {"type": "object", "additionalProperties": {"type": "integer"}}
    failed = await client.send(session, "count", output_schema=numbers)
    assert (failed.status_code, failed.json()["code"]) == (502, "output_invalid")
    [turn] = await client.turns(session)
    assert '"x" is not of type "integer"' in turn["error"]["detail"]
    assert (await client.get("/health/ready"))["worker"] == "ok"
    assert (await client.chat(session, "and now?"))["message"]["content"] == "back again"


async def test_an_end_that_postgres_refuses_is_an_internal_error_and_no_other_end_waits_for_it(
    settings: Settings, own_database_url: str, provider: Provider
) -> None:
    admin = await asyncpg.connect(plain(own_database_url))
    provider.will(fails(500), fails(500))
    async with running(settings.model_copy(update={"database_url": SecretStr(own_database_url)})) as client:
        await admin.execute("ALTER TABLE turns ADD CHECK (error ->> 'code' <> 'model_unavailable')")
        session = await client.new_session()
        failed = [(await client.send(session, "hello?")).json()["code"] for _ in range(2)]
        assert [turn["error"]["code"] for turn in await client.turns(session)] == failed
        assert (await client.get("/health/ready"))["worker"] == "ok"
    assert failed[0] == "internal_error"
    await admin.close()


async def test_messages_sent_at_once_are_answered_one_after_the_other_in_order_of_arrival(
    client: Client,
    provider: Provider,
    settings: Settings,
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        entered.set()
        await release.wait()
        return says("first")

    provider.will(held, says("second"))
    session = await client.new_session()
    first = asyncio.create_task(client.chat(session, "one"))
    await entered.wait()
    second = asyncio.create_task(client.chat(session, "two"))
    await arrived(settings, session, 2)
    assert len(provider.requests) == 1
    release.set()
    assert (await first)["message"]["content"] == "first"
    assert (await second)["message"]["content"] == "second"
    assert [m["content"] for m in provider.messages(1)[1:]] == ["one", "first", "two"]


async def test_what_an_ended_turn_has_read_is_freed_without_the_garbage_collector(
    client: Client, provider: Provider
) -> None:
    """Of several turns, since a connection that is opened in a turn keeps the context of that one."""
    provider.will(*(says("Hello.") for _ in range(4)))
    session = await client.new_session()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(4):
            await client.chat(session, "Hello.")
        gc.collect()
        runs = [each for each in gc.garbage if type(each) is TurnRun]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not [run for run in runs if run.claim.key.session_id == session]


async def test_the_answer_tells_what_the_turn_ran(client: Client, provider: Provider) -> None:
    provider.will(calls(("current_time", {"timezone": "Europe/Rome"})), says("It is noon."))
    session = await client.new_session()
    answer = await client.chat(session, "What time is it in Rome?")
    [call] = answer["tool_calls"]
    assert call["tool_name"] == "current_time"
    assert call["status"] == "succeeded"
    assert answer["usage"] == {**answer["usage"], "llm_calls": 2, "input_tokens": 22, "output_tokens": 14}
    assert answer["model"] == "scripted"
