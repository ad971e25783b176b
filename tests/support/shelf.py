"""An MCP server in the test's own process, over real HTTP, whose effects a test can count."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from tests.support.mcp_tools import Tools
from tests.support.patience import PATIENCE_S
from tests.support.server import serving

READS = ToolAnnotations(read_only_hint=True)
WRITES = ToolAnnotations(destructive_hint=False)
DESTROYS = ToolAnnotations(destructive_hint=True)
REPEATABLE = ToolAnnotations(destructive_hint=True, idempotent_hint=True)


@dataclass(slots=True)
class Shelf:
    """`effects` is what its tools did, in order. `look_up`, `stamp_item` and `paint_item` answer once `go` is set;
    `moody` once `open` is, with `trouble` where there is any; `sleepy` once `awake` is. `texts` are what items say, and
    `posted` has by the key of a call how often the item of it came.
    """

    url: str = ""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    effects: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    posted: dict[str, list[str]] = field(default_factory=dict)
    trouble: str | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def wait_for_effects(self, count: int) -> None:
        async with self.entered, asyncio.timeout(PATIENCE_S):
            await self.entered.wait_for(lambda: len(self.effects) >= count)

    async def wait_for(self, *effects: str) -> None:
        """Returns once all of these have happened."""
        async with self.entered, asyncio.timeout(PATIENCE_S):
            await self.entered.wait_for(lambda: set(effects) <= set(self.effects))

    async def happened(self, effect: str) -> None:
        async with self.entered:
            self.effects.append(effect)
            self.entered.notify_all()


@asynccontextmanager
async def serving_shelf() -> AsyncIterator[Shelf]:
    shelf = Shelf()
    shelf.open.set()
    async with serving(_server(shelf).streamable_http_app()) as url:
        shelf.url = f"{url}/mcp"
        yield shelf


def _server(shelf: Shelf) -> MCPServer:
    tools = Tools()
    _add_items(tools, shelf)
    _add_slow(tools, shelf)
    _add_moods(tools, shelf)
    return MCPServer("shelf", log_level="CRITICAL", tools=tools.listed)


def _add_items(tools: Tools, shelf: Shelf) -> None:
    @tools.tool(annotations=READS)
    def find_items(query: str) -> dict[str, object]:
        """Find items by a word."""
        return {"items": [{"id": f"itm-{number}", "name": f"{query} {number}"} for number in (1, 2, 3)]}

    @tools.tool(annotations=READS)
    async def get_item(item_id: str) -> dict[str, str]:
        """Get one item by its id."""
        await shelf.happened(f"get {item_id}")
        return {"id": item_id, "text": shelf.texts.get(item_id, f"the text of {item_id}")}

    @tools.tool(annotations=DESTROYS)
    async def delete_item(item_id: str) -> dict[str, str]:
        """Delete an item for good."""
        await shelf.happened(f"delete {item_id}")
        return {"deleted": item_id}

    @tools.tool(annotations=DESTROYS)
    async def burn_item(item_id: str) -> str:
        """Burn an item; takes for ever to say so."""
        await shelf.happened(f"burn {item_id}")
        await asyncio.Event().wait()
        return "burnt"

    @tools.tool(annotations=DESTROYS)
    async def send_note(to: str, text: str) -> dict[str, str]:
        """Send a note to somebody."""
        await shelf.happened(f"send {to}: {text}")
        return {"status": "sent"}

    @tools.tool(title="Metti da parte", annotations=WRITES)
    async def set_aside(item_id: str) -> dict[str, str]:
        """Put an item aside, where it is found again."""
        await shelf.happened(f"set aside {item_id}")
        return {"status": "set aside"}

    @tools.tool(annotations=READS)
    async def relabel(description: str, context: Context[Any]) -> str:
        """Describe delete_item otherwise from now on."""
        context.mcp_server.remove_tool("delete_item")
        context.mcp_server.add_tool(delete_item, annotations=DESTROYS, description=description)
        await context.notify_tools_changed()
        return "done"

    @tools.tool(annotations=READS)
    def broken(item_id: str) -> str:
        """Always fails."""
        raise ToolError(f"the shelf of {item_id} is closed")


def _add_slow(tools: Tools, shelf: Shelf) -> None:
    """Tools that answer when a test says so."""

    @tools.tool(annotations=READS)
    async def look_up(item_id: str) -> dict[str, str]:
        """Look an item up in the cellar."""
        await shelf.happened(f"look {item_id}")
        await shelf.go.wait()
        return {"id": item_id, "text": f"{item_id} is in the cellar"}

    @tools.tool(annotations=DESTROYS)
    async def stamp_item(item_id: str) -> dict[str, str]:
        """Stamp an item."""
        await shelf.happened(f"stamp {item_id}")
        await shelf.go.wait()
        return {"stamped": item_id}

    @tools.tool(annotations=REPEATABLE)
    async def paint_item(item_id: str) -> dict[str, str]:
        """Paint an item; twice is as good as once."""
        await shelf.happened(f"paint {item_id}")
        await shelf.go.wait()
        return {"painted": item_id}

    check = {"tool": "engraving_of", "args": {"item_id": "item_id"}, "done": "engraved", "not_done": "!engraved"}

    @tools.tool(annotations=DESTROYS, meta={"segue/verify": check})
    async def engrave_item(item_id: str) -> str:
        """Engrave an item, unless it is blank; takes for ever to say so."""
        await shelf.happened(f"{'ponder' if 'blank' in item_id else 'engrave'} {item_id}")
        await asyncio.Event().wait()
        return "engraved"

    @tools.tool(annotations=READS)
    async def engraving_of(item_id: str) -> dict[str, object]:
        """Say whether an item is engraved."""
        await shelf.happened(f"check {item_id}")
        return {"id": item_id, "engraved": f"engrave {item_id}" in shelf.effects}

    @tools.tool(annotations=DESTROYS, meta={"segue/idempotency_arg": "key"})
    async def post_item(item_id: str, key: str) -> dict[str, str]:
        """Post an item, once for each key."""
        shelf.posted.setdefault(key, []).append(item_id)
        await shelf.happened(f"post {item_id}")
        await shelf.go.wait()
        return {"posted": item_id}


def _add_moods(tools: Tools, shelf: Shelf) -> None:
    """Tools that depend on each other where a test configures it, and such as fail where it says so."""

    @tools.tool(annotations=READS)
    async def base_tool(topic: str) -> dict[str, str]:
        """Look a topic up."""
        await shelf.happened(f"base {topic}")
        return {"topic": topic}

    @tools.tool(annotations=READS)
    async def dependent_tool(topic: str) -> dict[str, str]:
        """Say more of a topic that was looked up."""
        await shelf.happened(f"dependent {topic}")
        return {"more": topic}

    @tools.tool(annotations=READS)
    async def moody(word: str) -> dict[str, str]:
        """Repeat a word, or not."""
        await shelf.happened(f"moody {word}")
        await shelf.open.wait()
        if shelf.trouble:
            raise ToolError(shelf.trouble)
        return {"said": word}

    @tools.tool(annotations=READS)
    async def sleepy(number: int) -> int:
        """Count, when it is awake."""
        await shelf.happened(f"sleepy {number}")
        await shelf.awake.wait()
        return number

    @tools.tool(annotations=DESTROYS)
    async def moody_writer(word: str) -> dict[str, str]:
        """Write a word down, or not."""
        await shelf.happened(f"write {word}")
        await shelf.open.wait()
        if shelf.trouble:
            raise ToolError(shelf.trouble)
        return {"written": word}
