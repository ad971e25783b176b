"""Why a connection to an MCP server ended and what to do about it: `cause; advice`. Pure.

In our own words: a server's could carry anything, also a secret. What its process wrote is in `stderr.py`.
"""

import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
from mcp import MCPError

from segue.mcp.budget import McpServerGone
from segue.net.addresses import NoSuchHost, NotPublic

SPLIT = "; "
_OWN_LOG = "look into its own log"
_URL = "correct its url in mcp.json"
WEB_PAGE = f"it answered with a web page; {_URL}: the path of many ends in /mcp"
_MAX_PATH = 300


def reason_of(error: Exception, came: str = "nothing came") -> str:  # noqa: PLR0911 (one line per way to end)
    """Returns why a connection ended, and what helps; `came` is what the server had sent by then."""
    cause = _first(error)
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


def answered(status: int) -> str:
    """Why an HTTP server is none that can be used, by the status of its answer."""
    said = f"it answered HTTP {status}"
    match status:
        case 401 | 403:
            return f"{said}; give it a token that it takes under headers in mcp.json"
        case 404 | 405 | 406:
            return f"{said}; {_URL}: the path of many ends in /mcp"
        case 429:
            return f"{said}; it is asked too often: it is tried again by itself"
        case _ if status < 400:  # noqa: PLR2004 (HTTP's own number)
            return f"it redirects to elsewhere (HTTP {status}); write the address that it leads to as its url"
        case _:
            return f"{said}; {_OWN_LOG}"


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
            return f"there is no program {program} in PATH ({path[:_MAX_PATH]}); install it, or write its whole path"
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


def _first(error: Exception) -> Exception:
    """Returns of all that ended a connection what says most."""
    found = members_of(error)
    for kind in (McpServerGone, NotPublic, NoSuchHost, httpx2.HTTPError, OSError):
        for cause in found:
            if isinstance(cause, kind):
                return cause
    return found[0]


def members_of(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [cause for member in error.exceptions for cause in members_of(member)]
