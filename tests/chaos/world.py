"""What the service meets: a model that answers by rule, and tools that count their effects outside of it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

from mcp.server.mcpserver import MCPServer
from sqlalchemy import make_url
from starlette.responses import Response

from segue.agent.prompts import in_own_words
from tests.chaos.ledger import Ledger
from tests.support.provider import Provider, calls, says
from tests.support.proxy import Proxy, proxied
from tests.support.server import serving
from tests.support.shelf import DESTROYS, READS, WRITES

ASKED = re.compile(r"(\w+) ([wh]\d+x)")
HEARD = re.compile(r"\bh\d+x\b")  # words of those who keep a history: the model tells which it has heard
PLAN = "Look at {0}, then delete {0}, after that write a note and finally carry {0}"
CALLED = {
    "look": ("look",),
    "stamp": ("stamp",),
    "carry": ("carry",),
    "delete": ("delete",),
    "handle": ("look", "stamp"),
    "clear": ("delete", "delete"),
}
LONGEST_WORK_S = 3.0


def answers_by_rule(provider: Provider, random: Random) -> None:
    """The last message of the user says which tools are called, once; then, or without any, its word is repeated."""

    async def reply(body: dict[str, Any]) -> Response:
        for heard in (provider.requests, provider.headers, provider.summaries):
            heard.clear()  # of an hour they would be gigabytes
        await asyncio.sleep(random.choice((0, 0, 0.02, 0.2)))
        return _reply(body)

    provider.always("", reply)
    provider.summary = says("They talked about things.")


def _reply(body: dict[str, Any]) -> Response:
    messages = body["messages"]
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    asked = ASKED.search(in_own_words(str(messages[last]["content"])))
    said = [in_own_words(str(message["content"])) for message in messages if message["role"] == "user"]
    heard = HEARD.findall(" ".join(said))
    match (body.get("response_format") or {}).get("json_schema", {}).get("name"):
        case "plan":
            return says(json.dumps({"steps": _steps(asked[2]) if asked else []}))
        case "reading":
            return says('{"verdict": "none"}')
        case "facts":
            return says('{"facts": []}')
    told = f"Heard: {' '.join(heard)}." if heard else None
    tools = CALLED.get(asked[1].lower(), ()) if asked else ()
    if asked is None:
        return says(told or "As you wish.")
    if not tools or any(message["role"] == "tool" for message in messages[last:]):
        return says(told or f"That is what there is to say about {asked[2]} for now.")
    things = (asked[2], f"{asked[2]}-too")  # a tool that is called twice has two things
    wanted = [(f"mcp_{tool}", {"thing": things[tools[:at].count(tool)]}) for at, tool in enumerate(tools)]
    return calls(*wanted, text=told)


def _steps(word: str) -> list[dict[str, Any]]:
    tools = ("look", "delete", None, "carry")
    return [
        {"id": number, "description": tool or "Write", "tool": tool and f"mcp_{tool}", "args": tool and {"thing": word}}
        for number, tool in enumerate(tools, 1)
    ]


class Tools:
    """An MCP server at one address, however often it is started again."""

    def __init__(self, ledger: Ledger, random: Random, door: Proxy) -> None:
        self._ledger = ledger
        self._random = random
        self._door = door
        self._running = AsyncExitStack()
        self.url = f"http://127.0.0.1:{door.port}/mcp"

    async def start(self) -> None:
        url = await self._running.enter_async_context(serving(self._server().streamable_http_app()))
        port = make_url(url).port
        assert port is not None
        self._door.lead_to(port)
        await self._door.open()

    async def stop(self) -> None:
        await self._door.begin("hangs_up")
        await self._running.aclose()

    def _server(self) -> MCPServer:
        server = MCPServer("chaos", log_level="CRITICAL")

        @server.tool(annotations=READS)
        def look(thing: str) -> dict[str, str]:
            """Look at a thing."""
            self._ledger.effects[f"look {thing}"] += 1
            return {"thing": thing, "text": f"{thing} is green"}

        @server.tool(annotations=WRITES)
        def stamp(thing: str) -> dict[str, str]:
            """Stamp a thing."""
            self._ledger.effects[f"stamp {thing}"] += 1
            return {"stamped": thing}

        @server.tool(annotations=WRITES)
        async def carry(thing: str) -> dict[str, str]:
            """Carry a thing; takes a while."""
            self._ledger.effects[f"carry {thing}"] += 1
            await asyncio.sleep(self._random.uniform(0, LONGEST_WORK_S))
            return {"carried": thing}

        @server.tool(annotations=DESTROYS)
        def delete(thing: str) -> dict[str, str]:
            """Delete a thing for good."""
            self._ledger.effects[f"delete {thing}"] += 1
            return {"deleted": thing}

        return server


@asynccontextmanager
async def tools_served(ledger: Ledger, random: Random) -> AsyncIterator[Tools]:
    async with proxied(0) as door:
        tools = Tools(ledger, random, door)
        await tools.start()
        try:
            yield tools
        finally:
            await tools.stop()
