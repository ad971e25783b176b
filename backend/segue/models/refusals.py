"""Failures of providers to answer, and how each is handled: a cause, a retry or none, words for people. `RefusalReader`
redacts and bounds every text of the provider's before anything else sees it. Causes: `refusals.toml`.
"""

import re
import ssl
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import anyio
import httpx2

from segue.domain.agent import OPENAI, ModelProvider
from segue.domain.errors import AppError, app_error
from segue.domain.redaction import without, without_secret_texts
from segue.language.lexicon import load_toml
from segue.models.reply import read_json, write_json
from segue.net.http_client import TOO_FAR, BodyTooLarge, bounded, retry_after_s
from segue.tools.normalize import clean_text
from segue.tools.summaries import shortened

TABLE: Final = load_toml("refusals.toml", package="segue.models")
BROKE_OFF: Final = "The model provider broke off in the middle of the answer."
FIRST_DELAY_S: Final = 0.5
_MODELS_OWN: Final = frozenset({"model_unavailable", "model_timeout"})
BAD_REQUEST: Final = frozenset({400, 422})
BROKEN: Final = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)  # what a connection that breaks off raises
MALFORMED: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
MAX_MESSAGE_CHARS: Final = 500

_STATUSES: Final = {name: int(status) for status, names in TABLE["status"].items() for name in names}
_MESSAGES = ("message", "detail", "msg")
# A wait in an error: Gemini's `"retryDelay":"3.2s"` and everybody's "try again in 1m2.5s", a number of seconds or
# milliseconds, and OpenRouter's time at which a limit ends, in milliseconds since 1970. Then the parts of the first.
_WAIT = re.compile(
    r"(?:retryDelay\W{1,6}|\b(?:try again|retry) (?:in|after) )((?:\d{1,9}(?:\.\d{1,9})? ?[a-z]+[, ]*)+)", re.IGNORECASE
)
_WAIT_NUMBER = re.compile(
    r"\bretry[_-]?after(?:_?(ms)|_?s[a-z]*)?\W{1,6}(\d{1,9}(?:\.\d{1,9})?)(?![\w:-])", re.IGNORECASE
)
_RESET = re.compile(r"\bx-ratelimit-reset\W{1,6}(\d{13})\b", re.IGNORECASE)
_DURATION = re.compile(r"([\d.]+) ?(ms|milli|[hms])", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class ModelFailure(Exception):
    """One of ProviderRefusal, ProviderUnreachable, NotAnAnswer and StreamIdle."""


@dataclass(eq=False)
class ProviderRefusal(ModelFailure):
    """An error of the provider's own, as an HTTP status or within an answer."""

    status: int
    code: str | None = None
    message: str = ""  # redacted and bounded
    parameter: str | None = None  # the one that it names
    retry_after_s: float | None = None  # the provider's wait before another try
    provider: ModelProvider = OPENAI

    def __str__(self) -> str:
        return f"HTTP {self.status} {self.code or ''}: {self.message}"

    @property
    def cause(self) -> "Cause":
        """The first row of CAUSES that fits, else the last."""
        return next((cause for cause in CAUSES if cause.fits(self)), CAUSES[-1])


class ProviderUnreachable(ModelFailure):
    """No connection, or it broke before an answer began."""


@dataclass(eq=False)
class StreamIdle(ModelFailure):
    """The provider began an answer and fell silent for `seconds`."""

    seconds: float
    setting: ClassVar = "LLM_IDLE_TIMEOUT_S"


@dataclass(eq=False)
class NothingCame(TimeoutError):
    """No sign of life came within `seconds`."""

    seconds: float
    setting: ClassVar = "LLM_FIRST_TOKEN_TIMEOUT_S"


@dataclass(eq=False)
class NotAnAnswer(ModelFailure):
    """Something came that must not be taken for the model's answer. `again` says whether asking once more may help."""

    detail: str = BROKE_OFF
    again: bool = field(default=True, kw_only=True)
    is_filtered: bool = field(default=False, kw_only=True)


def too_long(max_answer_bytes: int) -> NotAnAnswer:
    detail = f"The model's answer is longer than LLM_MAX_ANSWER_BYTES={max_answer_bytes} allows."
    return NotAnAnswer(detail, again=False)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a request was refused: a row of `refusals.toml`. A status may be `5xx`."""

    name: str
    statuses: Collection[int | str] = ()
    codes: Collection[str] = ()
    words: Collection[str] = ()
    advice: str = ""
    retryable: bool = False
    elsewhere: bool = True

    def fits(self, refusal: ProviderRefusal) -> bool:
        by_status = refusal.status in self.statuses or f"{refusal.status // 100}xx" in self.statuses
        text = refusal.message.lower()
        return by_status or refusal.code in self.codes or any(word in text for word in self.words)


CAUSES: Final = [Cause(name, **row) for name, row in TABLE["cause"].items()]


@dataclass(frozen=True, slots=True)
class Failure:
    """The caller's error if this was the last attempt, and the seconds to wait before another."""

    error: AppError
    delay_s: float = 0.0


def failure_of(error: Exception, *, attempt: int, chance: float, setting: str, provider: ModelProvider) -> Failure:
    """`setting` is the one that names the model; `provider` tells what the others are called. `chance`, from 0 to 1,
    spreads the waits of many that were refused at once: over the half of ours, and never before the time asked for.
    """
    own_s = FIRST_DELAY_S * 2.0**attempt * (1 + chance) / 2
    match error:
        case StreamIdle():
            return Failure(timeout(error.seconds, error.setting), own_s)
        case ProviderUnreachable():
            return Failure(unavailable(f"The model provider cannot be reached: check {provider.base_url}."), own_s)
        case ProviderRefusal(retry_after_s=asked_s):
            return Failure(_refusal(error, setting), max(own_s, (asked_s or 0.0) * (1 + chance / 8)))
        case NotAnAnswer():
            return Failure(unavailable(error.detail, retryable=error.again), own_s)
        case _:
            detail = f"The model provider sent something that is no answer: check {provider.base_url}."
            return Failure(unavailable(detail), own_s)


def unavailable(detail: str, *, retryable: bool = True, provider_code: str | None = None) -> AppError:
    extra = {"provider_code": provider_code} if provider_code else None
    return app_error("model_unavailable", why=detail, retryable=retryable, extra=extra)


def timeout(seconds: float, setting: str = "LLM_TIMEOUT_S") -> AppError:
    return app_error("model_timeout", seconds=seconds, setting=setting)


def another_may_answer(error: AppError) -> bool:
    """Returns whether another model may answer what this one did not."""
    match error.__cause__:
        case ProviderRefusal(status=429):  # what is too much for this account, even at once, may not be for another
            return True
        case ProviderRefusal(cause=Cause(elsewhere=False)) | NotAnAnswer(again=False):
            return False
        case _:
            return error.code in _MODELS_OWN


def gave_no_answer(error: AppError) -> bool:
    """Returns whether a turn has no words because of the model, or of a turn's budget for it."""
    return error.code in {*_MODELS_OWN, "turn_budget_spent"}


def may_answer_otherwise(error: AppError) -> bool:
    """Returns whether the model may answer if it is asked in another way. No account, key or deadline is changed so."""
    match error.__cause__:
        case ProviderRefusal() as refusal:
            return refusal.cause.retryable or not refusal.cause.elsewhere
        case TimeoutError():
            return False
        case _:
            return error.code in _MODELS_OWN


def is_down(error: AppError) -> bool:
    """Returns whether the model would not answer another request either."""
    return isinstance(error.__cause__, (ProviderRefusal, ProviderUnreachable, TimeoutError))


def outcome_of(error: AppError) -> str:
    """Returns the name of a failed call in counts and logs: why the model gave no answer, else the error's code."""
    match error.__cause__:
        case ProviderRefusal() as refusal:
            return refusal.cause.name
        case ProviderUnreachable():
            return "unreachable"
        case TimeoutError() | StreamIdle():
            return "too_slow"
        case cause if isinstance(cause, (NotAnAnswer, *MALFORMED)):
            return "no_answer"
        case _:
            return error.code


def what_to_mend(error: AppError, setting: str, provider: ModelProvider) -> str:
    """Returns the one sentence that names the setting to mend. `setting` is the one that names the model."""
    cause, advice = error.__cause__, TABLE["advice"]
    if isinstance(cause, ProviderRefusal) and cause.cause.advice:
        return _advice(cause, setting)
    kind = "malformed" if isinstance(cause, MALFORMED) else outcome_of(error)
    template: str = advice.get(kind, advice["other"])
    return template.format(model=setting, base_url=provider.base_url)


def _advice(refusal: ProviderRefusal, setting: str) -> str:
    names = {"model": setting, "key": refusal.provider.key, "base_url": refusal.provider.base_url}
    return refusal.cause.advice.format_map(names)


def _refusal(refusal: ProviderRefusal, setting: str) -> AppError:
    retryable = refusal.cause.retryable
    advice = "" if retryable else _advice(refusal, setting)  # a user who can only wait gets none: it is in the log
    quoted = f"It said: {refusal.message}" if refusal.message else ""
    detail = " ".join(filter(None, (f"The model provider answered HTTP {refusal.status}.", advice, quoted)))
    return unavailable(detail, retryable=retryable, provider_code=refusal.code)


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
        with suppress(BodyTooLarge, httpx2.RequestError):  # the status says enough
            async for piece in bounded(response.aiter_bytes(), 100_000):
                body += piece
        try:
            content = read_json(bytes(body))
        except (ValueError, RecursionError):
            content = bytes(body[: 4 * MAX_MESSAGE_CHARS]).decode(errors="replace")
            content = "" if content.lstrip().startswith("<") else content
        raise self.refused(response.status_code, content, response.headers)

    def within(self, body: Any) -> ProviderRefusal | None:
        """Returns the error in an answer, or in one event of a stream."""
        error = error_in(body)
        return None if error is None else self.refused(_status_of(error), error, {})

    def refused(self, status: int, content: Any, headers: Mapping[str, str]) -> ProviderRefusal:
        answer = error_in(content) or content
        error = _behind_a_router(answer)
        details = error if isinstance(error, dict) else {}
        asked_s = retry_after_s(headers)
        is_limit = status == 429 and asked_s is None  # noqa: PLR2004 (HTTP)
        said = [{"x-ratelimit-reset": headers.get("x-ratelimit-reset") if is_limit else None}, error, content]
        waits = [each for each in (asked_s, _wait_in(said)) if each is not None]
        message = next((details[name] for name in _MESSAGES if details.get(name)), error)
        if status == 404 and "items are not persisted" in str(message).lower():  # noqa: PLR2004 (HTTP)
            status = 400  # of what was given back, not of the model
        parameter, names = details.get("param"), (details.get(name) for name in ("code", "status", "type"))
        code = next((name for name in names if isinstance(name, str) and not name.isdigit()), "")
        return ProviderRefusal(
            status if error is answer else _status_of(error, status),
            code=self._safe(code, 100) or None,
            message=self._safe(message, MAX_MESSAGE_CHARS),
            parameter=parameter if isinstance(parameter, str) else None,
            retry_after_s=max(waits, default=None),
            provider=self.provider,
        )

    def _safe(self, text: Any, max_chars: int) -> str:
        if not text:
            return ""
        text = text if isinstance(text, str) else write_json(text).decode()
        safe: str = without(without_secret_texts(clean_text(text[: 8 * max_chars])), self.secrets)
        return shortened(" ".join(safe.split()), max_chars)


def error_in(body: Any) -> Any:
    """Returns the error object of a body, of which endpoints have several forms, or None."""
    match body:
        case [dict() as first]:
            return error_in(first)
        case {"error": error} | {"choices": [{"error": error}, *_]} if error:
            return error
        case dict() if body.get("object") == "error" or ("choices" not in body and body.keys() & _MESSAGES):
            return body
        case {"errors": [dict() as first, *_]} if "choices" not in body:
            return first
        case {"base_resp": {"status_code": int(code), **said}} if code:  # MiniMax, beside what may be an answer
            return {"code": str(code), "message": said.get("status_msg")}
        case _:
            return None


def _behind_a_router(error: Any) -> Any:
    """Returns the error of the provider that a router asked, if its own has it in the `metadata`."""
    match error:
        case {"metadata": {"raw": raw, **more}} if raw:
            with suppress(ValueError, RecursionError):
                raw = read_json(raw.encode()) if isinstance(raw, str) else raw
            inner = error_in(raw) or raw
            inner = inner if isinstance(inner, dict) else {"message": inner}
            message = inner.get("message") or inner.get("detail") or error.get("message")
            return {**error, **inner, "message": f"{more.get('provider_name') or 'The provider'}: {message}"}
        case _:
            return error


def _wait_in(said: Any) -> float | None:
    """Returns the wait in seconds that an error's own words or fields ask for."""
    with suppress(RecursionError):
        text = write_json(said).decode()[: 16 * MAX_MESSAGE_CHARS]
        if found := _WAIT.search(text):
            parts = _DURATION.findall(found[1])
            return min(sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts), TOO_FAR)
        if found := _WAIT_NUMBER.search(text):
            return float(found[2]) * _SECONDS[(found[1] or "s").lower()]
        if found := _RESET.search(text):
            return max(int(found[1]) / 1000 - time.time(), 0.0)
    return None


def _status_of(error: Any, otherwise: int = 500) -> int:
    if not isinstance(error, dict):
        return otherwise
    for name in ("code", "status", "status_code", "type"):
        value = error.get(name)
        if isinstance(value, str):
            value = int(value) if value.isdecimal() and len(value) == 3 else _STATUSES.get(value.lower())  # noqa: PLR2004 (HTTP)
        if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004 (the same)
            return value
    return otherwise
