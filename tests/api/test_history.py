"""The messages of a session as a page of a chat needs them: from the newest, with what became of each turn."""

import asyncio
from typing import Any

import pytest

from segue.config import Settings
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.service import Client, running
from tests.support.streams import chatting, streamed


async def talk(client: Client, provider: Provider) -> tuple[str, list[str]]:
    """A session with a turn that used a tool, one that failed and a plain one; and the ids of its turns."""
    provider.will(calls(("current_time", {})), says("noon"), fails(400), fails(400), says("bye"))
    session = await client.new_session()
    for message in ("what time is it?", "fail", "thanks"):
        await client.send(session, message)
    return session, [turn["turn_id"] for turn in await client.turns(session)]


async def seqs(client: Client, session: str, **params: Any) -> tuple[list[int], str | None]:
    page = await client.get(f"/sessions/{session}/messages", **params)
    return [message["seq"] for message in page["items"]], page["next_cursor"]


async def test_a_page_of_history_begins_at_the_newest_and_goes_back_by_cursor(
    client: Client, provider: Provider
) -> None:
    session, _ = await talk(client, provider)
    newest, cursor = await seqs(client, session, order="desc", limit=3)
    assert newest == [7, 6, 5]
    assert cursor is not None
    assert await seqs(client, session, order="desc", limit=4, cursor=cursor) == ([4, 3, 2, 1], None)


@pytest.mark.sweep
async def test_what_lies_before_a_message_is_read_in_either_order(client: Client, provider: Provider) -> None:
    session, _ = await talk(client, provider)
    assert await seqs(client, session, order="desc", before=5, limit=2) == ([4, 3], await cursor_at(client, session))
    assert await seqs(client, session, before=3) == ([1, 2], None)
    assert await seqs(client, session, before=1) == ([], None)


async def cursor_at(client: Client, session: str) -> str | None:
    return (await seqs(client, session, order="desc", limit=5))[1]


@pytest.mark.sweep
async def test_a_page_around_a_message_or_a_turn_leads_on_both_ways(client: Client, provider: Provider) -> None:
    session, turns = await talk(client, provider)
    said = await client.messages(session)
    path, at = f"/sessions/{session}/messages", said[3]["id"]
    for order, page, older, newer in (
        ("asc", [3, 4, 5, 6], "previous_cursor", "next_cursor"),
        ("desc", [6, 5, 4, 3], "next_cursor", "previous_cursor"),
    ):
        found = await client.get(path, around=said[4]["id"], order=order, limit=4)
        assert [message["seq"] for message in found["items"]] == page
        assert await seqs(client, session, order="desc", cursor=found[older]) == ([2, 1], None)
        assert await seqs(client, session, order="asc", cursor=found[newer]) == ([7], None)
    opened = await client.get(path, around=turns[1], limit=1, include="turn")
    assert [(message["turn_id"], message["role"]) for message in opened["items"]] == [(turns[1], "user")]
    whole = await client.get(path, around=at, limit=200)
    assert (whole["items"], whole["next_cursor"], whole["previous_cursor"]) == (said, None, None)
    assert (await client.get(path))["previous_cursor"] is None
    last = await client.get(path, order="desc", limit=2, cursor=await cursor_at(client, session))
    assert await seqs(client, session, order="asc", cursor=last["previous_cursor"]) == ([3, 4, 5, 6, 7], None)
    for edge, ends in ((0, (None, True)), (6, (True, None))):
        found = await client.get(path, around=said[edge]["id"], limit=2)
        assert ((found["previous_cursor"] and True), (found["next_cursor"] and True)) == ends


