"""Ids, names of tools, digests, stored JSON, and the time of day.

An id is a prefix for the kind of thing and a ULID, so new rows lie side by side in an index. Never order by it: its
time is one process's clock. A service goes by PostgreSQL's time (`StoreClock`). Time zones are those of `tzdata`, the
same on every machine. Digests are stored, and several releases compare them. A child process imports this, and should
start fast: it needs no large library.
"""

import hashlib
import itertools
import re
import secrets
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

import orjson

Prefix = Literal[
    "ses", "turn", "msg", "call", "plan", "chg", "mem", "key", "br", "att", "evt", "login", "man", "sch", "trg"
]

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # that every provider takes
NOT_IN_A_TOOL_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
MAX_DEPTH: Final = 128  # of JSON: what this release stores is nested 64 levels and a few; orjson writes 254
UNREADABLE: Final = object()  # stands for JSON that cannot be used: it is of no type that a reader takes
OF_KEY, OF_BODY = 18, 8  # characters of an id that goes by an Idempotency-Key and by what was asked
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 64
_counter = itertools.count()  # orders the ids that one process makes within one millisecond


@lru_cache(1024)
def offered_name(name: str, taken: int = 0) -> str:
    """Returns the name that a tool is offered and shown under: its own, if it may be sent and none has `taken` it."""
    if TOOL_NAME.fullmatch(name) and not taken:
        return name
    digest = hashlib.sha256((f"{name}/{taken}" if taken else name).encode(errors="replace")).hexdigest()
    return f"{NOT_IN_A_TOOL_NAME.sub('_', name)[:55]}_{digest[:8]}"


def new_id(prefix: Prefix, at: datetime) -> str:
    """`call_01kb2…`: 48 bits of milliseconds, a 16-bit counter, 64 random bits, in Crockford's base 32, lower case."""
    return _written(prefix, at, next(_counter) & 0xFFFF, secrets.randbits(_RANDOM_BITS))


def first_id(prefix: Prefix, at: datetime) -> str:
    """Returns an id before all that a process makes from this moment of its clock on."""
    return _written(prefix, at, 0, 0)


def _written(prefix: Prefix, at: datetime, count: int, random: int) -> str:
    number = (int(at.timestamp() * 1000) << 16 | count) << _RANDOM_BITS | random
    return f"{prefix}_{''.join(_ALPHABET[number >> shift & 31] for shift in range(125, -5, -5))}"


def is_id(prefix: Prefix, text: str) -> bool:
    return re.fullmatch(id_pattern(prefix), text) is not None


def id_pattern(prefix: Prefix) -> str:
    return rf"^{prefix}_[0-9a-hjkmnp-tv-z]{{26}}$"


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


def digest_of_secret(secret: str) -> str:
    """Returns the digest of 256 random bits in a text, which need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def digest_of_json(value: Any) -> str:
    """Returns the digest of a value as JSON. Objects that differ in the order of their members have the same one."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_json(text: str | bytes) -> Any:
    """Returns UNREADABLE for text or bytes that are no JSON, hold a number beyond a double, or nest beyond MAX_DEPTH.
    JSONB writes 1e300 as 301 digits, and only orjson reads these as the float that was stored.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return UNREADABLE
    brackets = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return UNREADABLE if brackets > MAX_DEPTH and _is_deeper(value, MAX_DEPTH) else value


def _is_deeper(value: Any, levels: int) -> bool:
    inside: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in inside)
