"""The messages of a session as a page of a chat needs them: from the newest, with what became of each turn."""

from typing import Any

from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client


async def talk(client: Client, provider: Provider) -> tuple[str, list[str]]:
    """A session with a turn that used a tool, one that failed and a plain one; and the ids of its turns."""
    provider.will(calls(("current_time", {})), says("noon"), fails(400), says("bye"))
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


async def test_what_lies_before_a_message_is_read_in_either_order(client: Client, provider: Provider) -> None:
    session, _ = await talk(client, provider)
    assert await seqs(client, session, order="desc", before=5, limit=2) == ([4, 3], await cursor_at(client, session))
    assert await seqs(client, session, before=3) == ([1, 2], None)
    assert await seqs(client, session, before=1) == ([], None)


async def cursor_at(client: Client, session: str) -> str | None:
    return (await seqs(client, session, order="desc", limit=5))[1]


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
    assert "before, branch, cursor, include, limit, order" in problem["detail"]
    assert (await client.http.post("/sessions?dry_run=1", json={})).status_code == 422
    assert (await client.http.get("/usage?group=model&form=2026-01-01")).json()["detail"].startswith("query.form: ")
    assert (await client.http.get("/usage?group=model")).status_code == 200
    for path in ("/tools", "/agents", "/metrics", "/health/live"):
        assert (await client.http.get(f"{path}?limit=200")).status_code == 200
