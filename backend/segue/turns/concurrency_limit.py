"""Places for the turns a user may have open at once. Nobody gives one back when a turn ends: the rows know.

Redis holds who took a place. Only when none is free are the rows asked which of those turns are still open, so a place
costs one round trip, survives whoever crashed with it, and is never lost for longer than ACCEPTING_S.
"""

import time
from collections.abc import Collection
from typing import Final

from sqlalchemy import select

from segue.db.engine import Database
from segue.db.models import turns
from segue.db.redis import Cache, turn_places_key
from segue.domain.session import TurnStatus

ACCEPTING_S = 10.0  # longer than any statement that accepts a turn can take
KEPT_S = 86_400
ATTEMPTS = 3

_OPEN: Final[tuple[TurnStatus, ...]] = ("queued", "running")

# KEYS: the user's places. ARGV: turn, now, how many there are, TTL in seconds, then turns that have ended.
# Gives nothing where the place is taken, else who has the places and since when.
_TAKE: Final = """
for index = 5, #ARGV do redis.call('ZREM', KEYS[1], ARGV[index]) end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return {}
"""
_GIVE_BACK: Final = "return redis.call('ZREM', KEYS[1], ARGV[1])"

Holders = dict[str, float]


class Places:
    def __init__(self, cache: Cache, database: Database, *, at_most: int) -> None:
        self._cache = cache
        self._database = database
        self._at_most = at_most
        self._local: dict[str, Holders] = {}

    async def take(self, user: str, turn_id: str) -> bool:
        ended: Collection[str] = ()
        for _ in range(ATTEMPTS):
            holders = await self._try(user, turn_id, ended)
            if not holders:
                return True
            ended = await self._ended(holders)
            if not ended:
                return False
        return False

    async def give_back(self, user: str, turn_id: str) -> None:
        self._local.get(user, {}).pop(turn_id, None)
        await self._cache.evaluate(_GIVE_BACK, (turn_places_key(user),), turn_id)

    async def _try(self, user: str, turn_id: str, ended: Collection[str]) -> Holders:
        """Nobody where the place is taken, else who has them all."""
        now = time.time()
        answer = await self._cache.evaluate(
            _TAKE, (turn_places_key(user),), turn_id, now, self._at_most, KEPT_S, *ended
        )
        if answer is None:
            return self._try_here(user, turn_id, ended, now)
        return {holder.decode(): float(since) for holder, since in zip(answer[::2], answer[1::2], strict=True)}

    def _try_here(self, user: str, turn_id: str, ended: Collection[str], now: float) -> Holders:
        holders = self._local.setdefault(user, {})
        for turn in ended:
            holders.pop(turn, None)
        if len(holders) >= self._at_most:
            return dict(holders)
        holders[turn_id] = now
        return {}

    async def _ended(self, holders: Holders) -> list[str]:
        """Those without a row that is open, unless they may be about to get one."""
        statement = select(turns.c.id, turns.c.status).where(turns.c.id.in_(holders))
        async with self._database.read_only() as connection:
            stored = {row.id: row.status for row in await connection.execute(statement)}
        accepting_since = time.time() - ACCEPTING_S
        return [
            turn
            for turn, since in holders.items()
            if (stored[turn] not in _OPEN if turn in stored else since < accepting_since)
        ]
