"""Opens one connection to an MCP server as the SDK's client: over stdio, HTTP, or the HTTP of before 2025-03-26 (SSE).
Incoming messages are filtered, because the SDK refuses a whole list for one malformed tool.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import accumulate
from typing import Any, Final, TypeVar, cast

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import Client, MCPError
from mcp.client.session import ElicitationFnT, MessageHandlerFnT
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND, Implementation, JSONRPCResponse, PaginatedRequestParams, PaginatedResult
from mcp_types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from segue import __version__
from segue.log import log
from segue.mcp.budget import MESSAGE_LIMIT_BYTES, Budget, McpServerGone, light_body
from segue.mcp.call_failures import WEB_PAGE, current_delivery, members_of, status_cause
from segue.mcp.large_messages import MAX_LIST_BYTES, MAX_TOOLS
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.stdio import Incoming, Stderr, stdio_transport
from segue.mcp.tool_mapping import readable_result, without_broken_tools
from segue.net.addresses import allowed_for_operator
from segue.net.http_client import checked_client, retry_after_s, tell_trace

_REDIRECT: Final = 300
_MAY_ASK_FOR_REST: Final = (429, 503)
_OF_OLDER_SERVERS: Final = (400, 404, 405)  # to a POST where they only stream
_SIGN_S: Final = 10.0
_MAX_PAGES: Final = 50
_GET_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 500
_LINE_BYTES: Final = 20


@asynccontextmanager
async def sse_transport(url: str, client: httpx2.AsyncClient, budget: Budget) -> AsyncIterator[tuple[Any, Any]]:
    """Enters the client. If the server answers with an error, the budget ends."""

    async def check(response: httpx2.Response) -> None:
        if response.is_error:
            budget.end(status_cause(response.status_code))  # of a POST the SDK only logs the error

    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], check]}

    with anyio.fail_after(10.0) as naming:  # the SDK waits for ever for an address of the same origin
        async with sse_client(url, httpx_client_factory=lambda *_, **__: client) as streams:
            naming.deadline = math.inf
            yield streams


PageOf = TypeVar("PageOf", bound=PaginatedResult)
Listed = TypeVar("Listed")


@asynccontextmanager
async def open_client(
    server: str,
    config: McpServerConfig,
    on_notification: MessageHandlerFnT,
    stderr: Stderr,
    budget: Budget,
    on_elicitation: ElicitationFnT,
    auth: httpx2.Auth | None = None,
    *,
    as_before: bool,
) -> AsyncIterator[Client]:
    """Connects and shakes hands, with no time limit of its own; `as_before` 2026-07-28 if that is so. An HTTP server
    that takes no POST is tried over the transport from before 2025-03-26, unless the configuration names another. A
    child that ends at a question of 2026-07-28, as those made with rmcp do, is started again and asked as before, if
    there is time for as long again.
    """
    began = anyio.current_time()

    def client(*, is_older: bool) -> Client:
        return Client(
            _filtered(server, config, stderr, budget, auth, sse=is_older),
            cache=None,
            message_handler=on_notification,
            elicitation_callback=on_elicitation,
            client_info=Implementation(name="segue", version=__version__),
            mode="legacy" if is_older or as_before else "auto",
        )

    async with AsyncExitStack() as stack:
        try:
            opened = await stack.enter_async_context(client(is_older=config.transport == "sse"))
        except Exception as error:
            statuses = {cause.status for cause in members_of(error) if isinstance(cause, McpServerGone)} - {None}
            may_be_older = not statuses.isdisjoint(_OF_OLDER_SERVERS) if config.url else budget.is_unanswered
            has_time = 2 * anyio.current_time() - began < anyio.current_effective_deadline()
            if config.transport not in (None, "stdio") or not (statuses and may_be_older and has_time):
                raise
            try:
                opened = await stack.enter_async_context(client(is_older=True))
            except Exception:  # noqa: BLE001 (it may be no server at all: what the first try met says more)
                raise error from None
        yield opened


def must_listen(client: Client) -> bool:
    """Whether the server announces changes only to clients that listen, as since 2026-07-28."""
    can = client.server_capabilities
    announces = any(offered and offered.list_changed for offered in (can.tools, can.resources, can.prompts))
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and announces


async def is_alive(client: Client) -> bool:
    """Asks for a sign of life. Returns False if none came in time, or an error that leaves it in doubt."""
    version = client.protocol_version
    with anyio.move_on_after(_SIGN_S):
        try:
            if version in MODERN_PROTOCOL_VERSIONS:  # which have no ping
                await client.session.send_discover(version)
            else:
                await client.session.send_ping()
        except MCPError as error:
            return error.code == METHOD_NOT_FOUND
        return True
    return False


async def all_pages(
    ask: Callable[..., Awaitable[PageOf]], items: Callable[[PageOf], list[Listed]], *, most: int
) -> list[Listed]:
    """Returns the items of all pages; none for an unknown request. Raises MCPError and ValidationError."""
    listed: list[Listed] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        try:
            page = await ask(params=PaginatedRequestParams(cursor=cursor))
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                break
            raise
        found = items(page)
        listed += found if found != listed[-len(found) :] else []  # a cursor may lead back to its own page
        before, cursor = cursor, page.next_cursor
        if cursor in (None, before) or len(listed) >= most:
            break
    return listed[:most]


async def list_tools(server: str, client: Client) -> list[McpTool]:
    """Returns the first tools of all pages, at most MAX_TOOLS and MAX_LIST_BYTES. Raises as `all_pages` does."""
    listed = await all_pages(client.session.list_tools, lambda page: page.tools, most=MAX_TOOLS)
    sizes = accumulate(len(to_json(tool, by_alias=True, exclude_none=True)) for tool in listed)
    kept = [tool for tool, size in zip(listed, sizes, strict=True) if size <= MAX_LIST_BYTES]
    if len(kept) < len(listed):
        log.warning("mcp_tools_cut", server=server, announced=len(listed), kept=len(kept))
    return kept


@asynccontextmanager
async def _filtered(
    server: str, config: McpServerConfig, stderr: Stderr, budget: Budget, auth: httpx2.Auth | None, *, sse: bool
) -> AsyncIterator[tuple["_Filter", "_Outgoing"]]:
    if config.url is None:
        transport = stdio_transport(server, config, budget, stderr)
    else:
        transport = _http(config, config.url, budget, auth, sse=sse)
    async with transport as (incoming, outgoing), anyio.create_task_group() as watching:
        watching.start_soon(budget.watch)
        yield _Filter(server, incoming, budget), _Outgoing(outgoing, budget, is_pipe=config.url is None)
        watching.cancel_scope.cancel()


@asynccontextmanager
async def _http(
    config: McpServerConfig, url: str, budget: Budget, auth: httpx2.Auth | None, *, sse: bool
) -> AsyncIterator[tuple[Any, Any]]:
    answers = _HttpAnswers(budget)
    client = checked_client(
        is_allowed=allowed_for_operator(httpx2.URL(url).host, allow_private=config.allow_private),
        headers={name: value.get_secret_value() for name, value in config.headers.items()}
        | {"Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(10.0, read=None),  # a stream may be silent for hours: calls and handshakes have limits
        max_body_bytes=MESSAGE_LIMIT_BYTES,
        keep_cookies=True,  # a load balancer may tell its servers apart by them
    )
    if auth is not None:
        client.auth = auth
    client.event_hooks = {"request": [_prepare, tell_trace], "response": [answers.check]}
    if sse:
        async with sse_transport(url, client, budget) as streams:
            yield streams
        return
    try:
        async with (
            client,
            streamable_http_client(url, http_client=client, max_sse_event_size=MESSAGE_LIMIT_BYTES) as streams,
        ):
            yield streams
    except* MCPError:
        # The SDK says "Server returned an error response": 401 or 503 is what a person needs to know.
        if answers.status >= _REDIRECT:
            raise McpServerGone(status_cause(answers.status), answers.status) from None
        if answers.is_page:
            raise McpServerGone(WEB_PAGE, answers.status) from None
        raise


async def _prepare(request: httpx2.Request) -> None:
    if request.method == "DELETE":  # the goodbye, before the next connection is opened
        request.extensions = {**request.extensions, "timeout": httpx2.Timeout(1.0).as_dict()}
    if request.method == "POST" and (call := current_delivery.get()) is not None:
        request.extensions = {**request.extensions, "trace": call.trace}


class _HttpAnswers:
    """The answers of a server before the SDK reads them: bounded, and the last to a POST noted."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.status = 0
        self.is_page = False

    async def check(self, response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").lower()
        if response.request.method == "POST":
            self.status, self.is_page = response.status_code, kind.startswith("text/html")
            wait_s = retry_after_s(response.headers) if self.status in _MAY_ASK_FOR_REST else None
            rest = None if wait_s is None else self._budget.begin_rest(wait_s)
            if (call := current_delivery.get()) is not None:
                call.status, call.rest = response.status_code, rest
            if rest and self._budget.is_unanswered:  # the SDK would ask in another way at once
                raise McpServerGone(status_cause(self.status), self.status)
        if response.headers.get("content-encoding", "identity").lower() not in {"", "identity"}:
            raise McpServerGone("it compresses its answers, though it was asked not to")
        if response.request.method == "GET":
            self._budget.read(_GET_BYTES)
        response.encoding = "utf-8"  # the only one of MCP: decoding a long "punycode" takes hours
        stream = cast(httpx2.AsyncByteStream, response.stream)
        response.stream = _Metered(stream, self._budget, is_stream=kind.startswith("text/event-stream"))


class _Metered(httpx2.AsyncByteStream):
    """A body whose every chunk and line costs more than its bytes, as reading it does. It comes light."""

    def __init__(self, stream: httpx2.AsyncByteStream, budget: Budget, *, is_stream: bool) -> None:
        self._stream = stream
        self._budget = budget
        self._is_stream = is_stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return light_body(self._metered(), self._budget, is_stream=self._is_stream)

    async def _metered(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._budget.read(len(chunk) + _CHUNK_BYTES + _LINE_BYTES * (chunk.count(b"\n") + chunk.count(b"\r")))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Outgoing(ObjectSendStream[SessionMessage]):
    def __init__(self, stream: Any, budget: Budget, *, is_pipe: bool) -> None:
        self._stream = stream
        self._budget = budget
        self._is_pipe = is_pipe

    async def send(self, item: SessionMessage) -> None:
        self._budget.asks(item.message)
        await self._stream.send(item)
        if self._is_pipe and (call := current_delivery.get()) is not None:
            call.sent = True
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
        while not self._budget.hears(item):
            item = await self._stream.receive()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            item.message.result = without_broken_tools(self._server, readable_result(item.message.result))
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()
