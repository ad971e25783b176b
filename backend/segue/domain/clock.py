"""The time of day, where nobody gives another."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
