"""The errors a turn may end with, worded for the user who sent the message. Each says that the message is kept."""

from collections.abc import Mapping, Sequence

from segue.domain.errors import AppError
from segue.domain.session import TurnKey

CANCELLED = "turn_cancelled"
RATE_LIMITED = "rate_limited"
SERVICE_LIMIT_REACHED = "service_limit_reached"
NO_ROOM = frozenset({RATE_LIMITED, SERVICE_LIMIT_REACHED})  # a cap left none: it lifts by itself
STEERED = "turn_steered"
_OF_A_STEP = {
    "ran": " The step that was approved had run.",
    "did_not_run": " What waited for a yes did not run.",
    "unknown": " The step that was approved was under way: it is not known whether it took effect.",
}


def turn_timeout(seconds: float) -> AppError:
    detail = f"The turn took longer than {seconds:g} s and was stopped. The message is kept; send another to go on."
    return AppError("turn_timeout", status=504, title="The turn took too long", detail=detail, retryable=True)


def storage_lost() -> AppError:
    """Unlike StorageUnavailable before a turn: the message is stored, and sending it anew would repeat it."""
    detail = (
        "The database was lost while the turn ran. The message is kept: do not send it again. Read "
        "GET /sessions/{session_id}/turns/{turn_id}, or repeat the request with its Idempotency-Key."
    )
    return AppError("storage_unavailable", status=503, title="Storage is unavailable", detail=detail, retry_after_s=2)


def output_invalid(faults: Sequence[str]) -> AppError:
    detail = (
        "The model's answer does not fit the schema that was asked for, nor does its second try: "
        f"{'; '.join(faults)}. The message is kept; ask with a simpler schema, or say in the message what goes where."
    )
    return AppError("output_invalid", status=502, title="The answer does not fit the schema", detail=detail)


def internal() -> AppError:
    detail = "Something went wrong on our side. The message is kept; send another to go on."
    return AppError("internal_error", status=500, title="The turn failed", detail=detail)


def interrupted() -> AppError:
    """For a client that waits at a process that stops. The turn itself has not ended."""
    detail = (
        "This process is stopping; the turn goes on elsewhere or at the next start. Do not send the message "
        "again: read GET /sessions/{session_id}/turns/{turn_id}, or repeat the request with its Idempotency-Key."
    )
    return AppError("turn_interrupted", status=503, title="The wait was interrupted", detail=detail, retry_after_s=2)


def gave_up(attempts: int) -> AppError:
    detail = (
        f"The process that ran this turn died, {attempts} times over, and it is not tried again. The message is kept; "
        "send another to go on."
    )
    return AppError("turn_gave_up", status=500, title="The turn could not be finished", detail=detail)


def cancelled(approved_step: str | None = None) -> AppError:
    """`approved_step` is a key of _OF_A_STEP; None if nothing waited for a yes when the message came."""
    detail = "The turn was cancelled. The message is kept, without an answer."
    extra = {"approved_step": approved_step} if approved_step else None
    detail += _OF_A_STEP.get(approved_step or "", "")
    return AppError(CANCELLED, status=409, title="The turn was cancelled", detail=detail, extra=extra)


def steered(reader: TurnKey) -> AppError:
    """Ends the event log of a turn whose message `reader` has read. No client sees this: it goes on in the reader's."""
    detail = "The message was read by the turn that ran when it came: follow that one."
    extra: dict[str, str | int] = {"turn_id": reader.turn_id, "turn_seq": reader.turn_seq, "run": reader.run}
    extra["session_id"] = reader.session_id
    return AppError(STEERED, status=409, title="Another turn has read the message", detail=detail, extra=extra)


def reader_of(extra: Mapping[str, str | int]) -> TurnKey:
    return TurnKey(str(extra["session_id"]), str(extra["turn_id"]), int(extra["turn_seq"]), int(extra["run"]))


def forked() -> AppError:
    """Of the last turn in a fork that ends before the turn's answer."""
    detail = "The session was forked before this turn was answered. Run it again, or send another message to go on."
    return AppError(CANCELLED, status=409, title="The turn was left out from here on", detail=detail)


def in_progress(turn_id: str) -> AppError:
    return AppError(
        "turn_in_progress",
        status=409,
        title="Another turn is in progress",
        detail="Nothing was accepted: the session has a turn that has not ended. Wait for it, or cancel it.",
        retryable=True,
        extra={"turn_id": turn_id},
    )


def not_in_history() -> AppError:
    detail = "Nothing was accepted: the message has left the history, and can only be read. Read the history anew."
    return AppError("not_in_history", status=409, title="The message is in another branch", detail=detail)


def not_the_users() -> AppError:
    detail = "Only what the user said can be edited. What the assistant said can be regenerated."
    return AppError("not_the_users", status=422, title="Not the user's message", detail=detail)


def cannot_edit_steer() -> AppError:
    detail = "Nothing was accepted: a turn read it while it ran. Edit the message that opened that turn."
    return AppError("cannot_edit_steer", status=422, title="The message steered a turn", detail=detail)


def cannot_retry() -> AppError:
    detail = "Only the last turn can be run again, if it failed or was cancelled. Regenerate an answer to have another."
    return AppError("cannot_retry", status=409, title="The turn cannot be run again", detail=detail)


def too_many_queued(limit: int) -> AppError:
    detail = f"Nothing was accepted: {limit} messages of this session wait for their turn. Send it when one is done."
    return AppError(
        "too_many_queued", status=429, title="Too many messages are waiting", detail=detail, retry_after_s=2
    )


def rate_limited(limit: str, at_most: int | str, wait_s: int) -> AppError:
    """Also the end of a turn whose next call of the model would pass the cap of a day."""
    detail = f"{limit.replace('_', ' ').capitalize()}: at most {at_most} for one user. Try again in {wait_s} s."
    return AppError(
        RATE_LIMITED, status=429, title="Rate limited", detail=detail, retry_after_s=wait_s, extra={"limit": limit}
    )


def service_limit_reached(limit: str, wait_s: int, *, group: str = "") -> AppError:
    """Also the end of a turn, as `rate_limited`. What the limit is, of all or of a group, only operators know."""
    whose = f"all users in {group}" if group else "all users"
    return AppError(
        SERVICE_LIMIT_REACHED,
        status=429,
        title="The service has reached its limit",
        detail=f"The service has reached its limit for today, for {whose} together. Try again in {wait_s} s.",
        retry_after_s=wait_s,
        extra={"limit": limit},
    )


def key_reused() -> AppError:
    detail = "Nothing was accepted: this key has come with another body. Use a new key for a new message."
    return AppError(
        "idempotency_key_reused", status=422, title="The Idempotency-Key was used for something else", detail=detail
    )
