"""Clients of the HTTP API: `AsyncApi` for `segue mcp serve`, `Api` for commands of a terminal, and `OwnService`, a
child process. They know nothing but the contract of the API. An error of the service is a Refused.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
import httpx2

from segue.domain.identity import is_loopback

HOST = "127.0.0.1"
CONNECT_S = 5.0
READ_S = 30.0  # a stream has a heartbeat every ten seconds
PAGE = 200
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)  # between the attempts to continue a stream
STOP_S = 30.0

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


def client_options(url: str) -> dict[str, Any]:
    proxied = not is_loopback(urlsplit(url).hostname or "")
    return {"base_url": url, "timeout": httpx2.Timeout(READ_S, connect=CONNECT_S), "trust_env": proxied}


def key_header(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


@dataclass(frozen=True, slots=True)
class AsyncApi:
    """The API as one caller may use it; `advice` is what to do by status. Methods give the body, or raise Refused."""

    http: httpx2.AsyncClient
    headers: Mapping[str, str]
    advice: Mapping[int, str]

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    async def get(self, path: str, **params: Any) -> Any:
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await self._request("POST", path, json=body)

    async def delete(self, path: str) -> None:
        await self._request("DELETE", path)

    async def _request(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = await self.http.request(method, path, headers=self.headers, **request)
            if response.is_error:
                raise self.refused(response)
            return response.json() if response.content else None
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error
        except ValueError as error:
            raise Refused(f"What answers at {self.url} is not Segue. Is the URL right?") from error

    def refused(self, response: httpx2.Response) -> Refused:
        status = response.status_code
        try:
            problem = response.json()
            title, detail, code = str(problem["title"]), str(problem["detail"]), str(problem["code"])
        except (ValueError, KeyError, TypeError):
            return Refused(f"The service answered {status} and did not say why. Is the URL right?", status=status)
        return Refused(problem_line(title, detail, status=status, advice=self.advice), status=status, code=code)

    def unreachable(self, error: httpx2.TransportError) -> Refused:
        why = f"{self.url} cannot be reached ({type(error).__name__}). Does `segue serve` run there?"
        return Refused(why, status=503)


class Api:
    """The API for a command of a terminal, which waits for each answer. Ctrl-C ends what is waited for."""

    def __init__(self, url: str, api_key: str | None = None, advice: Mapping[int, str] = WHAT_TO_DO) -> None:
        self.client = AsyncApi(httpx2.AsyncClient(**client_options(url)), key_header(api_key), advice)
        self._runner = asyncio.Runner()

    def run(self, answer: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(answer)

    def get(self, path: str, **params: Any) -> Any:
        return self.run(self.client.get(path, **params))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self.run(self.client.post(path, body))

    def delete(self, path: str) -> None:
        self.run(self.client.delete(path))

    def all_items(self, path: str) -> list[Any]:
        """Returns a whole list, read page by page."""
        page = self.get(path, limit=PAGE)
        items: list[Any] = page["items"]
        while page["next_cursor"]:
            page = self.get(path, limit=PAGE, cursor=page["next_cursor"])
            items += page["items"]
        return items

    def close(self) -> None:
        self.run(self.client.http.aclose())
        self._runner.close()


def problem_line(title: str, detail: str, *, status: int, advice: Mapping[int, str]) -> str:
    """Returns one line: what is wrong, and what to do about it if that is known."""
    return " ".join(filter(None, (detail if detail.startswith(title) else f"{title}: {detail}", advice.get(status))))


def turn_problem(event: StreamEvent, advice: Mapping[int, str]) -> str:
    """Returns the line of a RUN_ERROR."""
    problem = event.get("metadata", {}).get("problem", {})
    title, status = problem.get("title", "The turn failed"), problem.get("status", 0)
    return problem_line(title, event["message"], status=status, advice=advice)


def waiting_steps(plan: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the steps that one yes is for."""
    return [step for step in (plan or {}).get("steps", ()) if step["status"] == "waiting"]


def waiting_step(plan: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return next(iter(waiting_steps(plan)), None)


@dataclass(slots=True)
class TurnStream:
    """The events of one turn of the session at `path`, up to its end; a stream that is cut goes on after the last one.
    A request to `action` with `body` begins the turn, once for its `key`. With a `turn_id`, it has begun already.
    """

    api: AsyncApi
    path: str
    action: str = ""
    body: Mapping[str, Any] | None = None
    key: str = field(default_factory=lambda: str(uuid4()))
    turn_id: str | None = None
    on_lost: Callable[[], None] = lambda: None
    was_sent: asyncio.Event = field(default_factory=asyncio.Event)
    _last_id: int = 0

    async def events(self) -> AsyncGenerator[StreamEvent]:
        """Ends with the terminal event; after an interrupt, call it again. Raises Refused, also if nothing answers."""
        failures = 0
        while True:
            error = Refused("The stream ended before the turn did.", status=503)
            try:
                async with AsyncExitStack() as stack:
                    async for each in await self._open(stack):
                        if (position := int(each.id or 0)) <= self._last_id:
                            continue
                        self._last_id, failures = position, 0
                        event: StreamEvent = json.loads(each.data)
                        yield event
                        if event["type"] in ("RUN_FINISHED", "RUN_ERROR"):
                            return
            except (httpx2.TransportError, Refused) as cut:
                error = cut if isinstance(cut, Refused) else self.api.unreachable(cut)
            if failures == len(PAUSES_S) or error.status < httpx2.codes.INTERNAL_SERVER_ERROR:
                raise error
            if failures == 1:
                self.on_lost()
            await asyncio.sleep(PAUSES_S[failures])
            failures += 1

    async def cancel(self) -> None:
        """Cancels it, if the service has accepted it. Raises Refused."""
        if self.turn_id is not None:
            await self.api.post(f"{self.path}/turns/{self.turn_id}/cancel")

    async def _open(self, stack: AsyncExitStack) -> httpx2.EventSource:
        """A caller that is cancelled meanwhile still learns which turn it is, to cancel it."""
        method, path, own = "POST", f"{self.path}/{self.action}", {"Idempotency-Key": self.key}
        if self.turn_id is not None:
            method, path, own = "GET", f"{self.path}/turns/{self.turn_id}/events", {"Last-Event-ID": str(self._last_id)}
        headers, body = {**self.api.headers, **own}, self.body if method == "POST" else None
        with anyio.CancelScope(shield=True):
            try:
                stream = self.api.http.sse(path, method=method, headers=headers, json=body, max_event_size=None)
                source = await stack.enter_async_context(stream)
                if source.response.is_error:
                    await source.response.aread()
                    raise self.api.refused(source.response)
                self.turn_id = source.response.headers.get("X-Turn-Id", self.turn_id)
            finally:
                self.was_sent.set()
        return source


class OwnService:
    """A `segue serve` as a child on a free port, in `folder`, with this `environment` and the path of the code."""

    def __init__(self, log: Path, environment: Mapping[str, str], *, folder: Path | None = None) -> None:
        # Bound until the service has stopped: a port that was only found free may be another program's by its start.
        self._listener = socket.socket()
        self._listener.bind((HOST, 0))
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._log = log
        self._folder = folder
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), environment.get("PYTHONPATH"))))
        self._environment = {**environment, "PYTHONPATH": path}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it in a session of its own, which Ctrl-C does not reach. Requests wait until it answers."""
        fd = self._listener.fileno()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [sys.executable, "-P", "-m", "segue", "serve", "--fd", str(fd)],
                pass_fds=(fd,),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def log_end(self) -> str:
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-20:])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Blocks until it has ended, for half a minute at most. It does not start again."""
        self._listener.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
