"""Counts per user and minute in Redis; in this process alone while Redis is lost.

A window is fixed and starts with its first count, so that Retry-After is exact and a count is one round trip.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, get_args

from segue.db.redis import Cache

RateKind = Literal["requests", "turns"]

WINDOW_S: Final = 60

# KEYS: a count. ARGV: the limit, the window in seconds. Returns the milliseconds until the next window, -1 within the
# limit.
_COUNT: Final = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
if count <= tonumber(ARGV[1]) then return -1 end
return redis.call('PTTL', KEYS[1])
"""


class Rates:
    """`now` is in seconds, and never goes back."""

    def __init__(self, cache: Cache, *, now: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._now = now
        self._local: OrderedDict[str, tuple[int, float]] = OrderedDict()  # the count of a window, and when it ends

    async def count(self, kind: RateKind, user: str, at_most: int) -> int | None:
        """Counts one more. Returns None within the limit, else the seconds until the next window."""
        key = _key(kind, user)
        left_ms = await self._cache.evaluate(_COUNT, (key,), at_most, WINDOW_S)
        left_s = self._count_locally(key, at_most) if left_ms is None else left_ms / 1000
        return None if left_s < 0 else max(math.ceil(left_s), 1)

    def _count_locally(self, key: str, at_most: int) -> float:
        now = self._now()
        while self._local and next(iter(self._local.values()))[1] <= now:  # the first to begin is the first to end
            self._local.popitem(last=False)
        count, ends_at = self._local.get(key, (0, now + WINDOW_S))
        self._local[key] = count + 1, ends_at
        return ends_at - now if count >= at_most else -1


def belongs_to(key: str, user: str) -> bool:
    """Whether a Redis key counts for this user, or did so in the release before, whose keys last a day at most."""
    before = tuple(f"segue:rate:user/{kind}/{user}/" for kind in ("requests", "turns", "tokens"))
    return key in {_key(kind, user) for kind in get_args(RateKind)} or key.startswith(before)


def _key(kind: RateKind, user: str) -> str:
    return f"segue:rate:{kind}:{user}"
