"""What stands in a request to the model can be seen, part by part: before it is made and after."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from segue.agent.prompts import TEXTS, notes_and_message
from segue.config import Settings
from segue.memory.history_window import estimate
from tests.support.identity import new_key, speaking
from tests.support.plans import ASK, planned
from tests.support.provider import Provider, calls, fails, says
from tests.support.results import use_toolbox
from tests.support.service import Client, running
from tests.support.stores import looking_into

ECHO = ("echo", {"text": "canary", "id": "eml-1a2b3c"})
SUMMARISED = """
UPDATE sessions SET summary = 'canary: the user likes tea', summary_references = '["canary-reference"]' WHERE id = $1
"""


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    use_toolbox(settings)
    async with running(settings) as served:
        yield served


def tokens(prompt: dict[str, Any]) -> dict[str, int]:
    assert prompt["tokens"] == sum(part["tokens"] for part in prompt["parts"])
    return {part["part"]: part["tokens"] for part in prompt["parts"]}


async def last_prompt(client: Client, session: str) -> Any:
    return (await client.turns(session))[-1]["prompt"]


async def test_the_next_request_is_made_of_the_parts_that_were_shown_before_it_and_of_the_message(
    client: Client, provider: Provider, settings: Settings
) -> None:
    session = await client.new_session()
    provider.will(calls(ECHO), says("canary: here."), says("canary: once more."))
    await client.chat(session, "Look up canary")
    async with looking_into(settings) as stores:
        await stores.database.execute(SUMMARISED, session)
    path = f"/sessions/{session}/prompt"
    shown = await client.get(path)
    assert "canary" not in json.dumps(shown)
    texts = {each["part"]: each["text"] for each in (await client.get(path, include="text"))["parts"]}
    assert (texts["instructions"], "likes tea" in texts["summary"]) == (TEXTS["system"], True)
    assert json.loads(texts["messages"])[0] == {"role": "user", "content": "Look up canary"}
    assert "echo" in [each["name"] for each in json.loads(texts["tools"])]
    assert [part["part"] for part in shown["parts"] if part["cacheable"]] == [
        "tools",
        "instructions",
        "summary",
        "references",
        "messages",
    ]
    await client.chat(session, "And again")
    asked = await last_prompt(client, session)
    assert [part["part"] for part in asked["parts"] if not part["cacheable"]] == ["notes", "message"]
    assert tokens(asked) == tokens(shown) | {"message": estimate("And again")}

    request = provider.requests[-1]
    system, last = request["messages"][0]["content"], request["messages"][-1]["content"]
    of_system = [tokens(asked)[part] for part in ("instructions", "summary", "references")]
    assert of_system[0] == estimate(TEXTS["system"])
    assert sum(of_system) == pytest.approx(estimate(system), abs=3)
    assert tokens(asked)["notes"] == estimate(notes_and_message(last)[0])


async def test_what_a_turn_adds_to_its_own_request_is_a_part_of_it(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    provider.will(calls(("big", {"n_bytes": 9000})), says("Much."), says("Done."))
    await client.chat(session, "Show me all")
    looped = tokens(await last_prompt(client, session))
    assert list(looped) == ["tools", "instructions", "notes", "message", "turn"]
    assert looped["turn"] > 1000
    await client.chat(session, "And the rest?")
    later = await last_prompt(client, session)
    assert list(tokens(later)) == ["tools", "instructions", "messages", "notes", "message"]


async def test_a_turn_that_asked_nothing_or_failed_shows_no_request(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    provider.will(fails(400))
    assert (await client.send(session, "Hello")).status_code == 502
    assert await last_prompt(client, session) is None
    kept = {"description": "Keep", "tool": "echo", "args": ECHO[1], "requires_confirmation": True}
    provider.will(planned([{"id": number, **kept} for number in (1, 2)]))
    assert (await client.chat(session, ASK))["plan"]["status"] == "waiting"
    assert "turn" in tokens(await last_prompt(client, session))  # the planner's instruction
    await client.chat(session, "no")
    assert await last_prompt(client, session) is None


async def test_a_session_is_seen_by_its_owner_and_by_ops_alone(settings: Settings) -> None:
    settings = settings.model_copy(update={"auth": "api_key", "openai_base_url": None})
    async with running(settings) as service:
        keys = {name: await new_key(settings, name) for name in ("ada", "eve")}
        keys["op"] = await new_key(settings, "op", ["ops"])
        keys["reader"] = await new_key(settings, "reader", ["ops", "ops:content"])
        async with speaking(service, keys["ada"]) as ada:
            path = f"/sessions/{await ada.new_session()}/prompt"
            mine = await ada.get(path)
        async with speaking(service, keys["eve"]) as eve, speaking(service, keys["op"]) as op:
            assert (await eve.http.get(path)).json()["code"] == "session_not_found"
            assert tokens(await op.get(path)) == tokens(mine)
            words = await op.http.get(path, params={"include": "text"})
            assert (words.status_code, words.json()["code"]) == (403, "forbidden")
            assert (await eve.http.get(path, params={"include": "text"})).status_code == 404
        async with speaking(service, keys["reader"]) as reader:
            read = await reader.get(path, include="text")
            assert any((part["text"] or "").startswith("You are Segue") for part in read["parts"])
            [act, *_] = (await reader.get("/ops/audit"))["items"]
        assert (act["action"], act["actor"]) == ("read_session", "reader")
