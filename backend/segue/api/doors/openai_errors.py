"""Errors as OpenAI's clients read them: they show nothing of a problem+json. Every error below /v1 has this shape."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel

from segue.domain.doc import doc
from segue.domain.errors import AppError

PATHS: Final = "/v1/"
RETRIED: Final = frozenset({408, 409, 429})  # by their libraries, twice, as are those from 500 on
LONGEST_WAIT_S: Final = 60
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_THEIR_CODES: Final = {"unknown_agent": "model_not_found"}
_PARAMS: Final = {"unknown_agent": "model"}


class OpenAIErrorBody(BaseModel):
    """What went wrong, as OpenAI says it."""

    message: Annotated[str, doc("What went wrong, and what to do.")]
    type: Annotated[str, doc("What kind of error it is: `invalid_request_error`, `server_error`, …")]
    code: Annotated[str, doc("For programs: does not change. `model_not_found` is our `unknown_agent`.")]
    param: Annotated[str | None, doc("What in the request it is about.")] = None


class OpenAIError(BaseModel):
    """An error of the OpenAI-compatible routes."""

    error: Annotated[OpenAIErrorBody, doc("The error.")]


def error_body(error: AppError, faults: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """`faults` are what validation found; the first is what the error is about."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")  # noqa: PLR2004
    param = _PARAMS.get(error.code)
    if faults and len(faults[0]["loc"]) > 1:
        param = ".".join(faults[0]["loc"][1:])
    code = _THEIR_CODES.get(error.code, error.code)
    return {"error": {"message": error.detail, "type": kind, "code": code, "param": param}}


def error_headers(error: AppError) -> dict[str, str]:
    """Keeps a library from asking again if that cannot help, and names the turn that the error is of."""
    headers = {}
    wait_s = error.extra.get("retry_after_s", 0)
    helps = error.retryable and isinstance(wait_s, int) and wait_s <= LONGEST_WAIT_S
    if not helps and (error.status in RETRIED or error.status >= 500):  # noqa: PLR2004
        headers["x-should-retry"] = "false"
    named = {"X-Session-Id": error.extra.get("session_id"), "X-Turn-Id": error.extra.get("turn_id")}
    return headers | {name: str(value) for name, value in named.items() if value is not None}
