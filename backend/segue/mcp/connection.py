"""Opens one connection to an MCP server, over stdio or streamable HTTP, as the SDK's client.

Says why a connection ended in words of its own; who holds a connection and opens the next is not known here. What
comes in is filtered, since the SDK refuses a whole tool list for one malformed entry.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import Client, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND, Implementation, JSONRPCResponse, PaginatedRequestParams
from mcp_types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from segue.mcp.budget import MESSAGE_LIMIT_BYTES, Budget, McpServerGone
from segue.mcp.config import McpServerConfig
from segue.mcp.large_answers import light_body
from segue.mcp.packing import MAX_TOOLS
from segue.mcp.stdio import Incoming, stdio_transport
from segue.mcp.tool_mapping import without_broken_tools
from segue.net.addresses import NoSuchHost, NotPublic, allowed_for_operator
from segue.net.http_client import checked_client

_CLIENT_INFO: Final = Implementation(name="segue", version="0.1.0")
_HTTP_ERROR: Final = 400
# A stream may be silent for hours, so reading has no limit of its own: calls and handshakes have theirs.
_HTTP_TIMEOUT: Final = httpx2.Timeout(10.0, read=None)
_GOODBYE_S: Final = 1.0
_MAX_PAGES: Final = 50
_GET_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 500
_LINE_BYTES: Final = 20


def open_client(server: str, config: McpServerConfig, on_notification: MessageHandlerFnT) -> Client:
    """Returns a client; entering it connects and shakes hands, with no time limit of its own."""
    return Client(_filtered(server, config), cache=None, message_handler=on_notification, client_info=_CLIENT_INFO)


def must_listen(client: Client) -> bool:
    """Whether the server announces changes of its tools only to clients that listen, as since 2026-07-28."""
    offered = client.server_capabilities.tools
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and bool(offered and offered.list_changed)


async def list_tools(client: Client) -> list[McpTool]:
    """Returns the tools of all pages, at most MAX_TOOLS, and none for a server without tools.

    Raises MCPError and ValidationError.
    """
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
async def _filtered(server: str, config: McpServerConfig) -> AsyncIterator[tuple["_Filter", "_Outgoing"]]:
    budget = Budget()
    transport = stdio_transport(server, config, budget) if config.url is None else _http(config, config.url, budget)
    async with transport as (incoming, outgoing), anyio.create_task_group() as watching:
        watching.start_soon(budget.watch)
        yield _Filter(server, incoming, budget), _Outgoing(outgoing, budget)
        watching.cancel_scope.cancel()


@asynccontextmanager
async def _http(config: McpServerConfig, url: str, budget: Budget) -> AsyncIterator[tuple[Any, Any]]:
    status = 0

    async def check(response: httpx2.Response) -> None:
        nonlocal status
        status = response.status_code
        if response.headers.get("content-encoding", "identity").lower() not in {"", "identity"}:
            raise McpServerGone("it compresses its answers, though it was asked not to")
        if response.request.method == "GET":
            budget.read(_GET_BYTES)
        response.encoding = "utf-8"  # the only one of MCP: decoding a long "punycode" takes hours
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _Metered(cast(httpx2.AsyncByteStream, response.stream), budget, is_stream=is_stream)

    async def limit(request: httpx2.Request) -> None:
        if request.method == "DELETE":  # the goodbye, before the next connection is opened
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(_GOODBYE_S).as_dict()}

    client = checked_client(
        is_allowed=allowed_for_operator(httpx2.URL(url).host, allow_private=config.allow_private),
        headers={name: value.get_secret_value() for name, value in config.headers.items()}
        | {"Accept-Encoding": "identity"},
        timeout=_HTTP_TIMEOUT,
        max_body_bytes=MESSAGE_LIMIT_BYTES,
        keep_cookies=True,  # a load balancer may tell its servers apart by them
    )
    client.event_hooks = {"request": [limit], "response": [check]}
    try:
        async with (
            client,
            streamable_http_client(url, http_client=client, max_sse_event_size=MESSAGE_LIMIT_BYTES) as streams,
        ):
            yield streams
    except* MCPError:
        if status < _HTTP_ERROR:
            raise
        # The SDK says "Server returned an error response": 401 or 503 is what a person needs to know.
        raise McpServerGone(f"it answered HTTP {status}") from None


class _Metered(httpx2.AsyncByteStream):
    """A body whose every chunk and line costs more than its bytes: they are what reading it takes. It comes light."""

    def __init__(self, stream: httpx2.AsyncByteStream, budget: Budget, *, is_stream: bool) -> None:
        self._stream = stream
        self._budget = budget
        self._is_stream = is_stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return light_body(self._metered(), is_stream=self._is_stream)

    async def _metered(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            lines = chunk.count(b"\n") + chunk.count(b"\r")
            self._budget.read(len(chunk) + _CHUNK_BYTES + _LINE_BYTES * lines)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Outgoing(ObjectSendStream[SessionMessage]):
    def __init__(self, stream: Any, budget: Budget) -> None:
        self._stream = stream
        self._budget = budget

    async def send(self, item: SessionMessage) -> None:
        self._budget.asks(item.message)
        await self._stream.send(item)
        self._budget.sent(item.message)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Filter(ObjectReceiveStream[Incoming]):
    """The messages of a stream, without the tools that the SDK would refuse."""

    def __init__(self, server: str, stream: Any, budget: Budget) -> None:
        self._server = server
        self._stream = stream
        self._budget = budget

    @property
    def last_context(self) -> object:
        """The sender's context variables, which the SDK looks for on a stream."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        item: Incoming = await self._stream.receive()
        self._budget.heard(item)
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            item.message.result = without_broken_tools(self._server, item.message.result)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()


def reason_of(error: Exception) -> str:  # noqa: PLR0911 (one line per way to end)
    """Returns why a connection ended, in our own words: a server's could carry anything, also a secret."""
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
