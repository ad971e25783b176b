"""Why a connection to an MCP server ended, with advice (`cause; advice`), and how far a failed call had come. The words
are ours, because a server's could carry a secret. A call that no transport has noted as sent has not run.
"""

import re
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY as NEEDS_MORE
from pydantic import ValidationError

from segue.domain.tool import ToolFailed, ToolLost, ToolRetry
from segue.mcp.budget import McpServerGone, MustWait
from segue.net.addresses import NoSuchHost, NotPublic
from segue.tools.tool_health import ServerAway

SPLIT = "; "
_OWN_LOG = "look into its own log"
_URL = "correct its url in mcp.json"
WEB_PAGE = f"it answered with a web page; {_URL}: the path of many ends in /mcp"
MAX_ERROR_CHARS: Final = 4000
_CANNOT_ASK: Final = "Cannot send 'elicitation/create'"
# What the SDK answers to a server that asks for what was not offered to it, or says there that a client of 2026-07-28
# cannot be asked; the tool is not to blame for that.
_REFUSED_TO_SERVERS: Final = ("Sampling not supported", "List roots not supported", "Cannot send '")
# What the SDK itself says of an answer that did not come, or that it cannot read, under codes that servers use too.
_DID_NOT_COME: Final = ("Connection closed", "SSE stream ")
_NOT_READ: Final = ("Failed to parse ", "Unexpected content type: ", "server answered ")
# What servers made with the SDKs say, with HTTP 400, if they have been started again since the session began.
_FORGOTTEN = re.compile(r"Bad Request: .*(session.id|not initialized)", re.IGNORECASE)


def reason_of(error: Exception, came: str = "nothing came") -> str:  # noqa: PLR0911 (one line per way to end)
    """Returns why a connection ended, with advice; `came` describes the data that the server had sent by then."""
    found, kinds = members_of(error), (McpServerGone, NotPublic, NoSuchHost, httpx2.HTTPError, OSError)
    cause = next((each for kind in kinds for each in found if isinstance(each, kind)), found[0])  # which says most
    match cause:
        case McpServerGone():
            return str(cause) if SPLIT in str(cause) else f"{cause}{SPLIT}{_OWN_LOG}"
        case NotPublic():
            return 'its host is a private address; if that is meant, set "allow_private": true for it in mcp.json'
        case NoSuchHost():
            return f"there is no host of its name; {_URL}"
        case httpx2.HTTPError() | OSError() if not isinstance(cause, TimeoutError):
            return _unreachable(cause)
        case TimeoutError():
            return f"it did not shake hands in time: {came}; start its command by hand, or {_URL}, to see what it says"
        case MCPError():
            return f"it refused with MCP error {cause.code}; {_OWN_LOG}"
        case _:
            return f"it does not speak MCP as expected ({type(cause).__name__}); {_OWN_LOG}"


def cause_and_advice(state: str) -> tuple[str, str]:
    """Splits a state, or a reason; the advice is empty if there is none."""
    cause, _, advice = state.partition(SPLIT)
    return cause, advice


def status_cause(status: int) -> str:
    """Returns why an HTTP server cannot be used, by the status of its answer."""
    cause = f"it answered HTTP {status}"
    match status:
        case 401 | 403:
            return f"{cause}; give it a token that it takes under headers in mcp.json"
        case 404 | 405 | 406:
            return f"{cause}; {_URL}: the path of many ends in /mcp"
        case 429:
            return f"{cause}; it is asked too often: it is tried again by itself"
        case _ if status < 400:  # noqa: PLR2004 (HTTP's own number)
            return f"it redirects to elsewhere (HTTP {status}); write the address that it leads to as its url"
        case _:
            return f"{cause}; {_OWN_LOG}"


def ended(code: int) -> str:
    """How a process ended, by its exit code."""
    if code >= 0:
        return f"the process ended with exit code {code}; its last lines on stderr say why"
    name = str(-code)
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"the process was ended by {name}; if no person did that, memory may have run out"


def not_started(program: str, cwd: str | None, path: str, error: Exception) -> str:  # noqa: PLR0911 (as above)
    """Why a program does not run, and where it was looked for."""
    match error:
        case FileNotFoundError() | NotADirectoryError() if cwd and not Path(cwd).is_dir():
            return f"there is no folder {cwd} to start it in; correct its cwd in mcp.json"
        case FileNotFoundError() if "/" not in program:
            return f"there is no program {program} in PATH ({path[:300]}); install it, or write its whole path"
        case FileNotFoundError() if Path(program).exists():
            return f"{program} names an interpreter that is not there; correct its first line"
        case FileNotFoundError() | NotADirectoryError():
            return f"there is no program {program}; correct its command in mcp.json"
        case PermissionError():
            return f"{program} may not be run; make it executable"
        case OSError():
            return f"{program} cannot be started: {error.strerror}; correct its command in mcp.json"
        case _:
            return f"{program} cannot be started: a NUL in its command line; correct it in mcp.json"


