"""Clients of the HTTP API: `Api` for `segue chat` and `segue mcp login`, `AsyncApi` for `segue mcp serve`.

Know the contract of the API, and nothing of the service, the terminal or MCP. An error of the service is a Refused.
"""

import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
import httpx2

from segue.domain.identity import is_loopback

CONNECT_S = 5.0
READ_S = 30.0  # a stream has a heartbeat every ten seconds
PAGE = 200
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)  # between the attempts to continue a stream
LAST_EVENTS = ("RUN_FINISHED", "RUN_ERROR")

StreamEvent = dict[str, Any]

WHAT_TO_DO: Mapping[int, str] = {  # by status
    401: "Make a key with `segue keys create --user YOU` and give it as SEGUE_API_KEY or --api-key.",
    404: "/new begins another conversation, /sessions lists yours.",
}
MCP_ADVICE: Mapping[int, str] = {
    401: "Make a key with `segue keys create --user YOU` and give it as SEGUE_API_KEY.",
    404: "list_sessions lists the sessions, start_session begins one.",
}


class Refused(Exception):
    """The service answered with an error, or with nothing that is Segue's. The message is one line for a person."""

    def __init__(self, line: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(line)
        self.status = status
        self.code = code

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed in a moment."""
        return self.status >= httpx2.codes.INTERNAL_SERVER_ERROR


def client_options(url: str) -> dict[str, Any]:
    proxied = not is_loopback(urlsplit(url).hostname or "")
    return {"base_url": url, "timeout": httpx2.Timeout(READ_S, connect=CONNECT_S), "trust_env": proxied}


def key_header(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


class Api:
    """The API as one user of a terminal may use it. Every method raises Refused; those with a body return it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        self._http = httpx2.Client(headers=key_header(api_key), **client_options(url))

    def get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._request("POST", path, json=body)

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def all_items(self, path: str) -> list[Any]:
        """Returns a whole list, read page by page."""
        items: list[Any] = []
        after: dict[str, str] | None = {}
        while after is not None:
            page = self.get(path, limit=PAGE, **after)
            items += page["items"]
            after = {"cursor": page["next_cursor"]} if page["next_cursor"] else None
        return items

    def events(self, method: str, path: str, **request: Any) -> Iterator[tuple[int, StreamEvent]]:
        """Yields the events of a stream with their ids. Raises httpx2.TransportError if it is cut."""
        with self._http.sse(path, method=method, max_event_size=None, **request) as source:
            if source.response.is_error:
                source.response.read()
                raise refused(source.response)
            for each in source:
                yield int(each.id or 0), json.loads(each.data)

    def close(self) -> None:
        self._http.close()

    def _request(self, method: str, path: str, **request: Any) -> Any:
        with _faults_refused(self.url):
            return _body_of(self._http.request(method, path, **request), WHAT_TO_DO)


@contextmanager
def _faults_refused(url: str) -> Iterator[None]:
    """Raises Refused if nothing answers, or nothing of Segue's."""
    try:
        yield
    except httpx2.TransportError as error:
        raise unreachable(url, error) from error
    except ValueError as error:
        raise Refused(f"What answers at {url} is not Segue. Is the URL right?") from error


def _body_of(response: httpx2.Response, advice: Mapping[int, str]) -> Any:
    if response.is_error:
        raise refused(response, advice)
    return response.json() if response.content else None


def refused(response: httpx2.Response, advice: Mapping[int, str] = WHAT_TO_DO) -> Refused:
    """Returns the error that a response is. `advice` says what to do, by status."""
    status = response.status_code
    try:
        problem = response.json()
        title, detail, code = str(problem["title"]), str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):
        return Refused(f"The service answered {status} and did not say why. Is the URL right?", status=status)
    return Refused(problem_line(title, detail, status=status, advice=advice), status=status, code=code)


def problem_line(title: str, detail: str, *, status: int, advice: Mapping[int, str] = WHAT_TO_DO) -> str:
    """Returns one line: what is wrong, and what to do about it if that is known."""
    problem = detail if detail.startswith(title) else f"{title}: {detail}"
    return " ".join(filter(None, (problem, advice.get(status))))


def turn_problem(event: StreamEvent, advice: Mapping[int, str] = WHAT_TO_DO) -> str:
    """Returns the line of a RUN_ERROR."""
    problem = event.get("metadata", {}).get("problem", {})
    title, status = problem.get("title", "The turn failed"), problem.get("status", 0)
    return problem_line(title, event["message"], status=status, advice=advice)


