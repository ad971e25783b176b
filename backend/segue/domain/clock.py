"""The time of day: what gives it, and this machine's. A service goes by PostgreSQL's (`db/clock.py`).

Time zones have the names of the IANA, as `tzdata` lists them: the same on every machine.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

Clock = Callable[[], datetime]

UNKNOWN_ZONE: Final = timezone(timedelta(0), "UTC, since the user's time zone is not known")


def utc_now() -> datetime:
    """Returns the current time, aware and in UTC."""
    return datetime.now(UTC)


@cache
def _zones() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


def known_zone(name: str) -> str:
    """Returns the name of a time zone. Raises ValueError for another text."""
    if name not in _zones():
        raise ValueError("This time zone is unknown. Use an IANA name such as Europe/Rome, America/New_York or UTC.")
    return name


def local_time(moment: datetime, zone: str) -> datetime:
    """Returns a moment in a time zone; in UNKNOWN_ZONE if that is none, such as one that a newer release knows."""
    return moment.astimezone(ZoneInfo(zone) if zone in _zones() else UNKNOWN_ZONE)
