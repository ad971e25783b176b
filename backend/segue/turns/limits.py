"""How much one user may ask for: requests and turns a minute, open turns at once. 0 is no limit.

Counted in Redis, and by each process for itself while Redis is lost. What a day may cost is asked of `usage/`, whose
rows are in PostgreSQL.
"""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

from segue.db.engine import Database
from segue.db.redis import Cache, Rates, turn_places_key
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.identity import Charge
from segue.domain.ids import Clock, new_id
from segue.turns.queries import statuses_of
from segue.users.account import Books

ASK_AGAIN_S = 2  # when a turn will end is not known
ACCEPTING_S = 10.0  # longer than any statement that accepts a turn can take
KEPT_S = 86_400
ATTEMPTS = 3

# KEYS: the user's places. ARGV: turn, now, how many there are, TTL in seconds, then turns that have ended.
# Returns nothing if the place was taken, else all holders and since when they hold.
_TAKE: Final = """
for index = 5, #ARGV do redis.call('ZREM', KEYS[1], ARGV[index]) end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return {}
"""
_RELEASE: Final = "return redis.call('ZREM', KEYS[1], ARGV[1])"

Holders = dict[str, float]


class Limiter:
    """`first_call` returns what the first call of the model for a message takes at most."""

    def __init__(
        self,
        books: Books,
        cache: Cache,
        *,
        first_call: Callable[[str], Charge],
    ) -> None:
        self._limits_of = books.limits_of
        self._rates = Rates(cache)
        self._books = books
        self._first_call = first_call
        self._concurrency = ConcurrencyLimit(cache, books.database, books.clock)

    async def request(self, user: str) -> None:
        """Raises AppError `rate_limited`."""
        if at_most := self._limits_of(user).requests_per_minute:
            wait_s = await self._rates.count("requests", user, at_most)
            if wait_s is not None:
                raise turn_errors.rate_limited("requests_per_minute", at_most, wait_s)

    @asynccontextmanager
    async def starting(self, user: str, message: str, *, again: str | None = None) -> AsyncIterator[str]:
        """Yields the id of a turn that may be accepted within the block, of `again` if that is to run again. Raises
        AppError `rate_limited`.
        """
        limits, turn_id = self._limits_of(user), again or new_id("turn", self._books.clock())
        if limits.turns_per_minute:
            wait_s = await self._rates.count("turns", user, limits.turns_per_minute)
            if wait_s is not None:
                raise turn_errors.rate_limited("turns_per_minute", limits.turns_per_minute, wait_s)
        at_once = limits.concurrent_turns
        if at_once and not await self._concurrency.take(user, turn_id, at_most=at_once):
            raise turn_errors.rate_limited("concurrent_turns", at_once, ASK_AGAIN_S)
        try:
            await self._books.reserve(user, turn_id, lambda: self._first_call(message), lasts_s=ACCEPTING_S)
            yield turn_id
        except AppError:  # nothing was accepted
            await self.release(user, turn_id)
            raise

    async def release(self, user: str, turn_id: str) -> None:
        """Frees the place of a turn that was not accepted, and what it had reserved."""
        if self._limits_of(user).concurrent_turns:
            await self._concurrency.release(user, turn_id)
        await self._books.release(user, turn_id)


class ConcurrencyLimit:
    """Redis holds which turns took a place. Only if none is free are the rows asked which of those turns have ended, so
    a place costs one round trip, ends with its turn although no process gives it back, and survives a crash.
    """

    def __init__(self, cache: Cache, database: Database, clock: Clock) -> None:
        self._cache = cache
        self._database = database
        self._clock = clock
        self._local: dict[str, Holders] = {}

    async def take(self, user: str, turn_id: str, *, at_most: int) -> bool:
        ended: Collection[str] = ()
        for _ in range(ATTEMPTS):
            holders = await self._try(user, turn_id, ended, at_most)
            if not holders:
                return True
            ended = await self._ended(holders)
            if not ended:
                return False
        return False

    async def release(self, user: str, turn_id: str) -> None:
        self._local.get(user, {}).pop(turn_id, None)
        await self._cache.evaluate(_RELEASE, (turn_places_key(user),), turn_id)

    async def _try(self, user: str, turn_id: str, ended: Collection[str], at_most: int) -> Holders:
        """Takes a place. Returns the holders of all places if none was free."""
        now = self._clock().timestamp()
        answer = await self._cache.evaluate(_TAKE, (turn_places_key(user),), turn_id, now, at_most, KEPT_S, *ended)
        if answer is None:
            return self._try_locally(user, turn_id, ended, now, at_most)
        return {holder.decode(): float(since) for holder, since in zip(answer[::2], answer[1::2], strict=True)}

    def _try_locally(self, user: str, turn_id: str, ended: Collection[str], now: float, at_most: int) -> Holders:
        holders = self._local.setdefault(user, {})
        for turn in ended:
            holders.pop(turn, None)
        if len(holders) >= at_most:
            return dict(holders)
        holders[turn_id] = now
        return {}

    async def _ended(self, holders: Holders) -> list[str]:
        """Returns the holders that have no open turn, except those that may be about to get their row."""
        async with self._database.read_only() as connection:
            stored = await statuses_of(connection, holders)
        accepting_since = self._clock().timestamp() - ACCEPTING_S
        return [
            turn
            for turn, since in holders.items()
            if (stored[turn] not in ("queued", "running") if turn in stored else since < accepting_since)
        ]
