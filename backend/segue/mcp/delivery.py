"""How far a call has come on its way to a server, and what its caller is told if no result came back.

The transports tell the first while they work in the context of the call's task (`connection.py`). A call that was never
sent has not run.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from pydantic import ValidationError

from segue.domain.tool import ToolFailed, ToolLost, ToolRetry

MAX_ERROR_CHARS: Final = 4000
_REFUSED, _NO_SESSION, _SERVER_ERROR = 400, 404, 500

# What the SDK answers to a server that asks for what was not offered to it; the tool is not to blame for that.
_REFUSED_TO_SERVERS: Final = ("Sampling not supported", "List roots not supported")


@dataclass(slots=True)
class CallDelivery:
    """`sent` as soon as a byte may have left; `status` is that of the HTTP answer, 0 before and for a pipe."""

    sent: bool = False
    status: int = 0

    async def trace(self, event: str, _: dict[str, Any]) -> None:
        """Takes what the HTTP client tells of a request."""
        self.sent = self.sent or event.endswith(".send_request_headers.started")


carried: Final[ContextVar[CallDelivery | None]] = ContextVar("carried", default=None)


class NotSent(ToolFailed):
    """The call did not run: the server was not reached, or did not know the session."""


class Lost(ToolLost):
    """The call was sent, and what came of it did not come back."""


def as_tool_error(server: str, error: Exception, delivery: CallDelivery) -> ToolRetry | ToolFailed:  # noqa: PLR0911 (one line per way)
    status = delivery.status
    match error:
        case MCPError(code=code, message=message) if code == INVALID_PARAMS:
            return ToolRetry(message[:MAX_ERROR_CHARS])
        case MCPError(code=code) if code == CONNECTION_CLOSED and not delivery.sent:
            return NotSent(f"The MCP server {server} could not be reached: the call did not run.")
        case MCPError() if status == _NO_SESSION:
            return NotSent(f"The MCP server {server} answered HTTP {status}: the call did not run.")
        case MCPError(code=code) if code == CONNECTION_CLOSED:
            why = f"The connection to the MCP server {server} was lost before it answered"
            return Lost(f"{why}: whether the call took effect is unknown.")
        case MCPError(code=code) if code == INTERNAL_ERROR and status >= _SERVER_ERROR:
            return Lost(f"The MCP server {server} answered HTTP {status}: whether the call took effect is unknown.")
        case MCPError(code=code) if code == INTERNAL_ERROR and status >= _REFUSED:
            return ToolFailed(f"The MCP server {server} refused with HTTP {status}: the call did not run.")
        case MCPError(code=code, message=message) if code == INVALID_REQUEST and message in _REFUSED_TO_SERVERS:
            return ToolRetry(f"The MCP server {server} wanted something for this call that it does not get: {message}.")
        case MCPError(message=message):
            return ToolFailed(f"The MCP server {server} refused: {message[:MAX_ERROR_CHARS]}")
        case RuntimeError() | ValidationError():
            return ToolFailed(f"The MCP server {server} gave an answer that breaks its own declaration.")
        case _:
            return ToolFailed(f"The MCP server {server} could not be asked ({type(error).__name__}).")
