"""What the tools of `segue mcp serve` ask of the service over its HTTP API, as one caller.

Knows the contract of the API and nothing of MCP. An error of the service is a Refused that says what to do.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx2

from segue.commands.chat.api import LAST_EVENTS, PAUSES_S, Refused, StreamEvent, not_segue, refused, unreachable

ADVICE: Final[Mapping[int, str]] = {
    401: "Make a key with `segue keys create --user YOU` and give it as SEGUE_API_KEY.",
    404: "list_sessions lists the sessions, start_session begins one.",
}


@dataclass(frozen=True, slots=True)
class Service:
    """`http` has the URL of the service, `headers` say who calls."""

    http: httpx2.AsyncClient
    headers: Mapping[str, str]

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    async def get(self, path: str, **params: Any) -> Any:
        """Returns the body. Raises Refused."""
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Returns the body. Raises Refused."""
        return await self._request("POST", path, json=body)

    async def _request(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = await self.http.request(method, path, headers=self.headers, **request)
            if response.is_error:
                raise refused(response, ADVICE)
            return response.json()
        except httpx2.TransportError as error:
            raise unreachable(self.url, error) from error
        except ValueError as error:
            raise not_segue(self.url) from error


@dataclass(slots=True)
class CalledTurn:
    """A turn that a request to `path` with `body` begins. Sent again with its `key`, it is the same turn."""

    service: Service
    session_id: str
    path: str
    body: Mapping[str, Any]
    key: str
    id: str | None = None
    _asked: anyio.Event = field(default_factory=anyio.Event)

    async def events(self) -> AsyncGenerator[StreamEvent]:
        """Ends with the terminal event. A stream that is cut is asked for again, and goes on after the last event.

        Raises Refused, also if the service cannot be reached for half a minute.
        """
        last, failures = 0, 0
        while True:
            try:
                async with AsyncExitStack() as stack:
                    async for each in await self._open(stack):
                        if (position := int(each.id or 0)) <= last:
                            continue
                        last, failures = position, 0
                        event: StreamEvent = json.loads(each.data)
                        yield event
                        if event["type"] in LAST_EVENTS:
                            return
                error = Refused("The stream ended before the turn did.", status=503)
            except (httpx2.TransportError, Refused) as cut:
                error = cut if isinstance(cut, Refused) else unreachable(self.service.url, cut)
            if failures == len(PAUSES_S) or not error.is_temporary:
                raise error
            await anyio.sleep(PAUSES_S[failures])
            failures += 1

    async def cancel(self) -> None:
        """Cancels it, if the service has accepted it. Raises Refused."""
        await self._asked.wait()
        if self.id is not None:
            await self.service.post(f"/sessions/{self.session_id}/turns/{self.id}/cancel")

    async def _open(self, stack: AsyncExitStack) -> httpx2.EventSource:
        """A caller that is cancelled meanwhile still learns which turn it is, to cancel it."""
        headers = {**self.service.headers, "Idempotency-Key": self.key}
        with anyio.CancelScope(shield=True):
            try:
                stream = self.service.http.sse(
                    self.path, method="POST", json=self.body, headers=headers, max_event_size=None
                )
                source = await stack.enter_async_context(stream)
                if source.response.is_error:
                    await source.response.aread()
                    raise refused(source.response, ADVICE)
                self.id = source.response.headers.get("X-Turn-Id", self.id)
            finally:
                self._asked.set()
        return source
