"""Tool results as tests make and read them, with the tools of `toolbox.py`."""

import json
from typing import Any

import orjson

from segue.config import Settings
from segue.models.untrusted import unfenced
from tests.support.commands import ROOT
from tests.support.provider import Provider, calls, says
from tests.support.service import Client

TOOLBOX = str(ROOT / "tests" / "support" / "toolbox.py")

Call = dict[str, Any]


def use_toolbox(settings: Settings, **options: object) -> None:
    server = {"command": "python", "args": [TOOLBOX], "prefix": "", **options}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"toolbox": server}}))


async def ran(client: Client, provider: Provider, session: str, *wanted: tuple[str, dict[str, Any]]) -> list[Call]:
    """The ledger entries of a turn that makes these calls at once."""
    provider.will(calls(*wanted), says("done"))
    answer = await client.chat(session, "Please do that.")
    made: list[Call] = answer["tool_calls"]
    return made


async def listed(client: Client, session: str, **filters: Any) -> list[Call]:
    page = await client.get(f"/sessions/{session}/tool-results", **filters)
    items: list[Call] = page["items"]
    return items


async def loaded(client: Client, session: str, call: Call, **part: Any) -> dict[str, Any]:
    response = await client.http.get(f"/sessions/{session}/tool-results/{call['tool_call_id']}", params=part)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def problem(client: Client, session: str, tool_call_id: str, **part: Any) -> tuple[int, str, str]:
    response = await client.http.get(f"/sessions/{session}/tool-results/{tool_call_id}", params=part)
    said = response.json()
    return response.status_code, said["code"], said["detail"]


def last_result(request: dict[str, Any]) -> Any:
    """What the model was told at the end of a request."""
    message = request["messages"][-1]
    assert message["role"] == "tool"
    return orjson.loads(unfenced(message["content"]))
