"""Errors of errors.toml that need more than their row: of turns that were cancelled or steered, and of limits."""

from collections.abc import Mapping

from segue.domain.errors import AppError, app_error
from segue.domain.session import TurnKey

CANCELLED = "turn_cancelled"
NO_ROOM = frozenset({"rate_limited", "service_limit_reached"})  # a cap left none: it lifts by itself
STEERED = "turn_steered"
_OF_A_STEP = {
    "ran": " The step that was approved had run.",
    "did_not_run": " What waited for a yes did not run.",
    "unknown": " The step that was approved was under way: it is not known whether it took effect.",
}


def cancelled(approved_step: str | None = None) -> AppError:
    """`approved_step` is a key of _OF_A_STEP; None if nothing waited for a yes when the message came."""
    extra = {"approved_step": approved_step} if approved_step else None
    return app_error("turn_cancelled", of_a_step=_OF_A_STEP.get(approved_step or "", ""), extra=extra)


def steered(reader: TurnKey) -> AppError:
    ids: dict[str, str | int] = {"session_id": reader.session_id, "turn_id": reader.turn_id}
    return app_error("turn_steered", extra={**ids, "turn_seq": reader.turn_seq, "run": reader.run})


def reader_of(extra: Mapping[str, str | int]) -> TurnKey:
    return TurnKey(str(extra["session_id"]), str(extra["turn_id"]), int(extra["turn_seq"]), int(extra["run"]))


def rate_limited(limit: str, at_most: int | str, wait_s: int) -> AppError:
    what = limit.replace("_", " ").capitalize()
    return app_error("rate_limited", what=what, at_most=at_most, retry_after_s=wait_s, extra={"limit": limit})


def service_limit_reached(limit: str, wait_s: int, *, group: str = "") -> AppError:
    whose = f"all users in {group}" if group else "all users"
    return app_error("service_limit_reached", whose=whose, retry_after_s=wait_s, extra={"limit": limit})
