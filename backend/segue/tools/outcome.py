"""What came of a tool call, and how a failure is recognised in what a tool says. Pure.

`run.py` makes outcomes, `results.py` stores them and `health.py` counts them.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from segue.domain.user_request import ToolAsks
from segue.tools.normalize import Payload, clean_text, no_payload

MAX_ERROR_CHARS: Final = 1000

Fault = Literal["tool", "unauthorized", "arguments", "refused", "asks"]

# Only what HTTP clients and the usual APIs write: a bare 401 may count mails, a parser complains of an invalid token.
_CREDENTIALS_REFUSED: Final = re.compile(
    r"""
      \b (?:HTTP(?:/[\d.]+)? | status(?:[ _]code)? | error[ _]code) [\s:="']* 401 \b
    | \b 401 \W+ (?:client[ ]error\W+)? unauthori[sz]ed \b
    | \A \W* unauthori[sz]ed \W* (?: \Z | [:.,] )
    | \b (?:unauthenticated | invalid_token | invalid_api_key | authentication_error) \b
    | \b (?:invalid|expired|missing|incorrect|bad|revoked|no[ ]valid)[ ]
         (?: api[ -]?key | (?:access|auth|oauth|bearer|refresh)[ ]token | (?:\w+[ ])?credentials ) \b
    | \b (?: api[ -]?key | (?:access|auth|oauth|bearer|refresh)[ ]token )[ ]
         (?:(?:is|was|has|has[ ]been)[ ])? (?:not[ ]valid|invalid|expired|revoked) \b
    | \b authentication[ ](?:failed|required|error) \b
    """,
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of a call. A failed call may have a payload too: what the tool returned when it failed.

    `unknown` is a call that may or may not have changed the world. Only the faults `tool` and `unauthorized` (refused
    credentials) count against the tool's health. `gist` and `identifiers` describe the payload; `summary`
    also says what was done to get it. `asks` is what the tool needs of the user before it is called again.
    """

    status: Literal["succeeded", "failed", "unknown"]
    payload: Payload
    error: str | None
    duration_ms: int
    fault: Fault | None = None
    summary: str = ""
    identifiers: tuple[str, ...] = ()
    gist: str = ""
    asks: ToolAsks | None = None


def failed(message: str) -> CallOutcome:
    """The outcome of a call that never reached a tool."""
    return CallOutcome("failed", no_payload(), clean_text(message)[:MAX_ERROR_CHARS], 0, "refused")


def asking(asks: ToolAsks, name: str, duration_ms: int) -> CallOutcome:
    """The outcome of a call whose tool needs something of the user first. Its words stay out of it."""
    told = f"{name} asks the user something first, and is called again with the answer. Do not call it again yourself."
    return CallOutcome("failed", no_payload(), told, duration_ms, "asks", asks=asks)


def lost(name: str) -> CallOutcome:
    """The outcome of a call whose process died before it was recorded."""
    interrupted = f"{name} was interrupted before its outcome was recorded. Whether it took effect is unknown"
    return CallOutcome("unknown", no_payload(), f"{interrupted}; do not repeat it unasked.", 0)


def reported_error(value: Any) -> str | None:
    """Returns the error that an answer reports of itself: a top-level `error`, or `success: false`."""
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if error:
        return (error if isinstance(error, str) else orjson.dumps(error).decode())[:MAX_ERROR_CHARS]
    if value.get("success") is False:
        return str(value.get("message") or "The tool answered success: false.")
    return None


def credentials_refused(error: str) -> bool:
    """Whether an error says that the tool's own credentials were refused, which trying again cannot mend."""
    return _CREDENTIALS_REFUSED.search(error) is not None
