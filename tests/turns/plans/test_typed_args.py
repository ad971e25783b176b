"""What a button may bring: arguments in place of those of the step that waits, or a change in words."""

import json
from typing import Any

import httpx2
import pytest

from segue.config import Settings
from tests.support.plans import Frozen, deletion, offered, planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running


async def press(client: Client, session: str, asked: dict[str, Any], decision: str, **more: Any) -> httpx2.Response:
    body, headers = {"decision": decision, "version": asked["plan"]["version"], **more}, {"Idempotency-Key": "k"}
    return await client.http.post(f"/sessions/{session}/plan/decision", json=body, headers=headers)


async def test_arguments_typed_with_a_yes_are_what_runs_and_the_message_says_so(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    made = [("mcp_delete_item", {"item_id": f"itm-{number}"}) for number in (1, 2)]
    provider.will(calls(*made), says("Both are gone."))
    session = await client.new_session()
    asked = await client.chat(session, "Delete itm-1 and itm-2")
    answer = (await press(client, session, asked, "confirm", args={"item_id": "itm-7"})).json()
    done, other = answer["plan"]["steps"]
    assert (done["status"], done["args"]) == ("complete", {"item_id": "itm-7"})
    assert done["args_origin"] == {"item_id": "user"}
    assert (other["status"], other["args"]) == ("complete", {"item_id": "itm-2"})
    assert effects == ["delete itm-7", "delete itm-2"]
    same = await press(client, session, asked, "confirm", args={"item_id": "itm-7"})
    reused = await press(client, session, asked, "confirm", args={"item_id": "itm-8"})
    assert (same.json(), reused.json()["code"]) == (answer, "idempotency_key_reused")
    [said] = [message["metadata"] for message in await client.messages(session) if message["content"] == "👍"]
    plan = {"plan_id": asked["plan"]["id"], "plan_version": asked["plan"]["version"]}
    assert said == {"decision": "confirm", **plan, "args_changed": True}


async def test_arguments_that_the_tool_does_not_take_change_nothing(
    client: Client, provider: Provider, effects: list[str], settings: Settings, clock: Frozen
) -> None:
    session, asked = await offered(client, provider, [deletion(1), deletion(2)])
    before = await client.get("/approvals")
    for decision, more, code, told in (
        ("confirm", {"args": {"item_id": 5}}, "invalid_args", "$.item_id"),
        ("confirm", {"args": {}}, "invalid_args", "item_id"),
        ("reject", {"args": {"item_id": "itm-2"}}, "invalid_request", "confirm"),
        ("amend", {"args": {"item_id": "itm-2"}, "message": "the second"}, "invalid_request", "confirm"),
        ("amend", {}, "invalid_request", "message"),
        ("confirm", {"message": "the second"}, "invalid_request", "amend"),
    ):
        refused = await press(client, session, asked, decision, **more)
        assert (refused.status_code, refused.json()["code"]) == (422, code), refused.text
        assert told in refused.json()["detail"]
        if code == "invalid_args":
            [fault] = refused.json()["errors"]
            assert (fault["type"], told.removeprefix("$.") in str(fault)) == (code, True)
    settings.mcp_config.write_text(json.dumps({"mcpServers": {}}))
    async with running(settings, clock=clock) as without_shelf:
        refused = await press(without_shelf, session, asked, "confirm", args={"item_id": "itm-2"})
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown_tool")
    assert await client.get("/approvals") == before
    assert (len(await client.turns(session)), effects) == (1, [])


async def test_a_change_sent_as_one_changes_the_plan_however_it_reads(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, asked = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(planned([deletion(3)]))
    text = "I would much rather have you take away the one that stands behind them"
    answer = (await press(client, session, asked, "amend", message=text)).json()
    assert (answer["acknowledgement"]["verdict"], answer["plan"]["status"]) == ("amend", "waiting")
    assert (answer["plan"]["steps"][0]["args"], effects) == ({"item_id": "itm-3"}, [])
    said = (await client.messages(session))[-2]
    plan = {"plan_id": asked["plan"]["id"], "plan_version": asked["plan"]["version"]}
    assert (said["content"], said["metadata"]) == (text, {"decision": "amend", **plan})


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("wrong", [True, False])
async def test_typed_arguments_of_several_plans_are_taken_together_or_not_at_all(
    client: Client, provider: Provider, effects: list[str], *, wrong: bool
) -> None:
    sessions = []
    for number in (1, 2):
        provider.will(calls(("mcp_delete_item", {"item_id": f"itm-{number}"})))
        sessions.append(await client.new_session())
        await client.chat(sessions[-1], f"Delete itm-{number}")
    waiting = (await client.get("/approvals"))["items"]
    items: list[dict[str, Any]] = [
        {"session_id": each["session_id"], "version": each["version"], "decision": "confirm"} for each in waiting
    ]
    items[0]["args"] = {"item_id": "itm-8"}
    items[1]["args"] = {"item_id": 9} if wrong else {"item_id": "itm-9"}
    if not wrong:
        provider.will(says("Gone."), says("Gone."))
    response = await client.http.post("/approvals/decisions", json={"items": items})
    if wrong:
        assert (response.status_code, response.json()["session_id"]) == (422, items[1]["session_id"])
        assert (await client.get("/approvals"))["items"] == waiting
    else:
        for session in sessions:
            await client.ended(session, 2)
    assert sorted(effects) == ([] if wrong else ["delete itm-8", "delete itm-9"])
