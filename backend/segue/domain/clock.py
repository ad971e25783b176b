"""The time of day: what gives it, and the default."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Returns the current time, aware and in UTC."""
    return datetime.now(UTC)
