"""What waits in all sessions of a user, and decisions on several of them at once: all or none."""

from typing import Any

import pytest

from tests.support.provider import Provider, calls, says
from tests.support.service import Client


async def asks(client: Client, provider: Provider, item: str) -> str:
    """A session in which the deletion of an item waits for a yes."""
    provider.will(calls(("mcp_delete_item", {"item_id": item})))
    session = await client.new_session()
    await client.chat(session, f"Delete {item}")
    return session


async def waiting(client: Client) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get("/approvals"))["items"]
    return items


def decision(approval: dict[str, Any], what: str = "confirm") -> dict[str, Any]:
    return {"session_id": approval["session_id"], "version": approval["version"], "decision": what}


@pytest.mark.sweep
async def test_what_waits_is_listed_over_all_sessions_and_decided_on_at_once(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    sessions = [await asks(client, provider, item) for item in ("itm-1", "itm-2", "itm-3")]
    listed = await waiting(client)
    assert [each["session_id"] for each in listed] == sessions[::-1]
    assert [each["step"]["args"]["item_id"] for each in listed] == ["itm-3", "itm-2", "itm-1"]
    first = await client.get("/approvals", limit=2)
    assert (await client.get("/approvals", limit=2, cursor=first["next_cursor"]))["items"] == listed[2:]
    provider.will(says("Gone."), says("Gone."))
    items = [decision(listed[0]), decision(listed[2]), decision(listed[1], "reject")]
    accepted = await client.http.post("/approvals/decisions", json={"items": items})
    assert accepted.status_code == 202, accepted.text
    urls = [turn["events_url"].split("/")[2] for turn in accepted.json()["items"]]
    assert urls == [sessions[2], sessions[0], sessions[1]]
    for session in sessions:
        await client.ended(session, 2)
    assert sorted(effects) == ["delete itm-1", "delete itm-3"]
    assert await waiting(client) == []


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("wrong", ["version", "session"])
async def test_if_one_cannot_be_decided_none_is(
    client: Client, provider: Provider, effects: list[str], wrong: str
) -> None:
    sessions = [await asks(client, provider, item) for item in ("itm-1", "itm-2")]
    listed = await waiting(client)
    items = [decision(each) for each in listed]
    if wrong == "version":
        items[1]["version"] += 1
    else:
        items[1]["session_id"] = await client.new_session()
    refused = await client.http.post("/approvals/decisions", json={"items": items})
    code = "plan_changed" if wrong == "version" else "no_open_plan"
    assert (refused.status_code, refused.json()["code"]) == (409 if wrong == "version" else 404, code)
    assert refused.json()["session_id"] == items[1]["session_id"]
    twice = await client.http.post("/approvals/decisions", json={"items": [items[0], items[0]]})
    assert twice.status_code == 422
    assert await waiting(client) == listed
    assert [len(await client.turns(session)) for session in sessions] == [1, 1]
    assert effects == []
