"""The time of day: what gives it, and this machine's. A service goes by PostgreSQL's (`db/clock.py`)."""

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Returns the current time, aware and in UTC."""
    return datetime.now(UTC)
