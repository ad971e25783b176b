"""The transport of HTTP servers from before 2025-03-26: one stream of events, and POSTs to the address that it names.

The SDK's client over a checked HTTP client; the address has to be of the same origin.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
from mcp.client.sse import sse_client

from segue.mcp.budget import Budget
from segue.mcp.causes import answered

_HTTP_ERROR: Final = 400
_NAMING_S: Final = 10.0


@asynccontextmanager
async def sse_transport(url: str, client: httpx2.AsyncClient, budget: Budget) -> AsyncIterator[tuple[Any, Any]]:
    """Enters the client. If the server answers with an error, the budget ends."""

    async def check(response: httpx2.Response) -> None:
        if response.status_code >= _HTTP_ERROR:
            budget.end(answered(response.status_code))  # of a POST the SDK only logs the error

    client.event_hooks = {**client.event_hooks, "response": [check, *client.event_hooks["response"]]}

    def made(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
        del headers, timeout, auth  # it has its own
        return client

    with anyio.fail_after(_NAMING_S) as naming:  # the SDK waits for ever for an address of the same origin
        async with sse_client(url, httpx_client_factory=made) as streams:
            naming.deadline = math.inf
            yield streams
