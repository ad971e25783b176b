"""The errors a turn may end with, by name, as turn_errors.toml words them for the user who sent the message."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, Literal

from segue.domain.errors import AppError
from segue.domain.session import TurnKey

CANCELLED = "turn_cancelled"
NO_ROOM = frozenset({"rate_limited", "service_limit_reached"})  # a cap left none: it lifts by itself
STEERED = "turn_steered"
_OF_A_STEP = {
    "ran": " The step that was approved had run.",
    "did_not_run": " What waited for a yes did not run.",
    "unknown": " The step that was approved was under way: it is not known whether it took effect.",
}
TurnErrorName = Literal[
    "turn_timeout", "storage_lost", "output_invalid", "internal_error", "turn_interrupted", "turn_gave_up",
    "turn_cancelled", "turn_steered", "forked", "turn_in_progress", "not_in_history", "not_the_users",
    "cannot_edit_steer", "cannot_retry", "too_many_queued", "rate_limited", "service_limit_reached",
    "idempotency_key_reused", "no_open_plan", "plan_expired", "waits_for_others", "decision_of_others",
    "decision_of_another", "yes_of_another", "invalid_args", "invalid_answer", "signature_invalid",
    "trigger_key_missing", "nothing_to_export", "conversation_too_long",
]  # fmt: skip
ROWS: Final = tomllib.loads(files("segue.domain").joinpath("turn_errors.toml").read_text("utf-8"))


def of(name: TurnErrorName, *, extra: Mapping[str, str | int] | None = None, **given: Any) -> AppError:
    """Returns the error of a row. `given` is what its detail has in braces, and `errors`, `retry_after_s`."""
    row = {"code": name, **ROWS[name]}
    wait_s: int | None = given.get("retry_after_s", row.pop("retry_after_s", None))
    told, errors = row["detail"].format(**given), given.get("errors", ())
    return AppError(**{**row, "detail": told}, retry_after_s=wait_s, extra=extra, errors=errors)


def cancelled(approved_step: str | None = None) -> AppError:
    """`approved_step` is a key of _OF_A_STEP; None if nothing waited for a yes when the message came."""
    extra = {"approved_step": approved_step} if approved_step else None
    return of("turn_cancelled", of_a_step=_OF_A_STEP.get(approved_step or "", ""), extra=extra)


def steered(reader: TurnKey) -> AppError:
    ids: dict[str, str | int] = {"session_id": reader.session_id, "turn_id": reader.turn_id}
    return of("turn_steered", extra={**ids, "turn_seq": reader.turn_seq, "run": reader.run})


def reader_of(extra: Mapping[str, str | int]) -> TurnKey:
    return TurnKey(str(extra["session_id"]), str(extra["turn_id"]), int(extra["turn_seq"]), int(extra["run"]))


def rate_limited(limit: str, at_most: int | str, wait_s: int) -> AppError:
    what = limit.replace("_", " ").capitalize()
    return of("rate_limited", what=what, at_most=at_most, retry_after_s=wait_s, extra={"limit": limit})


def service_limit_reached(limit: str, wait_s: int, *, group: str = "") -> AppError:
    whose = f"all users in {group}" if group else "all users"
    return of("service_limit_reached", whose=whose, retry_after_s=wait_s, extra={"limit": limit})
