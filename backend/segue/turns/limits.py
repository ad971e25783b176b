"""How much one user may ask for: requests and turns a minute, turns at once, tokens a day. What is 0 is not limited.

Counted in Redis, and by each process for itself while Redis is lost. `api/gate.py` asks for requests, `turn/service.py`
for turns; what a turn has used counts when it ends (`turn/worker.py`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from limits import RateLimitItemPerDay, RateLimitItemPerMinute

from segue.db.engine import Database
from segue.db.rates import Rates
from segue.db.redis import Cache
from segue.domain.clock import Clock
from segue.domain.errors import AppError
from segue.domain.ids import new_id
from segue.turns.concurrency_limit import Places

ASK_AGAIN_S = 2  # nobody knows when a turn ends


@dataclass(frozen=True, slots=True)
class UserLimits:
    requests_per_minute: int = 0
    turns_per_minute: int = 0
    concurrent_turns: int = 0
    tokens_per_day: int = 0


class Limiter:
    def __init__(self, limits: UserLimits, rates: Rates, cache: Cache, database: Database, clock: Clock) -> None:
        self._limits = limits
        self._rates = rates
        self._places = Places(cache, database, at_most=limits.concurrent_turns)
        self._clock = clock
        self._requests = RateLimitItemPerMinute(limits.requests_per_minute, namespace="user")
        self._turns = RateLimitItemPerMinute(limits.turns_per_minute, namespace="user")
        self._tokens = RateLimitItemPerDay(limits.tokens_per_day, namespace="user")

    async def request(self, user: str) -> None:
        """Raises AppError `rate_limited`."""
        if self._limits.requests_per_minute:
            wait_s = await self._rates.count("requests", user, self._requests)
            if wait_s is not None:
                raise _limited("requests_per_minute", self._limits.requests_per_minute, wait_s)

    @asynccontextmanager
    async def starting(self, user: str) -> AsyncIterator[str]:
        """The id of a turn that may be accepted within the block. Raises AppError `rate_limited`."""
        turn_id = new_id("turn", self._clock())
        await self._admit(user, turn_id)
        try:
            yield turn_id
        except AppError:  # nothing was accepted
            await self.give_back(user, turn_id)
            raise

    async def give_back(self, user: str, turn_id: str) -> None:
        """The place of a turn that was not accepted."""
        if self._limits.concurrent_turns:
            await self._places.give_back(user, turn_id)

    async def spend(self, user: str, tokens: int) -> None:
        """What a turn has used, also beyond the limit: a turn that runs is not cut off for it."""
        if self._limits.tokens_per_day and tokens:
            await self._rates.count("tokens", user, self._tokens, amount=tokens)

    async def _admit(self, user: str, turn_id: str) -> None:
        limits = self._limits
        if limits.tokens_per_day:
            wait_s = await self._rates.spent("tokens", user, self._tokens)
            if wait_s is not None:
                raise _limited("tokens_per_day", limits.tokens_per_day, wait_s)
        if limits.turns_per_minute:
            wait_s = await self._rates.count("turns", user, self._turns)
            if wait_s is not None:
                raise _limited("turns_per_minute", limits.turns_per_minute, wait_s)
        if limits.concurrent_turns and not await self._places.take(user, turn_id):
            raise _limited("concurrent_turns", limits.concurrent_turns, ASK_AGAIN_S)


def _limited(limit: str, at_most: int, wait_s: int) -> AppError:
    return AppError(
        "rate_limited",
        status=429,
        title="Rate limited",
        detail=f"{limit.replace('_', ' ').capitalize()}: at most {at_most} for one user. Try again in {wait_s} s.",
        retryable=True,
        extra={"limit": limit, "retry_after_s": wait_s},
    )
