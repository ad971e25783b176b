"""How a turn may end other than with an answer, in words for whoever sent the message. Always: the message is kept."""

from backend.domain.errors import AppError


def turn_timeout(seconds: float) -> AppError:
    detail = f"The turn took longer than {seconds:g} s and was stopped. The message is kept; send another to go on."
    return AppError("turn_timeout", status=504, title="The turn took too long", detail=detail, retryable=True)


def lost_sight() -> AppError:
    """Unlike `storage_unavailable` before a turn: this message is in, and sending it again would be a second one."""
    return AppError(
        "storage_unavailable",
        status=503,
        title="Storage is unavailable",
        detail="The database was lost while the turn ran. The message is kept; read the session's messages before "
        "sending it again.",
        retryable=True,
        extra={"retry_after_s": 2},
    )


def internal() -> AppError:
    detail = "Something went wrong on our side. The message is kept; send another to go on."
    return AppError("internal_error", status=500, title="The turn failed", detail=detail)


def interrupted() -> AppError:
    return AppError(
        "turn_interrupted",
        status=503,
        title="The turn was interrupted",
        detail="The process that ran this turn stopped. The message is kept; send another to go on.",
        retryable=True,
    )
