"""The calls that wait for a turn: how it goes is told to the client, and a call that is cancelled cancels its turn.

Knows no tool.
"""

import asyncio
import time
from contextlib import aclosing
from typing import Any, Final

import anyio
from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from segue.commands.chat.api import Refused, StreamEvent, turn_problem
from segue.commands.mcp.service import ADVICE, CalledTurn

BEAT_S: Final = 10.0
PAUSE_S: Final = 0.25
SHOWN_CHARS: Final = 200

McpContext = Context[Any, Any]


class Calls:
    """The turns that calls wait for, by connection and request. Each `beat_s` seconds the client hears of its call."""

    def __init__(self, beat_s: float) -> None:
        self._beat_s = beat_s
        self._turns: dict[tuple[str, str], CalledTurn] = {}

    async def answer(self, ctx: McpContext, turn: CalledTurn) -> dict[str, Any]:
        """Returns the ChatAnswer. Raises ToolError if the turn fails, Refused."""
        progress = CallProgress(ctx)
        beats = asyncio.create_task(self._beat(progress))
        try:
            if (connection := _connection(ctx.request_context)) is None:
                return await _read_or_cancel(turn, progress)
            request = connection, ctx.request_id
            self._turns[request] = turn
            try:
                answer = await _read(turn, progress)
            except (Refused, ToolError):
                self._turns.pop(request, None)
                raise
            self._turns.pop(request, None)  # that of a call which is cancelled is for `cancel_turn`
            return answer
        finally:
            beats.cancel()

    async def cancel_turn(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware. The turn of a client that only leaves goes on."""
        connection = _connection(ctx)
        if ctx.method == "notifications/cancelled" and connection is not None:
            turn = self._turns.pop((connection, str((ctx.params or {}).get("requestId"))), None)
            if turn is not None:
                await turn.cancel()
        return await call_next(ctx)

    async def _beat(self, progress: "CallProgress") -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            await progress.tell("still working")


class CallProgress:
    """What the client is told of a turn, if it asked for that: calls of tools, and the end of the text so far."""

    def __init__(self, ctx: McpContext) -> None:
        self._ctx = ctx
        self._count = 0
        self._text = ""
        self._told_at = 0.0

    async def tell(self, message: str) -> None:
        self._count += 1
        self._told_at = time.monotonic()
        await self._ctx.report_progress(self._count, None, message)

    async def follow(self, event: StreamEvent) -> None:
        match event:
            case {"type": "TOOL_CALL_START", "toolCallName": name}:
                await self.tell(f"calls {name}")
            case {"type": "TEXT_MESSAGE_START"}:
                self._text = ""
            case {"type": "TEXT_MESSAGE_CONTENT", "delta": words}:
                self._text = (self._text + words)[-SHOWN_CHARS:]
                if time.monotonic() - self._told_at > PAUSE_S:
                    await self.tell(self._text)


async def _read(turn: CalledTurn, progress: CallProgress) -> dict[str, Any]:
    async with aclosing(turn.events()) as events:
        async for event in events:
            await progress.follow(event)
            match event:
                case {"type": "RUN_FINISHED", "result": answer}:
                    return dict(answer)
                case {"type": "RUN_ERROR"}:
                    raise ToolError(turn_problem(event, ADVICE))
    raise AssertionError("the events of a turn end with a terminal one")


async def _read_or_cancel(turn: CalledTurn, progress: CallProgress) -> dict[str, Any]:
    try:
        return await _read(turn, progress)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await turn.cancel()
        raise


def _connection(ctx: ServerRequestContext[Any, Any]) -> str | None:
    """Clients number their requests each from one. Returns None over HTTP since 2026-07-28: there are no connections
    then, and a client cancels a call by closing its stream.
    """
    if ctx.request is None:
        return "stdio"
    session_id: str | None = ctx.request.headers.get("mcp-session-id")
    return None if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else session_id
