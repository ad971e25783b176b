"""Ids: a prefix for the kind of thing and a ULID, so that new rows lie side by side in an index.

Nothing is ordered by an id: its time is of one process's clock. Rows have a `seq`.
"""

import itertools
import re
import secrets
from datetime import datetime
from typing import Literal

Prefix = Literal["ses", "turn", "msg", "call", "plan", "chg", "mem", "key", "br", "att", "evt", "login"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 64
_counter = itertools.count()


def new_id(prefix: Prefix, at: datetime) -> str:
    """`call_01kb2…`: 48 bits of milliseconds, a 16-bit counter, 64 random bits, in Crockford's base 32, lower case.

    The counter orders the ids that one process makes within one millisecond.
    """
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
