"""The door for `useChat`, as the Vercel AI SDK comes through, unmodified, and as a page without it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
import pytest

from segue.config import Settings
from segue.domain.ids import new_id, utc_now
from tests.support.identity import new_key, speaking
from tests.support.node import needs_node, node
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.service import Client, process, running
from tests.support.shelf import Shelf, serving_shelf
from tests.support.sweeps import first

CHAT = "a chat of the page's"


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        yield shelf


async def page(client: Client, *steps: dict[str, Any], sdk: str = "@ai-sdk/react") -> list[dict[str, Any]]:
    url = f"{str(client.http.base_url).rstrip('/')}/api/chat"
    done: list[dict[str, Any]] = orjson.loads(await node("vercel.mjs", sdk, url, json.dumps(steps)))
    return done


def parts(step: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
    return [part for part in step["messages"][-1]["parts"] if part["type"] in kinds]


def texts(step: dict[str, Any]) -> list[str]:
    return [part["text"] for part in parts(step, "text")]


def said(text: str, *more: dict[str, Any], made: str = "m1", role: str = "user") -> dict[str, Any]:
    return {"id": made, "role": role, "parts": [{"type": "text", "text": text}, *more]}


async def chunks(client: Client, *messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    response = await client.http.post("/api/chat", json={"id": CHAT, "messages": list(messages), **more})
    assert response.status_code == 200, response.text
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    return read(response.text)


def read(stream: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [orjson.loads(line) for line in lines[:-1]]


@needs_node
async def test_a_page_asks_says_yes_and_decides_by_button(settings: Settings, provider: Provider, shelf: Shelf) -> None:
    provider.will(
        planned(THREE_STEPS),
        says("Item 1 is gone."),
        calls(("mcp_delete_item", {"item_id": "itm-2"}), text="One moment."),
        calls(("mcp_delete_item", {"item_id": "itm-3"})),
        says("Item 3 is gone."),
    )
    async with running(settings) as client:
        await client.connected("shelf")
        asked, done, waits = await page(
            client, {"open": CHAT, "say": ASK}, {"say": "sì, grazie"}, {"say": "Delete item 2"}
        )
        [shown] = parts(waits, "data-plan")
        no = {"type": "data-decision", "data": {"decision": "reject", "version": shown["data"]["version"]}}
        history = waits["messages"]
        rejected, other = await page(
            client, {"open": CHAT, "messages": history, "parts": [no]}, {"say": "Delete item 3"}
        )
        plan = parts(other, "data-plan")[0]["data"]
        yes = {"decision": "confirm", "version": plan["version"], "plan_id": plan["id"]}
        stale = {**yes, "plan_id": shown["data"]["id"]}
        refused, confirmed = await page(
            client,
            {"open": CHAT, "messages": other["messages"], "parts": [{"type": "data-decision", "data": stale}]},
            {"parts": [{"type": "data-decision", "data": yes}]},
        )
        turns = await client.turns((await client.get("/sessions"))["items"][0]["id"])
    assert [(part["toolName"], part["state"]) for part in parts(asked, "dynamic-tool")] == [
        ("mcp_find_items", "output-available"),
        ("mcp_get_item", "output-available"),
    ]
    assert [part["data"]["status"] for part in parts(asked, "data-plan")] == ["waiting"]
    assert (texts(done), [part["data"]["status"] for part in parts(done, "data-plan")]) == (
        ["Item 1 is gone."],
        ["completed"],
    )
    assert [part["data"]["status"] for part in parts(rejected, "data-plan")] == ["cancelled"]
    assert "plan_changed" in refused["error"]
    assert (texts(confirmed), confirmed["error"]) == (["Item 3 is gone."], None)
    assert shelf.effects == ["get itm-1", "delete itm-1", "delete itm-3"]
    assert confirmed["messages"][-1]["id"] == turns[-1]["turn_id"]
    assert confirmed["messages"][-1]["metadata"]["session_id"] == turns[-1]["session_id"]


@pytest.mark.sweep
@needs_node
async def test_a_page_regenerates_edits_and_reloads(client: Client, provider: Provider) -> None:
    provider.will(*map(says, ("One.", "Two.", "Two again.", "Uno di nuovo.", "Uno.")))
    _, _, again, of_users, edited = await page(
        client,
        {"open": CHAT, "say": "first"},
        {"say": "second"},
        {"regenerate": True},
        {"regenerate": True, "edit": 1},
        {"say": "primo", "edit": 1},
    )
    assert (texts(again), texts(of_users), texts(edited)) == (["Two again."], ["Uno di nuovo."], ["Uno."])
    session = (await client.get("/sessions"))["items"][0]["id"]
    assert [each["content"] for each in await client.messages(session)] == ["primo", "Uno."]
    idle = {"open": CHAT, "messages": edited["messages"], "resume": True}
    assert (await page(client, idle))[0]["messages"] == edited["messages"]


async def test_a_page_regenerates_from_a_message_of_the_users(client: Client, provider: Provider) -> None:
    provider.will(*map(says, ("One.", "Two.", "Two again.", "One again.")))
    begun = await chunks(client, said("first", made="u1"))
    answered = said("One.", made=begun[0]["messageId"], role="assistant")
    await chunks(client, said("first", made="u1"), answered, said("second", made="u2"))
    again = {"trigger": "regenerate-message"}
    await chunks(client, said("first", made="u1"), answered, said("second", made="u2"), **again, messageId="u2")
    session = (await client.get("/sessions"))["items"][0]["id"]
    assert [each["content"] for each in await client.messages(session)] == ["first", "One.", "second", "Two again."]
    await chunks(client, said("first", made="u1"), **again, messageId="u1")
    assert [each["content"] for each in await client.messages(session)] == ["first", "One again."]


@pytest.mark.parametrize("named", [{}, {"messageId": "u2"}])
async def test_a_message_that_was_refused_and_is_asked_again_is_said_and_the_one_before_it_is_not_run_again(
    settings: Settings, provider: Provider, named: dict[str, str]
) -> None:
    async with running(settings.model_copy(update={"limit_turns_per_minute": 1})) as client:
        provider.will(*map(says, ("It is booked.", "Not yet.", "The taxi is cancelled.")))
        begun = await chunks(client, said("Book the table", made="u1"))
        asked = said("Book the table", made="u1"), said("It is booked.", made=begun[0]["messageId"], role="assistant")
        both = [*asked, said("Cancel the taxi", made="u2")]
        assert (await client.http.post("/api/chat", json={"id": CHAT, "messages": both})).status_code == 429
    async with running(settings) as client:
        for _ in range(2):  # the second time its answer is made anew
            await chunks(client, *both, trigger="regenerate-message", **named)
        session = (await client.get("/sessions"))["items"][0]["id"]
        texts_now = [each["content"] for each in await client.messages(session)]
    assert texts_now == ["Book the table", "It is booked.", "Cancel the taxi", "The taxi is cancelled."]


async def test_what_is_edited_while_a_plan_waits_is_answered_without_the_plan(
    shelved: Client, provider: Provider, shelf: Shelf
) -> None:
    deletes = calls(("mcp_delete_item", {"item_id": "itm-1"}))
    provider.will(deletes, says("It stays."), deletes, says("It stays."))
    for asks in ({"trigger": "submit-message"}, {"trigger": "regenerate-message"}):
        begun = await chunks(shelved, said("Delete item 1", made="u1"), id=str(asks))
        assert [each["data"]["status"] for each in begun if each["type"] == "data-plan"][-1:] == ["waiting"]
        edited = await chunks(shelved, said("Keep item 1", made="u1"), id=str(asks), **asks, messageId="u1")
        assert [each for each in edited if each["type"] == "data-plan"] == []
    assert shelf.effects == []


async def test_a_plan_that_waits_is_shown_again_also_behind_a_message_whose_turn_has_failed(
    shelved: Client, provider: Provider, shelf: Shelf
) -> None:
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"})), fails(500), says("Item 1 is gone."))
    await chunks(shelved, said("Delete item 1", made="u1"))
    failed = await chunks(shelved, said("What is in it?", made="u2"))
    headers = {"X-AI-SDK-Version": "7"}
    shown = (await shelved.http.get(f"/api/chat/{CHAT}/messages", headers=headers)).json()["items"]
    assert [each["role"] for each in shown] == ["user", "assistant", "user", "assistant"]
    assert shown[-1]["id"] == failed[0]["messageId"]
    [plan, call] = shown[-1]["parts"]
    assert (plan["data"]["status"], call["state"]) == ("waiting", "approval-requested")
    approved = {**call, "state": "approval-responded", "approval": {**call["approval"], "approved": True}}
    went_on = await chunks(shelved, *shown[:-1], {**shown[-1], "parts": [plan, approved]})
    assert "".join(each["delta"] for each in went_on if each["type"] == "text-delta") == "Item 1 is gone."
    assert shelf.effects == ["delete itm-1"]


async def test_who_comes_while_an_answer_is_made_gets_it_from_its_start(client: Client, provider: Provider) -> None:
    going_on = asyncio.Event()
    provider.will(streams("Go", going_on, "od."))
    sent = asyncio.create_task(chunks(client, said("Well?")))
    await provider.wait_for_requests(1)
    async with client.http.stream("GET", f"/api/chat/{CHAT}/stream") as response:
        going_on.set()
        resumed = read((await response.aread()).decode())
    assert resumed == await sent
    assert "".join(chunk["delta"] for chunk in resumed if chunk["type"] == "text-delta") == "Good."


async def test_a_turn_that_is_longer_than_a_page_is_one_message(client: Client, provider: Provider) -> None:
    provider.will(
        says("Hello."), calls(("current_time", {}), text="Let me see."), calls(("current_time", {})), says("Noon.")
    )
    await chunks(client, said("Hi"))
    await chunks(client, said("What time is it?", made="m2"))
    whole = (await client.http.get(f"/api/chat/{CHAT}/messages")).json()["items"]
    assert [each["role"] for each in whole] == ["user", "assistant"] * 2
    for limit in (1, 2, 3):
        pages, cursor = list[Any](), cast(str | None, "")
        while cursor is not None:
            page = (
                await client.http.get(f"/api/chat/{CHAT}/messages", params={"limit": limit, "cursor": cursor})
            ).json()
            pages, cursor = [*page["items"], *pages], page["next_cursor"]
        assert pages == whole, limit


async def test_a_chat_whose_id_has_a_slash_is_found_again(client: Client, provider: Provider) -> None:
    provider.will(says("Good."))
    asked = {"id": "team/7", "messages": [said("Well?")]}
    assert (await client.http.post("/api/chat", json=asked)).status_code == 200
    listed = (await client.http.get("/api/chat/team/7/messages")).json()["items"]
    assert [each["role"] for each in listed] == ["user", "assistant"]
    assert (await client.http.get("/api/chat/team/7/stream")).status_code == 204


async def test_a_message_sent_again_is_the_same_turn_and_a_failed_one_says_why(
    client: Client, provider: Provider
) -> None:
    provider.will(says("Hello."), fails(500))
    first = await chunks(client, said("hello"))
    assert [chunk["type"] for chunk in first] == [
        "start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish",
    ]  # fmt: skip
    assert await chunks(client, said("hello")) == first
    failed = await chunks(client, said("hello"), said("Hello.", role="assistant"), said("well?", made="m2"))
    assert failed[-1]["type"] == "error"
    assert "provider" in failed[-1]["errorText"]
    assert len(await client.turns((await client.get("/sessions"))["items"][0]["id"])) == 2
    assert (await client.http.get(f"/api/chat/{CHAT}/stream")).status_code == 204


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "invalid_request"),
    ({"messages": [said("hello", role="assistant")]}, "invalid_request"),
    ({"messages": [{"role": "user"}]}, "invalid_request"),
    ({"messages": [said("hello", {"type": "data-decision", "data": {"decision": "yes"}})]}, "invalid_request"),
    ({"id": ""}, "invalid_request"),
    ({"trigger": "approve"}, "invalid_request"),
]


async def test_what_cannot_be_answered_is_refused_with_a_problem_and_makes_nothing(client: Client) -> None:
    for wrong, code in REFUSED:
        response = await client.http.post("/api/chat", json={"id": CHAT, "messages": [said("hello")], **wrong})
        found = (response.json()["code"], response.headers["content-type"])
        assert found == (code, "application/problem+json"), wrong
        assert "validation error" not in response.json()["detail"]
    assert (await client.http.get(f"/api/chat/{CHAT}/stream")).status_code == 204
    assert (await client.get("/sessions"))["items"] == []


async def test_a_chat_is_of_its_user(settings: Settings, provider: Provider) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    provider.will(says("Ada."), says("Bob."))
    async with (
        running(guarded) as service,
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(service, await new_key(guarded, "bob")) as bob,
    ):
        assert "Ada." in str(await chunks(ada, said("hello")))
        assert "Bob." in str(await chunks(bob, said("hello")))
        theirs = (await ada.get("/sessions"))["items"][0]["id"]
        for foreign in (theirs, new_id("ses", utc_now())):
            sent = await bob.http.post("/api/chat", json={"id": foreign, "messages": [said("hello")]})
            looked = await bob.http.get(f"/api/chat/{foreign}/stream")
            listed = await bob.http.get(f"/api/chat/{foreign}/messages")
            assert [(each.status_code, each.json()["code"]) for each in (sent, looked, listed)] == [
                (404, "session_not_found")
            ] * 3


async def test_an_approval_of_a_step_that_does_not_wait_decides_nothing(shelved: Client, provider: Provider) -> None:
    wanted = [("mcp_delete_item", {"item_id": f"itm-{number}"}) for number in (1, 2)]
    provider.will(calls(*wanted))
    await chunks(shelved, said("Delete 1 and 2"))
    session = (await shelved.get("/sessions"))["items"][0]["id"]
    plan = (await shelved.get(f"/sessions/{session}"))["pending_plan"]

    def decided(step: int, *, approved: bool) -> dict[str, Any]:
        call_id = f"{plan['id']}:{plan['version']}:{step}"
        approval = {"id": call_id, "approved": approved}
        return {
            "type": "dynamic-tool",
            "toolName": wanted[0][0],
            "toolCallId": call_id,
            "state": "approval-responded",
            "input": wanted[0][1],
            "approval": approval,
        }

    parts = [decided(1, approved=False), decided(2, approved=False), decided(5, approved=True)]
    message = {"id": "1", "role": "assistant", "parts": parts}
    headers = {"X-AI-SDK-Version": "7"}
    body = {"id": CHAT, "messages": [said("Delete 1 and 2"), message]}
    refused = await shelved.http.post("/api/chat", json=body, headers=headers)
    told, end = (line.removeprefix("data: ") for line in refused.text.splitlines() if line.startswith("data: "))
    error = "The plan is not at this version any more. Read it again and decide on what it says now."
    assert (refused.status_code, json.loads(told), end) == (200, {"type": "error", "errorText": error}, "[DONE]")
    assert refused.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert (await shelved.get(f"/sessions/{session}"))["pending_plan"] == plan


PAINT = {"description": "Paints.", "inputSchema": {"type": "object", "properties": {"colour": {"type": "string"}}}}
PAINTS = {"body": {"tools": {"paint": PAINT}}}
RED = ("paint", {"colour": "red"})


def states(step: dict[str, Any]) -> list[tuple[str, str]]:
    tools = [part for part in step["messages"][-1]["parts"] if "toolCallId" in part]
    return [(part.get("toolName") or part["type"], part["state"]) for part in tools]


@pytest.mark.sweep
@needs_node
@pytest.mark.parametrize(("sdk", "version"), first(1, [("@ai-sdk/react", "7"), ("ai-react-6", "6.0.325")]))
async def test_a_tool_of_the_page_and_approvals_go_on_in_the_same_message_through_kill_nine(
    settings: Settings, provider: Provider, shelf: Shelf, sdk: str, version: str
) -> None:
    told = {"headers": {"X-AI-SDK-Version": version}, **PAINTS}
    wanted = [("mcp_delete_item", {"item_id": "itm-1"}), ("mcp_send_note", {"to": "rossi", "text": "gone"})]
    provider.will(calls(RED), calls(*wanted), says("Sent, and it is red."), says("Hello."))
    async with process(settings) as (killed, service):
        [asked] = await page(service, {"open": CHAT, "say": "Paint it, delete 1, tell Rossi", **told}, sdk=sdk)
        killed.kill()
    assert states(asked) == [("tool-paint", "input-available")]
    async with process(settings) as (_, service):
        await service.connected("shelf")
        reloaded, painted = await page(
            service,
            {"open": CHAT, "history": True, **told},
            {"answers": {"gives": {"paint": {"painted": 3}}}},
            sdk=sdk,
        )
        waits = [part for part in painted["messages"][-1]["parts"] if part.get("state") == "approval-requested"]
        again = {"open": CHAT, "messages": painted["messages"], **told}
        decide = {"answers": {"approves": {waits[0]["approval"]["id"]: False, waits[1]["approval"]["id"]: True}}}
        done, hello = await page(service, {**again, **decide}, {"say": "hello"}, sdk=sdk)
        turns = await service.turns((await service.get("/sessions"))["items"][0]["id"])
    assert states(reloaded) == [("tool-paint", "input-available")]
    assert states(painted)[1:] == [(name, "approval-requested") for name, _ in wanted]
    assert (texts(done)[-1], shelf.effects) == ("Sent, and it is red.", ["send rossi: gone"])
    assert states(done)[1:] == [("mcp_delete_item", "output-denied"), ("mcp_send_note", "output-available")]
    assert (texts(hello), len(hello["messages"])) == (["Hello."], 4)
    assert [turn["status"] for turn in turns] == ["completed"] * 4


@pytest.mark.sweep  # version 7 does it in CI
@needs_node
async def test_version_5_finishes_its_tool_and_a_plan_that_is_agreed_to_once_through_kill_nine(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    going_on = asyncio.Event()
    provider.will(calls(RED), calls(("mcp_delete_item", {"item_id": "itm-1"})), streams("It is ", going_on))
    async with process(settings) as (killed, service):
        await service.connected("shelf")
        talking = asyncio.create_task(
            page(
                service,
                {"open": CHAT, "say": "Paint it, delete 1", **PAINTS},
                {"answers": {"gives": {"paint": {"painted": 3}}}},
                {"say": "sì, grazie"},
                sdk="ai-react-5",
            )
        )
        await shelf.wait_for("delete itm-1")
        await provider.wait_for_requests(3)
        killed.kill()
        asked, waits, _ = await talking
    provider.will(says("It is gone."))
    async with process(settings) as (_, service):
        await service.connected("shelf")
        reloaded = {"open": CHAT, "history": True, "resume": True, **PAINTS}
        [done] = await page(service, reloaded, sdk="ai-react-5")
    going_on.set()
    assert states(asked) == [("tool-paint", "input-available")]
    assert [(step["error"], len(step["messages"])) for step in (asked, waits, done)] == [
        (None, 2),
        (None, 2),
        (None, 4),
    ]
    assert [part["data"]["status"] for part in parts(waits, "data-plan")] == ["waiting"]
    assert (texts(done)[-1], shelf.effects) == ("It is gone.", ["delete itm-1"])


def piece(args: str, name: str | None = None) -> dict[str, Any]:
    """A delta of a chat completion."""
    named = {"id": "call_0", "type": "function"} if name else {}
    return {"tool_calls": [{"index": 0, **named, "function": {"name": name or "", "arguments": args}}]}


async def test_arguments_are_chunks_of_their_parts_and_what_breaks_off_is_an_error_of_one(
    settings: Settings, provider: Provider
) -> None:
    broken = piece('{"timezone": ', "current_time"), piece('"Europe/R')
    whole = piece('{"timezone": ', "current_time"), piece('"Europe/'), piece('Rome"}')
    provider.will(streams("Well.", *whole, finish_reason="tool_calls"))
    provider.will(streams(*broken, finish_reason=None), says("It is noon."))
    async with running(settings.model_copy(update={"llm_max_retries": 1})) as client:
        found = [each for each in await chunks(client, said("What time is it?")) if "toolCallId" in each]
    by_call: dict[str, list[dict[str, Any]]] = {}
    for each in found:
        by_call.setdefault(each.pop("toolCallId"), []).append(each)
    made, given_up = by_call.values()
    ours = {"dynamic": True, "providerExecuted": True}
    named = {**ours, "toolName": "current_time"}
    assert made[0] == given_up[0] == {"type": "tool-input-start", **named}
    deltas = ["".join(each["inputTextDelta"] for each in call if "inputTextDelta" in each) for call in (made, given_up)]
    assert deltas == ['{"timezone":"Europe/Rome"}', '{"timezone":"Europe/R']
    assert made[-2] == {"type": "tool-input-available", **named, "input": {"timezone": "Europe/Rome"}}
    assert made[-1]["type"] == "tool-output-available"
    error = {"input": deltas[1], "errorText": "Its arguments broke off."}
    assert given_up[-2] == {"type": "tool-input-error", **named, **error}
    assert {**given_up[-1], "errorText": ""} == {"type": "tool-output-error", **ours, "errorText": ""}


@pytest.mark.sweep  # the chunks of such a call are read above
@needs_node
@pytest.mark.parametrize("sdk", ["@ai-sdk/react", "ai-react-6", "ai-react-5"])
async def test_a_page_runs_its_tool_once_if_a_call_of_it_broke_off_before(
    settings: Settings, provider: Provider, sdk: str
) -> None:
    broken = streams(piece('{"colour": ', "paint"), piece('"gre'), finish_reason=None)
    clock = streams(piece('{"timezone": ', "current_time"), piece('"Europe/Rome"}'), finish_reason="tool_calls")
    provider.will(clock, broken, calls(RED), says("It is red."))
    async with running(settings.model_copy(update={"llm_max_retries": 1})) as client:
        asked, painted = await page(
            client,
            {"open": CHAT, "say": "Paint it", **PAINTS},
            {"answers": {"gives": {"paint": {"painted": 3}}}},
            sdk=sdk,
        )
    assert states(asked) == [
        ("current_time", "output-available"),
        ("tool-paint", "output-error"),
        ("tool-paint", "input-available"),
    ]
    assert (states(painted)[-1], texts(painted), painted["error"]) == (
        ("tool-paint", "output-available"),
        ["It is red."],
        None,
    )


async def test_what_the_model_thought_stands_before_its_answer_also_after_a_reload(
    settings: Settings, provider: Provider
) -> None:
    provider.will(streams({"reasoning_content": "I add up."}, "Four."))
    async with running(settings.model_copy(update={"show_reasoning": True})) as client:
        sent = await chunks(client, said("2 + 2?"))
        [_, answer] = (await client.http.get(f"/api/chat/{CHAT}/messages")).json()["items"]
    kinds = [each["type"] for each in sent if each["type"].endswith("-start")]
    assert kinds == ["reasoning-start", "text-start"]
    assert [(part["type"], part["text"], part["state"]) for part in answer["parts"]] == [
        ("reasoning", "I add up.", "done"), ("text", "Four.", "done"),
    ]  # fmt: skip


@pytest.mark.sweep
async def test_a_page_finds_its_chat_again_as_it_shows_messages(client: Client, provider: Provider) -> None:
    provider.will(calls(("current_time", {}), text="Let me see."), says("Noon."), calls(RED), says("It is red."))
    await chunks(client, said("What time is it?"))
    asked = await chunks(client, said("Paint it", made="m2"), tools=[{"name": "paint", **PAINT}])
    [call] = [chunk for chunk in asked if chunk["type"] == "tool-input-available"]
    first = (await client.http.get(f"/api/chat/{CHAT}/messages")).json()["items"]
    part = {"type": "tool-paint", "toolCallId": call["toolCallId"], "input": call["input"]}
    assert first[-1]["parts"][-1] == {**part, "state": "input-available"}
    shown = {"id": "turn", "role": "assistant", "parts": [{**part, "state": "output-error", "errorText": "No wall."}]}
    went_on = await chunks(client, said("Paint it"), shown, messageId="turn")
    assert "messageId" not in went_on[0]
    pages, cursor = list[Any](), cast(str | None, "")
    while cursor is not None:
        page = (await client.http.get(f"/api/chat/{CHAT}/messages", params={"limit": 4, "cursor": cursor})).json()
        pages, cursor = [*page["items"], *pages], page["next_cursor"]
    kinds = [(each["role"], [part["type"] for part in each["parts"]]) for each in pages]
    assert kinds == [
        ("user", ["text"]),
        ("assistant", ["text", "dynamic-tool", "text"]),
        ("user", ["text"]),
        ("assistant", ["tool-paint", "text", "data-effects"]),
    ]
    assert [part["state"] for part in pages[1]["parts"]] == ["done", "output-available", "done"]
    assert (pages[3]["parts"][0]["state"], "No wall." in pages[3]["parts"][0]["errorText"]) == ("output-error", True)
    rated = {
        "session_id": pages[3]["metadata"]["session_id"],
        "message_id": went_on[-1]["messageMetadata"]["message_id"],
    }
    assert pages[3]["metadata"] == rated | {"turn_id": went_on[0]["messageMetadata"]["turn_id"]}
    assert (await client.http.get("/api/chat/another/messages")).json() == {"items": [], "next_cursor": None}
    provider.will(says("More."), says("More blue."))
    await chunks(client, said("More", made="m3"))
    before = said("It is red.", made=asked[0]["messageId"], role="assistant")
    await chunks(client, said("Paint it"), before, said("More blue", made="m3"), messageId="m3")
    said_now = [each["content"] for each in await client.messages(rated["session_id"])]
    assert said_now[-3:] == ["It is red.", "More blue", "More blue."]
    provider.will(says("No more paint."))
    await chunks(client, said("Paint it"), trigger="regenerate-message", messageId=pages[3]["id"])
    said_now = [each["content"] for each in await client.messages(rated["session_id"])]
    assert said_now[-2:] == ["Paint it", "No more paint."]
