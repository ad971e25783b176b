"""What routes depend on: the services of this process, the caller, ids that may exist, bodies that are strict JSON."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import orjson
from fastapi import Depends, Path, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from backend.agent.context import Clock
from backend.db.engine import Database
from backend.db.redis import Cache
from backend.domain.errors import NotFound
from backend.domain.ids import is_id
from backend.tools.mcp import McpServers
from backend.turn.service import TurnService

LOCAL_USER = "local"


@dataclass(frozen=True, slots=True)
class Services:
    database: Database
    cache: Cache
    turns: TurnService
    mcp: McpServers
    clock: Clock
    memory_ttl_s: int


class State(TypedDict):
    """What the lifespan yields: `request.state.services`."""

    services: Services


async def _services(request: Request) -> Services:
    services: Services = request.state.services
    return services


async def _caller() -> str:
    """AUTH=none: everyone is the one local user."""
    return LOCAL_USER


async def _session_id(session_id: Annotated[str, Path()]) -> str:
    if not is_id("ses", session_id):
        raise NotFound("session")
    return session_id


async def _tool_call_id(tool_call_id: Annotated[str, Path()]) -> str:
    if not is_id("call", tool_call_id):
        raise NotFound("tool_result")
    return tool_call_id


ServicesDep = Annotated[Services, Depends(_services)]
Caller = Annotated[str, Depends(_caller)]
SessionId = Annotated[str, Depends(_session_id)]
ToolCallId = Annotated[str, Depends(_tool_call_id)]


class StrictJsonRequest(Request):
    """JSON by orjson: no NaN, no lone surrogates, no infinite numbers, no depth bombs; and no NUL, which text lacks."""

    async def json(self) -> Any:
        body = await self.body()
        value = orjson.loads(body)
        if b"\\u0000" in body and _holds_nul(value):
            raise orjson.JSONDecodeError("NUL is not text", "", 0)
        return value


class StrictJsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return handle_strictly


def _holds_nul(value: Any) -> bool:
    match value:
        case str():
            return "\x00" in value
        case dict():
            return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
        case list():
            return any(map(_holds_nul, value))
        case _:
            return False
