"""Reads a provider's errors: HTTP statuses, and the error objects that come within an answer that claims to be one.

Every text of the provider's is redacted and bounded here, before anything else sees it.
"""

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from segue.agent.llm.model_errors import BAD_REQUEST, ProviderRefusal
from segue.agent.llm.providers.event_stream import BodyTooLong, bounded
from segue.agent.llm.providers.wire_json import read_json, write_json
from segue.domain.providers import OPENAI, ModelProvider
from segue.domain.redaction import without, without_secret_texts
from segue.tools.normalize import clean_text
from segue.tools.summaries import shortened

MAX_MESSAGE_CHARS: Final = 500
_MAX_BODY_BYTES = 100_000
_MAX_CODE_CHARS = 100
_TOO_FAR_S = 10.0**9  # a wait that nothing waits for

# The status that an error object within an answer would have had, by its code or type. Any other is the server's fault.
_STATUS_OF: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "insufficient_balance": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
}
_SERVERS_FAULT = 500
_PARAMETER = re.compile(r"[a-zA-Z_]\w*")
_MESSAGES = frozenset({"message", "detail"})
_MISSED = ("missing", "required", "must be passed", "must be provided", "must include", "must contain")
_NOT_A_PARAMETERS_FAULT = frozenset({"context_length", "quota", "content_filter", "no_model", "other_api"})


@dataclass(frozen=True, slots=True)
class RefusalReader:
    """`secrets` are blanked in what a provider says; `provider` tells what its settings are called."""

    secrets: Collection[str]
    provider: ModelProvider = OPENAI

    async def check(self, response: httpx2.Response) -> None:
        """Raises ProviderRefusal unless the response is a success; redirects are none, and never followed."""
        if response.is_success:
            return
        body = bytearray()
        try:
            async for piece in bounded(response, _MAX_BODY_BYTES):
                body += piece
        except (BodyTooLong, httpx2.RequestError):
            pass  # the status says enough
        try:
            said = read_json(bytes(body))
        except (ValueError, RecursionError):
            said = bytes(body[: 4 * MAX_MESSAGE_CHARS]).decode(errors="replace")
            said = "" if said.lstrip().startswith("<") else said
        raise self.refused(response.status_code, said, response.headers)

    def within(self, body: Any) -> ProviderRefusal | None:
        """Returns the error in an answer, or in one event of a stream."""
        error = error_in(body)
        if error is None:
            return None
        return self.refused(_status_of(error), error, {})

    def refused(self, status: int, said: Any, headers: Mapping[str, str]) -> ProviderRefusal:
        error = error_in(said) if isinstance(said, dict | list) else said
        details = error if isinstance(error, dict) else {}
        message = details.get("message") or details.get("detail") or error
        parameter = details.get("param")
        return ProviderRefusal(
            status,
            code=self._told(_code_of(details), _MAX_CODE_CHARS) or None,
            message=self._told(message, MAX_MESSAGE_CHARS),
            parameter=parameter if isinstance(parameter, str) else None,
            retry_after_s=retry_after_s(headers),
            provider=self.provider,
        )

    def _told(self, text: Any, max_chars: int) -> str:
        if not text:
            return ""
        text = text if isinstance(text, str) else write_json(text).decode()
        told: str = without(without_secret_texts(clean_text(text[: 8 * max_chars])), self.secrets)
        return shortened(" ".join(told.split()), max_chars)


def error_in(body: Any) -> Any:
    """Returns the error object of a body, of which endpoints have several forms, or None."""
    match body:
        case [dict() as first]:
            return error_in(first)
        case {"error": error} | {"choices": [{"error": error}, *_]} if error:
            return error
        case {"object": "error"}:
            return body
        case dict() if "choices" not in body and _MESSAGES & body.keys():
            return body
        case _:
            return None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns how long the provider wants to be left alone, in seconds: or None if it does not say."""
    given = headers.get("retry-after-ms"), headers.get("retry-after")
    for text, unit_s in zip(given, (0.001, 1.0), strict=True):
        if text is None:
            continue
        try:
            seconds = float(text) * unit_s
        except ValueError:
            seconds = _seconds_until(text)
        if seconds == seconds:  # noqa: PLR0124 (not NaN)
            return min(max(seconds, 0.0), _TOO_FAR_S)
    return None


def is_missed(refusal: ProviderRefusal, name: str) -> bool:
    """Whether a request is refused because something of this name is not in it."""
    said = refusal.message.lower()
    return refusal.status in BAD_REQUEST and name in said and any(word in said for word in _MISSED)


def parameter_named(refusal: ProviderRefusal, sent: Iterable[str]) -> str | None:
    """Returns the one of the names we sent that a refusal of the request is about."""
    if refusal.status not in BAD_REQUEST or refusal.cause.name in _NOT_A_PARAMETERS_FAULT:
        return None
    names = set(sent)
    for text in (refusal.parameter or "", refusal.message):
        if found := next((name for name in map(str, _PARAMETER.findall(text)) if name in names), None):
            return found
    return None


def _seconds_until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def _code_of(details: Mapping[str, Any]) -> str:
    names = (details.get(name) for name in ("code", "status", "type"))
    return next((str(name) for name in names if isinstance(name, str) and not name.isdigit()), "")


def _status_of(error: Any) -> int:
    if not isinstance(error, dict):
        return _SERVERS_FAULT
    for name in ("code", "status", "status_code", "type"):
        value = error.get(name)
        if isinstance(value, str):
            value = int(value) if value.isdecimal() and len(value) == 3 else _STATUS_OF.get(value.lower())  # noqa: PLR2004 (HTTP)
        if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004 (the same)
            return value
    return _SERVERS_FAULT
