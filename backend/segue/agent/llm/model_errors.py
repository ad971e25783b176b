"""What a provider does instead of answering, and what becomes of it: a cause, a retry or none, words for people.

The causes are one table. Knows no provider's format: `providers/` turns what comes over the wire into these errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from segue.domain.errors import AppError
from segue.domain.providers import OPENAI, ModelProvider

BROKE_OFF: Final = "The model provider broke off in the middle of the answer."
FIRST_DELAY_S: Final = 0.5
_MODELS_OWN: Final = frozenset({"model_unavailable", "model_timeout"})
BAD_REQUEST: Final = frozenset({400, 422})
MALFORMED: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class ModelFailure(Exception):
    """One of ProviderRefusal, ProviderUnreachable, NotAnAnswer and StreamIdle."""


@dataclass(eq=False)
class ProviderRefusal(ModelFailure):
    """An error of the provider's own, as an HTTP status or within an answer.

    `message` is redacted and bounded; `parameter` is the one it names; `retry_after_s` is its wait before another try.
    `provider` tells what its settings are called.
    """

    status: int
    code: str | None = None
    message: str = ""
    parameter: str | None = None
    retry_after_s: float | None = None
    provider: ModelProvider = OPENAI

    def __str__(self) -> str:
        return f"HTTP {self.status} {self.code or ''}: {self.message}"

    @property
    def cause(self) -> "Cause":
        """The first row of CAUSES that fits."""
        return next(cause for cause in CAUSES if cause.fits(self))


class ProviderUnreachable(ModelFailure):
    """No connection, or it broke before an answer began."""


class StreamIdle(ModelFailure):
    """The provider began an answer and fell silent for `seconds`."""

    setting: Final = "LLM_IDLE_TIMEOUT_S"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"silent for {seconds:g} s")
        self.seconds = seconds


class NothingCame(TimeoutError):
    """Not even a sign of life came within `seconds`."""

    setting: Final = "LLM_FIRST_TOKEN_TIMEOUT_S"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"nothing within {seconds:g} s")
        self.seconds = seconds


class NotAnAnswer(ModelFailure):
    """Something came that must not be taken for the model's answer. `again` says whether asking once more may help."""

    def __init__(self, detail: str, *, again: bool = True) -> None:
        super().__init__(detail)
        self.detail = detail
        self.again = again


def too_long(max_answer_bytes: int) -> NotAnAnswer:
    detail = f"The model's answer is longer than LLM_MAX_ANSWER_BYTES={max_answer_bytes} allows."
    return NotAnAnswer(detail, again=False)


@dataclass(frozen=True, slots=True)
class Cause:
    """Fits a refusal by any of: its status, its code, words in the message of a bad request. `advice` is for people,
    with the names of settings put in. `elsewhere` says that another model may answer.
    """

    name: str
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    advice: str = ""
    retryable: bool = False
    elsewhere: bool = True

    def fits(self, refusal: ProviderRefusal) -> bool:
        by_words = refusal.status in BAD_REQUEST and any(word in refusal.message.lower() for word in self.words)
        return refusal.status in self.statuses or refusal.code in self.codes or by_words


CAUSES: Final[Sequence[Cause]] = (
    Cause(
        "context_length",
        frozenset({413}),
        frozenset({"context_length_exceeded", "exceed_context_size_error"}),
        (
            "context length",
            "context window",
            "context size",
            "prompt is too long",
            "input is too long",
            "input token count",
        ),
        "The conversation is longer than {model} can take: lower CONTEXT_TOKEN_BUDGET.",
        elsewhere=False,
    ),
    Cause(
        "quota",
        frozenset({402}),
        frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance"}),
        ("credit balance is too low",),
        advice="The account is out of quota or credit: top it up, or set another {key}.",
    ),
    Cause(
        "content_filter",
        codes=frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"}),
        advice="The provider's content filter refused the conversation.",
        elsewhere=False,
    ),
    Cause(
        "other_api",
        words=("/v1/responses", "responses api"),
        advice="The model takes this on OpenAI's other API only: set LLM_API=auto.",
    ),
    Cause(
        "no_tools",
        words=("does not support tool", "does not support function calling", "tool calling is not supported"),
        advice="The model takes no tools: set {model} to one that does.",
    ),
    Cause("key", frozenset({401, 403}), frozenset({"invalid_api_key"}), ("api key not valid",), "Check {key}."),
    Cause("no_model", codes=frozenset({"model_not_found"}), advice="Check {model}."),
    Cause("not_found", frozenset({404, 405}), advice="Check {model} and {base_url}."),
    Cause(
        "redirect",
        frozenset(range(300, 400)),
        advice="It redirects, which is not followed: set {base_url} to where the endpoint really is.",
    ),
    Cause(
        "rate_limit",
        frozenset({429}),
        advice="It limits how much is asked of it: have the limit raised, or lower WORKER_CONCURRENCY.",
        retryable=True,
    ),
    Cause(
        "failing",
        frozenset({408, 409, 425, *range(500, 600)}),
        advice="It fails or has too much to do: see its own status, or set LLM_FALLBACK_MODEL.",
        retryable=True,
    ),
    Cause("refused", frozenset(range(600)), elsewhere=False),
)


