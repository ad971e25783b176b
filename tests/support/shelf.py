"""An MCP server in the test's own process, over real HTTP, whose effects a test can count."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from tests.support.server import serving

READS = ToolAnnotations(read_only_hint=True)
DESTROYS = ToolAnnotations(destructive_hint=True)


@dataclass(slots=True)
class Shelf:
    """`effects` is what its tools did, in order. `look_up` and `stamp_item` answer once `go` is set."""

    url: str = ""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    effects: list[str] = field(default_factory=list)


@asynccontextmanager
async def serving_shelf() -> AsyncIterator[Shelf]:
    shelf = Shelf()
    async with serving(_server(shelf).streamable_http_app()) as url:
        shelf.url = f"{url}/mcp"
        yield shelf


def _server(shelf: Shelf) -> MCPServer:
    server = MCPServer("shelf", log_level="CRITICAL")

    @server.tool(annotations=READS)
    def find_items(query: str) -> dict[str, object]:
        """Find items by a word."""
        return {"items": [{"id": f"itm-{number}", "name": f"{query} {number}"} for number in (1, 2, 3)]}

    @server.tool(annotations=READS)
    def get_item(item_id: str) -> dict[str, str]:
        """Get one item by its id."""
        shelf.effects.append(f"get {item_id}")
        return {"id": item_id, "text": f"the text of {item_id}"}

    @server.tool(annotations=DESTROYS)
    def delete_item(item_id: str) -> dict[str, str]:
        """Delete an item for good."""
        shelf.effects.append(f"delete {item_id}")
        return {"deleted": item_id}

    @server.tool(annotations=DESTROYS)
    async def burn_item(item_id: str) -> str:
        """Burn an item; takes for ever to say so."""
        shelf.effects.append(f"burn {item_id}")
        await asyncio.Event().wait()
        return "burnt"

    @server.tool(annotations=READS)
    async def look_up(item_id: str) -> dict[str, str]:
        """Look an item up in the cellar."""
        shelf.effects.append(f"look {item_id}")
        await shelf.go.wait()
        return {"id": item_id, "text": f"{item_id} is in the cellar"}

    @server.tool(annotations=DESTROYS)
    async def stamp_item(item_id: str) -> dict[str, str]:
        """Stamp an item."""
        shelf.effects.append(f"stamp {item_id}")
        await shelf.go.wait()
        return {"stamped": item_id}

    @server.tool(annotations=DESTROYS)
    def send_note(to: str, text: str) -> dict[str, str]:
        """Send a note to somebody."""
        shelf.effects.append(f"send {to}: {text}")
        return {"status": "sent"}

    @server.tool(annotations=READS)
    def broken(item_id: str) -> str:
        """Always fails."""
        raise ToolError(f"the shelf of {item_id} is closed")

    return server
