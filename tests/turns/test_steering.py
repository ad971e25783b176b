"""Messages to a turn that runs: read once, at its next boundary; else ordinary ones. On one instance and on two."""

import asyncio
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from segue import tool
from segue.agent.prompts import TEXTS
from segue.config import Settings
from tests.support.plans import planned
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.steering import TIME, after, steer, stopped, told
from tests.support.streams import check, listening, replayed
from tests.support.uploads import uploaded

BESIDE = "by the way, while we are at it, and before we go on with what you have just asked me about"


@tool(effect="destructive")
async def burn(item: str) -> str:
    """Burns an item."""
    return f"burnt {item}"


@tool(effect="destructive")
async def delete_mail(mail_id: str) -> str:
    """Deletes a mail."""
    return f"deleted {mail_id}"


def said(provider: Provider, request: int = -1) -> list[str]:
    return [str(each["content"]) for each in provider.messages(request, role="user")]


async def test_a_turn_reads_what_comes_while_it_runs_once_and_in_order_at_its_next_boundary(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(
        after(client, session, calls(TIME), "in Rome", "and in Oslo"), calls(TIME), says("Noon."), says("Yes.")
    )
    answer = await client.chat(session, "what time is it?")
    assert [said(provider, n) for n in range(3)] == [
        ["what time is it?"],
        ["what time is it?", "in Rome", "and in Oslo"],
        ["what time is it?", "in Rome", "and in Oslo"],
    ]
    assert [each["role"] for each in provider.messages(1)[2:]] == ["assistant", "tool", "user", "user"]
    history = await client.messages(session)
    assert told(history) == [
        ("user", "what time is it?"),
        ("assistant", ""),
        ("tool", ""),
        ("user", "in Rome"),
        ("user", "and in Oslo"),
        ("assistant", "Noon."),
    ]
    assert [each["metadata"].get("steered") for each in history] == [None, None, None, True, True, None]
    assert [each["seq"] for each in history] == sorted(each["seq"] for each in history)
    assert (await client.get(f"/sessions/{session}"))["message_count"] == len(history)
    assert {each["turn_id"] for each in history} == {answer["turn_id"]}
    assert [turn["turn_id"] for turn in await client.turns(session)] == [answer["turn_id"]]
    await client.chat(session, "thanks, is that all?")
    assert said(provider) == ["what time is it?", "in Rome", "and in Oslo", "thanks, is that all?"]
    events = await replayed(client, session, answer["turn_id"])
    check(events)
    read = [each.event["value"]["message"] for each in events if each.kind == "CUSTOM steered"]
    assert read == history[3:5]


async def test_what_no_boundary_is_left_for_is_an_ordinary_message_that_runs_next(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(says("Hi."))
    assert (await steer(client, session, "nothing runs yet")).json()["message"]["content"] == "Hi."
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("Two.")

    provider.will(held, calls(TIME), says("Three."), says("Four."))
    steered = asyncio.create_task(client.chat(session, "two"))
    await provider.wait_for_requests(2)
    queued = await client.send(session, "three", background=True)
    waiting = await steer(client, session, "four", background=True, key="k")
    async with listening(client, waiting.json()["events_url"]) as stream:
        go.set()
        events = await stream.rest()
    check(events)
    assert events[-1].event["result"]["message"]["content"] == "Four."
    assert (await steered)["message"]["content"] == "Two."
    turns = await client.ended(session, 4)
    assert [turn["turn_id"] for turn in turns[2:]] == [each.json()["turn_id"] for each in (queued, waiting)]
    assert turns[2]["answer"]["message"]["content"] == "Three."
    assert events[0].event["runId"] == turns[3]["turn_id"]
    assert not any("steered" in each["metadata"] for each in await client.messages(session))
    assert (await steer(client, session, "four", key="k")).json() == turns[3]["answer"]


async def test_a_message_with_a_file_or_with_options_of_its_answer_steers_nothing_and_runs_next(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    file = await uploaded(client, session, b"two lemons", "list.txt")
    own: list[httpx2.Response] = []

    async def meanwhile(_: dict[str, Any]) -> Response:
        options: list[dict[str, Any]] = [{"attachments": [file]}, {"output_schema": {"type": "object"}}]
        own.extend([await client.send(session, "?", on_busy="steer", background=True, **each) for each in options])
        return calls(TIME)

    provider.will(meanwhile, says("Noon."), says("Lemons."), says("{}"))
    assert (await client.chat(session, "what time is it?"))["message"]["content"] == "Noon."
    turns = await client.ended(session, 3)
    assert [turn["turn_id"] for turn in turns[1:]] == [each.json()["turn_id"] for each in own]
    assert [turn["answer"]["output"] for turn in turns] == [None, None, {}]
    history = [each for each in await client.messages(session) if each["role"] == "user"]
    assert [[named["id"] for named in each["metadata"].get("attachments", ())] for each in history] == [[], [file], []]


async def test_who_steers_gets_the_answer_of_the_turn_that_read_it_on_any_instance_and_a_key_steers_once(
    client: Client, settings: Settings, provider: Provider
) -> None:
    session = await client.new_session()
    async with running(settings, takes_turns=False) as there:
        asking: list[asyncio.Task[httpx2.Response]] = []
        named: list[str] = []

        async def answer(_: dict[str, Any]) -> Response:
            accepted = await steer(there, session, "in Rome", background=True, key="k")
            named.append(accepted.json()["turn_id"])
            assert (await steer(there, session, "in Oslo", key="k")).json()["code"] == "idempotency_key_reused"
            asking.append(asyncio.create_task(steer(there, session, "in Rome", key="k")))
            asking.append(asyncio.create_task(steer(client, session, "in Rome", key="k")))
            return calls(TIME)

        provider.will(answer, says("Noon."))
        whole = await client.chat(session, "what time is it?")
        assert [(await each).json() for each in asking] == [whole, whole]
        assert (await steer(there, session, "in Rome", key="k")).json() == whole
        assert (await client.get(f"/sessions/{session}/turns/{named[0]}"))["answer"] == whole
        events = await replayed(there, session, named[0])
        assert events == await replayed(client, session, whole["turn_id"])
        assert said(provider) == ["what time is it?", "in Rome"]
        assert told(await there.messages(session))[3] == ("user", "in Rome")


async def test_a_turn_that_is_run_again_does_not_read_a_message_whose_own_turn_has_begun(
    settings: Settings, provider: Provider
) -> None:
    settings, noted, asked = settings.model_copy(update={"shutdown_grace_s": 0.2}), list[str](), asyncio.Event()

    @tool(effect="write")
    async def note(item: str) -> str:
        """Notes an item."""
        noted.append(item)
        return item

    async def ask(client: Client) -> None:
        body, key = {"message": "what time is it?", "background": True}, {"Idempotency-Key": "k"}
        await client.http.post(f"/sessions/{session}/chat", json=body, headers=key)

    async def answer(_: dict[str, Any]) -> Response:
        await ask(client)
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with running(settings, tools=[note]) as client:
        session = await client.new_session()
        provider.will(after(client, session, fails(503), "note milk"), calls(("note", {"item": "milk"})), answer)
        await ask(client)
        await asked.wait()
    provider.will(calls(TIME), says("Noon."), calls(("note", {"item": "milk"})), says("Noted."))
    async with running(settings, tools=[note]) as client:
        first, second = await client.ended(session, 2)
        history = await client.messages(session)
    assert [each["answer"]["message"]["content"] for each in (first, second)] == ["Noon.", "Noted."]
    assert [each["turn_id"] for each in history if each["role"] == "user"] == [first["turn_id"], second["turn_id"]]
    assert noted == ["milk"]


async def test_a_turn_has_ten_messages_to_read_at_most_and_no_more_are_accepted(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    refused: list[httpx2.Response] = []

    async def answer(body: dict[str, Any]) -> Response:
        await after(client, session, says(""), *map(str, range(10)))(body)
        refused.append(await steer(client, session, "ten"))
        missing = await steer(client, f"ses_{'0' * 26}", "one")
        assert (missing.status_code, missing.json()["code"]) == (404, "session_not_found")
        return calls(TIME)

    provider.will(answer, says("All."))
    await client.chat(session, "count")
    assert (refused[0].status_code, refused[0].json()["code"]) == (429, "too_many_queued")
    assert said(provider)[1:] == [str(number) for number in range(10)]


async def test_a_call_that_waits_for_a_yes_is_asked_about_anew_and_no_steer_is_one(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, tools=[burn]) as client:
        session = await client.new_session()
        desk, lamp = calls(("burn", {"item": "desk"}), text="I burn it."), calls(("burn", {"item": "lamp"}))
        provider.will(after(client, session, desk, "yes, but the lamp instead"), lamp)
        answer = await client.chat(session, "burn the desk")
        assert said(provider) == ["burn the desk", "yes, but the lamp instead"]
        [step] = answer["plan"]["steps"]
        assert (answer["plan"]["status"], step["args"]) == ("waiting", {"item": "lamp"})
        assert answer["tool_calls"] == []
        assert len((await client.get(f"/sessions/{session}/plans"))["items"]) == 1
        provider.will(after(client, session, says("Hm."), "yes"))
        await client.chat(session, f"what day is it, {BESIDE}?")
        *_, unread = await client.ended(session, 3)
        assert unread["answer"]["plan"]["status"] == "waiting"
        assert unread["answer"]["tool_calls"] == []
        provider.will(after(client, session, calls(TIME), "yes"), says("It waits."))
        beside = await client.chat(session, f"and what time, {BESIDE}?")
        assert [call["tool_name"] for call in beside["tool_calls"]] == ["current_time"]


async def test_an_approval_that_no_call_has_used_does_not_outlast_a_steer(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, tools=[delete_mail]) as client:
        first, second = [await client.new_session() for _ in range(2)]
        asked, deletes = says("Shall I delete the mail m1?"), calls(("delete_mail", {"mail_id": "m1"}))
        provider.will(asked, deletes, says("Gone."), asked, after(client, second, calls(TIME), "wait"), deletes)
        for session in (first, second):
            await client.chat(session, "what about the mail m1?")
            answer = await client.chat(session, "yes")
            assert (answer["plan"] is None) is (session == first), answer
        assert answer["plan"]["status"] == "waiting"


async def test_a_plan_stops_behind_the_step_that_ran_and_the_model_goes_on(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings.model_copy(update={"planning": "always"}), tools=[burn]) as client:
        session = await client.new_session()
        steps = [
            {"id": 1, "description": "Write a note", "tool": None},
            {"id": 2, "description": "Burn it", "tool": "burn", "args": {"item": "desk"}},
        ]
        provider.will(planned(steps), after(client, session, says("The note."), "leave the desk"), fails(400))
        failed = await client.send(session, "first write a note, then burn the desk")
        assert TEXTS["stopped"] in provider.notes()
        provider.will(says("I left it."))
        path = f"/sessions/{session}/turns/{failed.json()['turn_id']}/retry"
        answer = (await client.http.post(path)).json()
        assert answer["message"]["content"] == "I left it."
        assert answer["plan"]["status"] == "superseded"
        assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "skipped"]
        assert said(provider) == ["first write a note, then burn the desk", "leave the desk"]
        assert TEXTS["stopped"] in provider.notes()
        assert told(await client.messages(session))[1:] == [
            ("assistant", "The note."),
            ("user", "leave the desk"),
            ("assistant", "I left it."),
        ]


@pytest.mark.sweep
async def test_a_steered_turn_is_regenerated_with_all_that_was_said_and_only_its_opening_is_edited(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(after(client, session, calls(TIME), "in Rome"), says("Noon."), says("One."))
    answer = await client.chat(session, "what time is it?")
    opening, _, _, steered, _ = await client.messages(session)
    path = f"/sessions/{session}/messages"
    refused = await client.http.post(f"{path}/{steered['id']}/edit", json={"message": "in Oslo"})
    assert (refused.status_code, refused.json()["code"]) == (422, "cannot_edit_steer")
    exported = (await client.http.get(f"/sessions/{session}/export?format=markdown")).text
    assert exported.index("what time is it?") < exported.index("current_time") < exported.index("in Rome")
    again = await client.http.post(f"{path}/{answer['message']['id']}/regenerate")
    assert again.json()["message"]["content"] == "One."
    assert said(provider) == ["what time is it?\n\nin Rome"]
    assert [each["turn_id"] for each in await client.turns(session)] == [answer["turn_id"], again.json()["turn_id"]]
    [left] = (await client.get(f"/sessions/{session}/branches"))["items"]
    listed = await client.get(path, branch=left["id"])
    assert [each["id"] for each in listed["items"]][::3] == [opening["id"], steered["id"]]


@pytest.mark.sweep
async def test_a_steered_turn_that_was_cancelled_is_run_again_with_what_it_had_read(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(after(client, session, calls(TIME), "in Rome"), stopped(client, session), says("Noon."))
    failed = await client.send(session, "what time is it?")
    assert failed.json()["code"] == "turn_cancelled"
    listed = (await client.get(f"/sessions/{session}/messages", include="turn"))["items"]
    assert ["turn" in each for each in listed] == [True, False, False, False]
    again = await client.http.post(f"/sessions/{session}/turns/{failed.json()['turn_id']}/retry")
    assert again.json()["message"]["content"] == "Noon."
    assert said(provider) == ["what time is it?", "in Rome"]


async def test_a_turn_run_again_by_the_name_of_what_it_had_read_takes_a_place_of_its_own(
    settings: Settings, provider: Provider
) -> None:
    go, steers = asyncio.Event(), list[httpx2.Response]()

    async def steered(_: dict[str, Any]) -> Response:
        steers.append(await steer(client, session, "in Rome", background=True))
        return calls(TIME)

    async def held(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("Noon.")

    async with running(settings.model_copy(update={"limit_concurrent_turns": 2})) as client:
        session, *others = [await client.new_session() for _ in range(3)]
        provider.will(steered, stopped(client, session), held, held)
        assert (await client.send(session, "what time is it?")).json()["code"] == "turn_cancelled"
        path = f"/sessions/{session}/turns/{steers[0].json()['turn_id']}/retry"
        again = asyncio.create_task(client.http.post(path))
        await provider.wait_for_requests(3)
        sent = [await client.send(each, "hello", background=True) for each in others]
        assert [each.status_code for each in sent] == [202, 429]
        go.set()
        assert (await again).json()["message"]["content"] == "Noon."
        await client.ended(others[0])


async def test_who_stops_a_turn_stops_what_it_was_still_to_read_and_nothing_else(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()

    async def busy(body: dict[str, Any]) -> Any:
        await client.send(session, "and then this", background=True)
        await steer(client, session, "in Rome", background=True)
        return await stopped(client, session)(body)

    provider.will(busy, says("Done."))
    failed = await client.send(session, "what time is it?")
    assert failed.json()["code"] == "turn_cancelled"
    _, later, steering = await client.ended(session, 3)
    assert [later["answer"]["message"]["content"], steering["error"]["code"]] == ["Done.", "turn_cancelled"]
    after_its_end = await client.http.post(f"/sessions/{session}/turns/{failed.json()['turn_id']}/cancel")
    assert after_its_end.json()["status"] == "cancelled"
    assert said(provider)[-1] == "and then this"