# Errors of providers' own libraries, for a model that is given as one of LangChain's: by the name of a class.
_FOREIGN: Final[Mapping[str, type[Exception]]] = {
    "APITimeoutError": TimeoutError,
    "TimeoutException": TimeoutError,
    "APIConnectionError": ProviderUnreachable,
    "TransportError": ProviderUnreachable,
}


def from_library(error: BaseException) -> Exception | None:
    """Returns one of the errors above, or TimeoutError, for what a provider's library raised; None for any other."""
    for kind in type(error).__mro__:
        if kind.__name__ in _FOREIGN:
            return _FOREIGN[kind.__name__]()
    status = getattr(error, "status_code", None)
    return ProviderRefusal(status) if isinstance(status, int) else None


@dataclass(frozen=True, slots=True)
class Failure:
    """What the caller is told if this was the last attempt, and the seconds to wait before another."""

    error: AppError
    delay_s: float = FIRST_DELAY_S


def failure_of(error: Exception, *, attempt: int, setting: str, provider: ModelProvider) -> Failure:
    """`setting` is the one that names the model; `provider` tells what the others are called."""
    doubled = FIRST_DELAY_S * 2.0**attempt
    match error:
        case StreamIdle():
            return Failure(timeout(error.seconds, error.setting))
        case ProviderUnreachable():
            return Failure(unavailable(f"The model provider cannot be reached: check {provider.base_url}."), doubled)
        case ProviderRefusal():
            return Failure(
                _refusal(error, setting), doubled if error.retry_after_s is None else max(error.retry_after_s, 0.0)
            )
        case NotAnAnswer():
            return Failure(unavailable(error.detail, retryable=error.again))
        case _:
            detail = f"The model provider sent something that is no answer: check {provider.base_url}."
            return Failure(unavailable(detail))


def unavailable(detail: str, *, retryable: bool = True, provider_code: str | None = None) -> AppError:
    return AppError(
        "model_unavailable",
        status=502,
        title="The model is unavailable",
        detail=detail,
        retryable=retryable,
        extra={"provider_code": provider_code} if provider_code else None,
    )


def timeout(seconds: float, setting: str = "LLM_TIMEOUT_S") -> AppError:
    detail = f"The model did not answer within {seconds:g} s ({setting}). The message is kept; send another to go on."
    return AppError("model_timeout", status=504, title="The model took too long", detail=detail, retryable=True)


def budget_spent() -> AppError:
    detail = (
        "The turn has used all the model calls or tokens one turn may. The message is kept; ask for less at a time."
    )
    return AppError("turn_budget_spent", status=502, title="The turn asked too much of the model", detail=detail)


def another_may_answer(error: AppError) -> bool:
    """Whether another model may answer what this one did not."""
    if error.code not in _MODELS_OWN:
        return False
    match _cause_of(error):
        case ProviderRefusal() as refusal:
            return refusal.cause.elsewhere
        case NotAnAnswer() as broken:
            return broken.again
        case _:
            return True


def is_down(error: AppError) -> bool:
    """Whether the model would not answer another request either."""
    return isinstance(_cause_of(error), (ProviderRefusal, ProviderUnreachable, TimeoutError))


def outcome_of(error: AppError) -> str:
    """Returns what a failed call counts as, and is logged as: why the model gave no answer, else the error's code."""
    match _cause_of(error) or error.__cause__:
        case ProviderRefusal() as refusal:
            return refusal.cause.name
        case ProviderUnreachable():
            return "unreachable"
        case TimeoutError() | StreamIdle():
            return "too_slow"
        case NotAnAnswer() | ValueError() | TypeError() | KeyError() | IndexError() | AttributeError():
            return "no_answer"
        case _:
            return error.code


def what_to_mend(error: AppError, setting: str, provider: ModelProvider) -> str:
    """Returns the one sentence that names the setting to mend. `setting` is the one that names the model."""
    match _cause_of(error) or error.__cause__:
        case ProviderRefusal() as refusal if refusal.cause.advice:
            return _advice(refusal, setting)
        case ProviderUnreachable():
            return f"Check {provider.base_url}, and that this machine gets there."
        case ValueError() | TypeError() | KeyError() | IndexError() | AttributeError():
            return f"Check {provider.base_url}: what is there does not speak this protocol."
        case TimeoutError() | StreamIdle():
            return f"Check that {setting} is no model that is too slow, and that {provider.base_url} answers at all."
        case _:
            return f"Check {setting} and {provider.base_url}: what the provider said is above."


def _cause_of(error: AppError) -> BaseException | None:
    cause = error.__cause__
    return cause if isinstance(cause, (ModelFailure, TimeoutError)) else cause and from_library(cause)


def _advice(refusal: ProviderRefusal, setting: str) -> str:
    names = {"model": setting, "key": refusal.provider.key, "base_url": refusal.provider.base_url}
    return refusal.cause.advice.format_map(names)


def _refusal(refusal: ProviderRefusal, setting: str) -> AppError:
    cause = refusal.cause
    told = [f"The model provider answered HTTP {refusal.status}."]
    told.append("" if cause.retryable else _advice(refusal, setting))  # else a user waits, and operators see the log
    told.append(f"It said: {refusal.message}" if refusal.message else "")
    detail = " ".join(part for part in told if part)
    return unavailable(detail, retryable=cause.retryable, provider_code=refusal.code)
