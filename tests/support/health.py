"""Tools of the shelf as tests of their health use them: called by a scripted model, looked at over HTTP."""

import json
from typing import Any

from starlette.responses import Response

from segue.config import Settings
from tests.support.provider import Provider, calls, says
from tests.support.service import Client
from tests.support.shelf import Shelf

MOODY = "mcp_moody"
QUESTION = "How many words would you say there are altogether on the shelf in the hall downstairs?"
DEPENDS_ON = {"dependent_tool": [{"type": "any", "tools": ["base_tool"], "optional": ["find_items"]}]}


def connect(settings: Settings, shelf: Shelf, **options: object) -> None:
    """The shelf in `mcp.json`, its dependent tool depending."""
    server = {"url": shelf.url, "depends_on": DEPENDS_ON, **options}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": server}}))


async def called(client: Client, provider: Provider, session: str, *wanted: tuple[str, dict[str, Any]]) -> list[Any]:
    """The ledger entries of a turn whose model calls these tools at once."""
    provider.will(calls(*wanted), says("ok"))
    made: list[Any] = (await client.chat(session, QUESTION))["tool_calls"]
    return made


async def uses(client: Client, provider: Provider, session: str, word: str = "x") -> str:
    """Calls the moody tool in a turn of its own, and gives what came of it."""
    [call] = await called(client, provider, session, (MOODY, {"word": word}))
    return str(call["status"])


async def fails_out(client: Client, provider: Provider, shelf: Shelf, session: str | None = None) -> str:
    """A session in which the moody tool has just failed three times in a row, in one turn."""
    session = session or await client.new_session()
    trouble, shelf.trouble = shelf.trouble, "the shelf is closed"
    made = await called(client, provider, session, *((MOODY, {"word": word}) for word in "xyz"))
    assert [call["status"] for call in made] == ["failed"] * 3
    shelf.trouble = trouble
    assert (await state(client, session))["status"] == "failed"
    return session


async def fails_for_all(client: Client, provider: Provider, shelf: Shelf) -> None:
    """The moody tool fails out in three sessions."""
    for _ in range(3):
        await fails_out(client, provider, shelf)


async def states(client: Client, session: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]
    return found


async def state(client: Client, session: str, tool: str = MOODY) -> dict[str, Any]:
    found: dict[str, Any] = (await states(client, session))[tool]
    return found


async def put(client: Client, session: str, tool: str, status: str, **more: object) -> dict[str, Any]:
    response = await client.http.put(f"/sessions/{session}/tool-states/{tool}", json={"status": status, **more})
    assert response.status_code == 200, response.text
    after: dict[str, Any] = response.json()
    return after


async def reset(client: Client, session: str, **body: object) -> dict[str, Any]:
    response = await client.http.post(f"/sessions/{session}/tool-states/reset", json=body)
    assert response.status_code == 200, response.text
    after: dict[str, Any] = response.json()["tool_states"]
    return after


async def history(client: Client, session: str, **query: Any) -> list[tuple[str, str, str, str | None]]:
    """Tool, before, after and why of each change, newest first."""
    items = (await client.get(f"/sessions/{session}/tool-states/history", **query))["items"]
    return [(change["tool"], change["from"], change["to"], change["reason_code"]) for change in items]


def offered(provider: Provider, request: int = -1) -> set[str]:
    """The names of the tools a request gave the model."""
    return {tool["function"]["name"] for tool in provider.requests[request].get("tools", ())}


def obedient(*wanted: tuple[str, dict[str, Any]]) -> Any:
    """A model that calls these tools when a user speaks, and answers when it has their results."""

    async def reply(body: dict[str, Any]) -> Response:
        return calls(*wanted) if body["messages"][-1]["role"] == "user" else says("done")

    return reply