def waiting_steps(plan: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the steps that one yes is for."""
    return [step for step in (plan or {}).get("steps", ()) if step["status"] == "waiting"]


def waiting_step(plan: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return next(iter(waiting_steps(plan)), None)


def unreachable(url: str, error: httpx2.TransportError) -> Refused:
    return Refused(f"{url} cannot be reached ({type(error).__name__}). Does `segue serve` run there?", status=503)


@dataclass(slots=True)
class TurnStream:
    """The events of one turn, up to its end. A stream that is cut continues after the last event.

    A request to `path` with `body` begins the turn; with a `turn_id`, it has begun already.
    """

    api: Api
    session_id: str
    path: str = ""
    body: dict[str, Any] | None = None
    turn_id: str | None = None
    on_lost: Callable[[], None] = lambda: None
    _last_id: int = 0
    _key: str = field(default_factory=lambda: str(uuid4()))

    def events(self) -> Iterator[StreamEvent]:
        """Ends with the terminal event. After an interrupt, call it again to read on.

        Raises Refused, also if the service cannot be reached for half a minute.
        """
        failures = 0
        while True:
            error = Refused("The stream ended before the turn did.", status=503)
            try:
                for event in self._new_events():
                    failures = 0
                    yield event
                    if event["type"] in LAST_EVENTS:
                        return
            except (httpx2.TransportError, Refused) as cut:
                error = cut if isinstance(cut, Refused) else unreachable(self.api.url, cut)
            if failures == len(PAUSES_S) or not error.is_temporary:
                raise error
            if failures == 1:
                self.on_lost()
            time.sleep(PAUSES_S[failures])
            failures += 1

    def cancel(self) -> None:
        if self.turn_id is not None:
            self.api.post(f"/sessions/{self.session_id}/turns/{self.turn_id}/cancel")

    def _new_events(self) -> Iterator[StreamEvent]:
        """The idempotency key makes a repeated request attach to the turn instead of beginning another one."""
        if self.turn_id is None:
            stream = self.api.events("POST", self.path, json=self.body, headers={"Idempotency-Key": self._key})
        else:
            path = f"/sessions/{self.session_id}/turns/{self.turn_id}/events"
            stream = self.api.events("GET", path, headers={"Last-Event-ID": str(self._last_id)})
        for event_id, event in stream:
            if event_id > self._last_id:
                self._last_id = event_id
                self.turn_id = event.get("runId", self.turn_id)
                yield event


@dataclass(frozen=True, slots=True)
class AsyncApi:
    """The API as one caller of `segue mcp serve` may use it: `http` has the URL, `headers` the key of the caller. Its
    methods return the body and raise Refused.
    """

    http: httpx2.AsyncClient
    headers: Mapping[str, str]

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    async def get(self, path: str, **params: Any) -> Any:
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await self._request("POST", path, json=body)

    async def _request(self, method: str, path: str, **request: Any) -> Any:
        with _faults_refused(self.url):
            return _body_of(await self.http.request(method, path, headers=self.headers, **request), MCP_ADVICE)


@dataclass(slots=True)
class CalledTurn:
    """A turn that a request to `path` with `body` begins. Sent again with its `key`, it is the same turn."""

    api: AsyncApi
    session_id: str
    path: str
    body: Mapping[str, Any]
    key: str
    id: str | None = None
    _was_sent: anyio.Event = field(default_factory=anyio.Event)

    async def events(self) -> AsyncGenerator[StreamEvent]:
        """Ends with the terminal event. A stream that is cut is asked for again, and goes on after the last event.

        Raises Refused, also if the service cannot be reached for half a minute.
        """
        last, failures = 0, 0
        while True:
            error = Refused("The stream ended before the turn did.", status=503)
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
            except (httpx2.TransportError, Refused) as cut:
                error = cut if isinstance(cut, Refused) else unreachable(self.api.url, cut)
            if failures == len(PAUSES_S) or not error.is_temporary:
                raise error
            await anyio.sleep(PAUSES_S[failures])
            failures += 1

    async def cancel(self) -> None:
        """Cancels it, if the service has accepted it. Raises Refused."""
        await self._was_sent.wait()
        if self.id is not None:
            await self.api.post(f"/sessions/{self.session_id}/turns/{self.id}/cancel")

    async def _open(self, stack: AsyncExitStack) -> httpx2.EventSource:
        """A caller that is cancelled meanwhile still learns which turn it is, to cancel it."""
        headers = {**self.api.headers, "Idempotency-Key": self.key}
        with anyio.CancelScope(shield=True):
            try:
                stream = self.api.http.sse(
                    self.path, method="POST", json=self.body, headers=headers, max_event_size=None
                )
                source = await stack.enter_async_context(stream)
                if source.response.is_error:
                    await source.response.aread()
                    raise refused(source.response, MCP_ADVICE)
                self.id = source.response.headers.get("X-Turn-Id", self.id)
            finally:
                self._was_sent.set()
        return source