async def test_a_page_around_what_is_not_in_the_history_or_elsewhere_is_not_found(
    client: Client, provider: Provider
) -> None:
    session, turns = await talk(client, provider)
    other = await client.new_session()
    provider.will(says("again"))
    gone = (await client.messages(session))[-1]["id"]
    assert (await client.http.post(f"/sessions/{session}/messages/{gone}/regenerate")).status_code == 200
    path, [branch] = f"/sessions/{session}/messages", (await client.get(f"/sessions/{session}/branches"))["items"]
    assert gone in [each["id"] for each in (await client.get(path, around=gone, branch=branch["id"]))["items"]]
    for at, where, code, status in (
        (gone, path, "message_not_found", 404),
        (turns[0], f"/sessions/{other}/messages", "message_not_found", 404),
        ("msg_x", path, "invalid_request", 422),
        (f"{turns[0]}&before=3", path, "invalid_request", 422),
    ):
        refused = await client.http.get(f"{where}?around={at}")
        assert (refused.status_code, refused.json()["code"]) == (status, code)


async def test_a_page_with_its_turns_says_what_became_of_each_of_them_once(client: Client, provider: Provider) -> None:
    session, turns = await talk(client, provider)
    page = await client.get(f"/sessions/{session}/messages", include="turn")
    told = [message["turn"] for message in page["items"] if "turn" in message]
    assert [(turn["turn_id"], turn["status"]) for turn in told] == list(
        zip(turns, ("completed", "failed", "completed"), strict=True)
    )
    assert [message["role"] for message in page["items"] if "turn" in message] == ["assistant", "user", "assistant"]
    used, failed, plain = told
    assert [(call["tool_name"], call["status"]) for call in used["tool_calls"]] == [("current_time", "succeeded")]
    assert used["acknowledgement"]["verdict"] == "none"
    assert (used["error"], used["plan_id"], plain["tool_calls"]) == (None, None, [])
    assert failed["error"]["code"] == "model_unavailable"
    assert failed["acknowledgement"] is None
    [bare] = {"turn" in message for message in await client.messages(session)}
    assert not bare


async def test_an_unknown_parameter_of_the_query_is_refused_with_those_there_are(client: Client) -> None:
    session = await client.new_session()
    response = await client.http.get(f"/sessions/{session}/messages", params={"odrer": "desc", "limit": 2})
    assert response.status_code == 422
    problem = response.json()
    assert [error["loc"] for error in problem["errors"]] == [["query", "odrer"]]
    assert "around, before, branch, cursor, include, limit, order" in problem["detail"]
    assert (await client.http.post("/sessions?dry_run=1", json={})).status_code == 422
    assert (await client.http.get("/usage?group=model&form=2026-01-01")).json()["detail"].startswith("query.form: ")
    assert (await client.http.get("/usage?group=model")).status_code == 200
    whole = ("/tools", "/agents", "/mcp/servers", "/mcp/logins", "/mcp/prompts")
    for path in (*whole, "/metrics", "/health/live"):
        assert (await client.http.get(f"{path}?limit=200")).status_code == 200, path
    for path in whole:
        assert (await client.http.get(f"{path}?x=1")).status_code == 422, path


@pytest.mark.sweep
async def test_what_the_model_thought_is_read_again_with_its_answer_alone(
    settings: Settings, provider: Provider
) -> None:
    called = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "current_time", "arguments": "{}"}}]}
    provider.will(
        streams({"reasoning_content": "The clock."}, called, finish_reason="tool_calls"),
        streams({"reasoning_content": "Noon, I see."}, "It is noon."),
    )
    async with running(settings.model_copy(update={"show_reasoning": True})) as client:
        session = await client.new_session()
        await streamed(client, session, "What time is it?")
        answer = (await client.turns(session))[-1]["answer"]["message"]
        listed = await client.messages(session)
    assert answer["metadata"]["reasoning"] == "The clock.\n\nNoon, I see."
    assert [each["metadata"].get("reasoning") for each in listed] == [None, None, None, answer["metadata"]["reasoning"]]


async def test_a_turn_that_runs_has_no_error(client: Client, provider: Provider) -> None:
    go = asyncio.Event()
    provider.will(streams("No", go, "on"))
    session = await client.new_session()
    async with chatting(client, session, "What time is it?") as stream:
        await stream.until("TEXT_MESSAGE_CONTENT")
        [asked] = (await client.get(f"/sessions/{session}/messages", include="turn"))["items"]
        go.set()
    assert (asked["turn"]["status"], asked["turn"]["error"]) == ("running", None)