def _unreachable(error: Exception) -> str:  # noqa: PLR0911 (one line per cause)
    for cause in _chain(error):
        match cause:
            case ssl.SSLCertVerificationError():
                why = cause.verify_message.rstrip(".")
                return f"its certificate is not trusted ({why}); renew it, or name its authority in SSL_CERT_FILE"
            case ssl.SSLError():
                return f"TLS failed ({cause.reason}); it may speak plain http://"
            case ConnectionRefusedError():
                return f"nothing listens at its address (connection refused); start it, or {_URL}"
            case socket.gaierror():
                return "its name cannot be resolved now; look into the DNS of this machine"
            case httpx2.ConnectTimeout():
                return f"its address does not answer (connecting timed out); look for a firewall, or {_URL}"
            case httpx2.ReadError() | httpx2.RemoteProtocolError():
                return f"it broke the connection off ({type(error).__name__}); {_OWN_LOG}"
    return f"it cannot be reached ({type(error).__name__}); start it, or {_URL}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        if isinstance(cause, ExceptionGroup):
            yield from cause.exceptions
        cause = cause.__cause__ or cause.__context__


def members_of(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [cause for member in error.exceptions for cause in members_of(member)]


_REFUSED, _NO_SESSION, _TOO_MANY, _SERVER_ERROR = 400, 404, 429, 500


@dataclass(slots=True)
class CallDelivery:
    """How far a call has come on its way to the server."""

    sent: bool = False  # as soon as a byte may have left
    status: int = 0  # of the HTTP answer; 0 before, and for a pipe
    rest: ServerAway | None = None  # what the server has asked for with that answer
    may_run_again: bool = False  # not to be sent any more: its request may still connect while the connection ends

    async def trace(self, event: str, _: dict[str, Any]) -> None:
        """Takes the HTTP client's trace events of a request. Raises McpServerGone instead of sending it too late."""
        if event.endswith(".send_request_headers.started"):
            if self.may_run_again:
                raise McpServerGone("it was connected too late for a call")
            self.sent = True


current_delivery: Final[ContextVar[CallDelivery | None]] = ContextVar("current_delivery", default=None)


class NotSent(ToolFailed):
    """The call did not run: the server was not reached, or did not know the session."""


class CannotAsk(ToolRetry):
    """The call ended at its question: its tool asks in the way of before 2026-07-28."""


class Lost(ToolLost):
    """The call was sent, and its outcome did not come back."""


def as_tool_error(server: str, error: Exception, delivery: CallDelivery) -> ToolRetry | ToolFailed:  # noqa: C901, PLR0911 (one line per way)
    status, message, unknown = delivery.status, str(error), "whether the call took effect is unknown"
    match error:
        case MCPError() if status == _TOO_MANY and delivery.rest:
            return MustWait(f"The call did not run. {delivery.rest[0]}")
        case MCPError(code=code) if code == INVALID_PARAMS:
            return ToolRetry(message[:MAX_ERROR_CHARS])
        case MCPError() if status == _NO_SESSION or (status == _REFUSED and _FORGOTTEN.match(message)):
            return NotSent(f"The MCP server {server} answered HTTP {status}: the call did not run.")
        case MCPError(code=code) if code == CONNECTION_CLOSED and message.startswith(_DID_NOT_COME):
            if not delivery.sent:
                delivery.may_run_again = True
                return NotSent(f"The MCP server {server} could not be reached: the call did not run.")
            return Lost(f"The connection to the MCP server {server} was lost before it answered: {unknown}.")
        case MCPError(code=code) if code == INTERNAL_ERROR and status >= _SERVER_ERROR:
            return Lost(f"The MCP server {server} answered HTTP {status}: {unknown}.")
        case MCPError(code=code) if code == INTERNAL_ERROR and status >= _REFUSED:
            return ToolFailed(f"The MCP server {server} refused with HTTP {status}: the call did not run.")
        case MCPError(code=code) if code == NEEDS_MORE or (
            code == INVALID_REQUEST and message.startswith(_REFUSED_TO_SERVERS)
        ):
            told = f"The MCP server {server} wanted something for this call that it does not get: {message}."
            return CannotAsk(told) if message.startswith(_CANNOT_ASK) else ToolRetry(told)
        case MCPError(code=code) if code not in (PARSE_ERROR, INVALID_REQUEST) or not message.startswith(_NOT_READ):
            return ToolFailed(f"The MCP server {server} refused: {message[:MAX_ERROR_CHARS]}")
        case MCPError() | RuntimeError() | ValidationError():
            why = message.partition("\n")[0][:MAX_ERROR_CHARS]
            return ToolLost(f"The answer of the MCP server {server} cannot be read: {unknown}. {why}")
        case _:
            return ToolFailed(f"The MCP server {server} could not be asked ({type(error).__name__}).")
