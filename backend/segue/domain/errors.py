"""Every error that a client of Segue can see, as one type: sent as problem+json or as RUN_ERROR, and kept in a failed
turn's row. Errors that a tool addresses to the model are in `domain/tool.py`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, TypeVar

Found = TypeVar("Found")
TURN_CANCELLED: Final = "turn_cancelled"
NO_ROOM: Final = frozenset({"rate_limited", "service_limit_reached"})  # a cap left none: it lifts by itself
_OF_A_STEP: Final = {
    "ran": " The step that was approved had run.",
    "did_not_run": " What waited for a yes did not run.",
    "unknown": " The step that was approved was under way: it is not known whether it took effect.",
}
_OF_ONE: Final = ("errors", "retry_after_s", "retryable", "status")
ROWS: Final = tomllib.loads(files("segue.domain").joinpath("errors.toml").read_text("utf-8"))


class AppError(Exception):
    """An error for the client: a stable `code`, the HTTP `status`, and in `detail` what to do next. `errors` are faults
    of single fields (`loc`, `msg`, `type`). With `retry_after_s` seconds, then in `extra` too, it is retryable.
    """

    def __init__(
        self,
        code: str,
        *,
        status: int,
        title: str,
        detail: str = "",
        retryable: bool = False,
        retry_after_s: int | None = None,
        extra: Mapping[str, str | int] | None = None,
        errors: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(f"{code}: {detail or title}")
        self.code = code
        self.status = status
        self.title = title
        self.detail = detail or title
        self.retryable = retryable or retry_after_s is not None
        self.extra = dict(extra or {}) | ({} if retry_after_s is None else {"retry_after_s": retry_after_s})
        self.errors = tuple(errors)

    @property
    def problem(self) -> dict[str, Any]:
        """Returns the members of its problem+json, but for those of a request."""
        members = {"title": self.title, "status": self.status, "detail": self.detail, "code": self.code}
        return {"type": f"urn:segue:problem:{self.code}", **members, **self.extra}

    def with_extra(self, **extra: str | int) -> "AppError":
        """Adds members to the problem and returns the same error."""
        self.extra.update(extra)
        return self


def app_error(name: str, /, *, extra: Mapping[str, str | int] | None = None, **given: Any) -> AppError:
    """Returns the error of a row of errors.toml. `given` is what its title and detail have in braces, and what of this
    one error is another than its row says: `errors`, `retry_after_s`, `retryable`, `status`.
    """
    row = {"code": name, **ROWS[name]} | {member: given[member] for member in _OF_ONE if member in given}
    return AppError(**row | {text: row[text].format(**given) for text in ("title", "detail")}, extra=extra)


def turn_cancelled(approved_step: str | None = None) -> AppError:
    """`approved_step` is a key of _OF_A_STEP; None if nothing waited for a yes when the message came."""
    extra = {"approved_step": approved_step} if approved_step else None
    return app_error("turn_cancelled", of_a_step=_OF_A_STEP.get(approved_step or "", ""), extra=extra)


def rate_limited(limit: str, at_most: int | str, wait_s: int) -> AppError:
    what = limit.replace("_", " ").capitalize()
    return app_error("rate_limited", what=what, at_most=at_most, retry_after_s=wait_s, extra={"limit": limit})


def service_limit_reached(limit: str, wait_s: int, *, group: str = "") -> AppError:
    whose = f"all users in {group}" if group else "all users"
    return app_error("service_limit_reached", whose=whose, retry_after_s=wait_s, extra={"limit": limit})


class Unreadable(AppError):
    """A row holds what this release cannot read, and what was asked needs it."""

    def __init__(self, thing: str) -> None:
        rest = "Everything else in the session works: send another message to go on."
        detail = f"The stored {thing} is damaged, or written by a newer release, which can read it. {rest}"
        super().__init__("unreadable", status=409, title=f"The stored {thing} cannot be read", detail=detail)


class InvalidRequest(AppError):
    def __init__(self, detail: str) -> None:
        super().__init__("invalid_request", status=422, title="The request is not valid", detail=detail)


class NotFound(AppError):
    """A missing id, or another user's: the two look alike. `thing` becomes the code: `session_not_found`."""

    def __init__(self, thing: str) -> None:
        noun = thing.replace("_", " ")
        detail = f"There is no {noun} with this id."
        super().__init__(f"{thing}_not_found", status=404, title=f"No such {noun}", detail=detail)


def existing(thing: str, found: Found | None) -> Found:
    """Raises NotFound if there is none."""
    if found is None:
        raise NotFound(thing)
    return found
