"""What the servers that speak providers' own protocols have in common: a script, what they heard, and what they refuse.

A request that the provider would refuse gets a 400 and fails the test, as does a script that is not used up.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.support.server import serving

KEY = "sk-native-canary-0123456789"


class Refused(Exception):
    """What the provider would answer 400 to."""


def refuse_if(fault: object, message: str) -> None:
    if fault:
        raise Refused(message)


@dataclass(frozen=True, slots=True)
class Given:
    """An answer in the provider's own terms. Events after `broken_after` do not come."""

    parts: tuple[dict[str, Any], ...]
    reason: str
    usage: dict[str, Any]
    broken_after: int | None = None


Scripted = Given | Response


@dataclass(slots=True)
class NativeApi:
    """`requests` are the bodies it was sent, in order, and `headers` what came with them."""

    paths: tuple[str, ...]
    check_request: Callable[["NativeApi", Request, dict[str, Any]], None]
    whole: Callable[[Given], Any]
    events: Callable[[Given], Iterable[str]]
    error: Callable[[int, str], Response]
    is_streamed: Callable[[Request, dict[str, Any]], bool]
    url: str = ""
    charset: str = "utf-8"
    script: list[Scripted] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)

    def will(self, *replies: Scripted) -> None:
        self.script.extend(replies)

    async def answer(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        self.requests.append(body)
        self.headers.append(request.headers)
        try:
            self.check_request(self, request, body)
            refuse_if(not self.script, "a request beyond the end of the script")
        except (Refused, KeyError, TypeError, IndexError) as fault:
            self.surprises.append(repr(fault))
            return self.error(400, str(fault))
        reply = self.script.pop(0)
        if isinstance(reply, Response):
            return reply
        self.given.append(reply)
        if self.is_streamed(request, body):
            return StreamingResponse(
                _some(self.events(reply), reply), media_type=f"text/event-stream; charset={self.charset}"
            )
        return Response(orjson.dumps(self.whole(reply)), media_type="application/json")


async def _some(events: Iterable[str], given: Given) -> AsyncIterator[str]:
    for number, event in enumerate(events):
        if number == given.broken_after:
            return
        yield event


def event(body: dict[str, Any], name: str | None = None) -> str:
    return (f"event: {name}\n" if name else "") + f"data: {orjson.dumps(body).decode()}\n\n"


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def answers(status: int, body: Any, *, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


@asynccontextmanager
async def scripted_api(api: NativeApi) -> AsyncIterator[NativeApi]:
    async def answer(request: Request) -> Awaitable[Response] | Response:
        return await api.answer(request)

    app = Starlette(routes=[Route(path, answer, methods=["POST"]) for path in api.paths])
    async with serving(app) as url:
        api.url = url
        yield api
    assert not api.surprises, api.surprises
    assert not api.script, f"{len(api.script)} scripted answers were not used"
