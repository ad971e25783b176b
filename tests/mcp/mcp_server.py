"""A small MCP server for the tests, on the SDK: `stdio`, or `http PORT` (0 picks one and prints it)."""

import asyncio
import base64
import os
import signal
import socket
import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations

server = MCPServer("ours", log_level="CRITICAL")
cancelled: list[str] = []
cancelling = asyncio.Condition()
stay = asyncio.Event()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    return a + b


@server.tool(annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True))
def delete_all() -> str:
    return "deleted"


@server.tool()
def find(query: str) -> dict[str, Any]:
    return {"query": query, "emails": [{"id": "eml-0a1b2c"}]}


@server.tool(structured_output=False)
def json_text() -> str:
    return '{"emails": [{"id": "eml-0a1b2c"}]}'


@server.tool(structured_output=False)
def blocks() -> CallToolResult:
    picture = base64.b64encode(b"x" * 1000).decode()
    image = ImageContent(type="image", data=picture, mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="a cat"), image])


@server.tool()
def refuse() -> str:
    raise ToolError("the mailbox is locked")


@server.tool()
async def hang(note: str) -> str:
    """Returns once this process, which it names on stderr, gets SIGUSR1."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stay.set)
    sys.stderr.write(f"hangs in {os.getpid()}\n")
    sys.stderr.flush()
    try:
        await stay.wait()
    except asyncio.CancelledError:
        cancelled.append(note)
        with anyio.CancelScope(shield=True):
            async with cancelling:
                cancelling.notify_all()
        raise
    return note


@server.tool()
async def wait_until_cancelled(note: str) -> list[str]:
    """Returns the notes of all calls that were cancelled, once this one was."""
    async with cancelling:
        await cancelling.wait_for(lambda: note in cancelled)
    return cancelled


@server.tool()
def die() -> str:
    os._exit(3)


@server.tool()
def big(size: int) -> str:
    return "x" * size


@server.tool()
def chatter() -> str:
    sys.stderr.write("noise\n" * 200_000)
    return "said"


@server.tool()
def secret() -> str:
    return os.environ.get("SECRET", "")


@server.tool()
async def learn(context: Context[Any]) -> str:
    server.add_tool(find, name="learned")
    await context.notify_tools_changed()
    return "learned"


def serve_http(port: int) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    print(listener.getsockname()[1], flush=True)  # noqa: T201 (how the test learns the port)
    app = server.streamable_http_app(host="127.0.0.1")
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stdio"]:
            server.run()
        case ["http", port]:
            serve_http(int(port))
