"""One way to an MCP server, stdio or streamable HTTP, as the SDK's client.

Knows how to open a connection and how to say why one ended; who holds it, and when it is opened again, is
`servers.py`'s. What comes in passes a sieve, since the SDK refuses a whole tool list for one malformed entry.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import httpx2
import structlog
from mcp import Client, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND, Implementation, JSONRPCResponse, PaginatedRequestParams
from mcp_types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from segue.mcp.config import McpServerConfig
from segue.mcp.http import checked_client, reach_of
from segue.mcp.mapping import MAX_TOOLS, without_broken_tools
from segue.mcp.stdio import MESSAGE_LIMIT_BYTES, Incoming, McpServerGone, StdioCommand, stdio_transport
from segue.net.addresses import NoSuchHost, NotPublic

_CLIENT_INFO = Implementation(name="segue", version="0.1.0")
_HTTP_ERROR = 400
_MAX_PAGES = 50

Streams = tuple[ReadStream[Incoming], WriteStream[SessionMessage]]

log = structlog.get_logger()


def open_client(server: str, config: McpServerConfig, on_notification: MessageHandlerFnT) -> Client:
    """A client to enter; entering connects and shakes hands, with no time limit of its own."""
    return Client(_sieved(server, config), cache=None, message_handler=on_notification, client_info=_CLIENT_INFO)


def must_listen(client: Client) -> bool:
    """Whether changes of the tool list come only to those who ask, as since 2026-07-28."""
    offered = client.server_capabilities.tools
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and bool(offered and offered.list_changed)


async def list_tools(client: Client) -> list[McpTool]:
    """All pages, at most 200 tools; a server that knows no tools has none. Raises MCPError, ValidationError."""
    listed: list[McpTool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        try:
            page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return []
            raise
        listed += page.tools
        cursor = page.next_cursor
        if not cursor or len(listed) >= MAX_TOOLS:
            break
    return listed[:MAX_TOOLS]


@asynccontextmanager
async def _sieved(server: str, config: McpServerConfig) -> AsyncIterator[Streams]:
    transport = _stdio(server, config) if config.url is None else _http(config, config.url)
    async with transport as (incoming, outgoing):
        yield _Sieve(server, incoming), outgoing


@asynccontextmanager
async def _stdio(server: str, config: McpServerConfig) -> AsyncIterator[Streams]:
    env = {name: value.get_secret_value() for name, value in config.env.items()}
    command = StdioCommand(config.command or "", config.args, env, config.cwd)

    def log_stderr(text: str) -> None:
        for secret in filter(None, env.values()):
            text = text.replace(secret, "***")
        log.debug("mcp_server_stderr", server=server, text=text)

    async with stdio_transport(command, log_stderr) as streams:
        yield streams


@asynccontextmanager
async def _http(config: McpServerConfig, url: str) -> AsyncIterator[Streams]:
    status = 0

    async def note_status(response: httpx2.Response) -> None:
        nonlocal status
        status = response.status_code

    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    is_allowed = reach_of(httpx2.URL(url).host, allow_private=config.allow_private)
    try:
        async with (
            checked_client(headers, is_allowed=is_allowed, on_response=note_status) as http,
            streamable_http_client(url, http_client=http, max_sse_event_size=MESSAGE_LIMIT_BYTES) as streams,
        ):
            yield streams
    except* MCPError:
        if status < _HTTP_ERROR:
            raise
        # The SDK says "Server returned an error response": 401 or 503 is what a person needs to know.
        raise McpServerGone(f"it answered HTTP {status}") from None


class _Sieve:
    def __init__(self, server: str, stream: ReadStream[Incoming]) -> None:
        self._server = server
        self._stream = stream

    @property
    def last_context(self) -> object:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        return self._passed(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        return self._passed(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)

    def _passed(self, item: Incoming) -> Incoming:
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            item.message.result = without_broken_tools(self._server, item.message.result)
        return item


def reason_of(error: Exception) -> str:  # noqa: PLR0911 (one line per way to end)
    """Why a connection ended, in words of ours: a server's own words could carry anything, also a secret."""
    causes = _causes(error)
    cause = next((cause for cause in causes if isinstance(cause, McpServerGone)), causes[0])
    match cause:
        case McpServerGone():
            return str(cause)
        case NotPublic():
            return 'its host is a private address; if that is meant, set "allow_private": true for it in mcp.json'
        case NoSuchHost():
            return "there is no host of its name"
        case TimeoutError():
            return "it did not answer in time"
        case httpx2.HTTPError() | OSError():
            return f"it cannot be reached ({type(cause).__name__})"
        case MCPError():
            return f"it refused with MCP error {cause.code}"
        case _:
            return f"it does not speak MCP as expected ({type(cause).__name__})"


def _causes(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [cause for member in error.exceptions for cause in _causes(member)]
