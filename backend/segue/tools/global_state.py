"""Tool health for all sessions, in Redis: which tools have failed for all, and the lease of the one probe.

A tool that failed in enough sessions, with no success between, has failed for all. If Redis is lost, nothing has
failed: this only spares calls of a broken tool.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import structlog
from pydantic import TypeAdapter

from segue.db.reading import read_json, readable, reader
from segue.db.redis import FAILED_TOOLS_KEY, UNTOLD_TOOLS_KEY, Cache, failed_sessions_key, tool_try_key
from segue.domain.ids import new_id
from segue.domain.telemetry import GlobalToolStateChanged, Observe
from segue.tools.health import HealthRules, ToolHealth

KEPT_S: Final = 86_400  # of a tool that is not called any more

# KEYS: the tool's sessions, the failed tools, events that are not stored. ARGV: tool, session or "", now, since when
# sessions count, threshold, the health to keep, its TTL and that of the sessions in milliseconds, the event's id or "".
_FAILED: Final = """
if ARGV[2] ~= '' then
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[8])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[4])
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then
  if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[5]) then return 0 end
  if ARGV[9] ~= '' then
    redis.call('HSET', KEYS[3], ARGV[9], ARGV[1])
    redis.call('PEXPIRE', KEYS[3], ARGV[7])
  end
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
return 1
"""
_SUCCEEDED: Final = """
redis.call('DEL', KEYS[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
"""
_TOLD: Final = "return redis.call('HDEL', KEYS[1], ARGV[1])"

log = structlog.get_logger()

_HEALTH: Final = TypeAdapter(ToolHealth)
_read_health = reader(ToolHealth)


class GlobalToolState:
    """`tells` says that there is a webhook: then the same script that makes a tool fail for all lists its event."""

    def __init__(self, cache: Cache, rules: HealthRules, observe: Observe, *, tells: bool = False) -> None:
        self._cache = cache
        self._tells = tells
        self._rules = rules
        self._observe = observe

    async def load(self) -> dict[str, ToolHealth]:
        return await failed_for_all(self._cache)

    async def record_failure(self, tool: str, session_id: str | None, *, now: datetime) -> None:
        """Counts a failure; `session_id` is the session in which it made the tool fail, if it did.

        If the tool has failed for all this was its one probe: it stays failed from now on.
        """
        at = now.timestamp()
        opened = await self._cache.evaluate(
            _FAILED,
            (failed_sessions_key(tool), FAILED_TOOLS_KEY, UNTOLD_TOOLS_KEY),
            tool,
            session_id or "",
            at,
            at - self._rules.failure_s,
            self._rules.fleet_threshold,
            _HEALTH.dump_json(_failed_for_all(now)),
            round((KEPT_S + self._rules.failure_s) * 1000),
            round(self._rules.failure_s * 1000) + 1000,
            new_id("evt", now) if self._tells else "",
        )
        if opened:
            log.warning("tool_failed_for_all", tool=tool)
            self._observe(GlobalToolStateChanged(tool, failed=True))

    async def record_success(self, tool: str) -> None:
        """A success in any session makes the tool available for all."""
        if await self._cache.evaluate(_SUCCEEDED, (failed_sessions_key(tool), FAILED_TOOLS_KEY), tool):
            log.info("tool_recovered_for_all", tool=tool)
            self._observe(GlobalToolStateChanged(tool, failed=False))

    async def reset(self, tools: Iterable[str]) -> None:
        for tool in tools:
            if await self._cache.evaluate(_SUCCEEDED, (failed_sessions_key(tool), FAILED_TOOLS_KEY), tool):
                self._observe(GlobalToolStateChanged(tool, failed=False))
            await self._cache.delete(tool_try_key(tool))

    @asynccontextmanager
    async def probe(self, tool: str, holder: str, *, ttl_s: float) -> AsyncIterator[bool]:
        """Yields whether this is the only probe of the tool; one that hangs or dies holds it for `ttl_s` at most."""
        alone = await self._cache.take(tool_try_key(tool), holder, ttl_s=ttl_s)
        try:
            yield alone
        finally:
            if alone:
                await self._cache.give_back(tool_try_key(tool), holder)


async def failed_for_all(cache: Cache) -> dict[str, ToolHealth]:
    """Returns the tools that have failed for all, by name; one round trip."""
    stored = await cache.hash(FAILED_TOOLS_KEY)
    read = {tool: _readable(tool, value) for tool, value in stored.items()}
    return {tool: health for tool, health in read.items() if health is not None}


async def untold_failures(cache: Cache) -> dict[str, str]:
    """Returns the tools that have failed for all and whose event is not stored, by the id of the event."""
    return {event_id: tool.decode() for event_id, tool in (await cache.hash(UNTOLD_TOOLS_KEY)).items()}


async def told(cache: Cache, event_ids: Iterable[str]) -> None:
    """To be called once the events are committed."""
    for event_id in event_ids:
        await cache.evaluate(_TOLD, (UNTOLD_TOOLS_KEY,), event_id)


def _failed_for_all(now: datetime) -> ToolHealth:
    """What a tool said in one session is not shown to others: only that it has failed."""
    return ToolHealth(
        status="failed",
        reason="It has failed in several sessions.",
        reason_code="fleet_failed",
        failed_at=now,
        last_updated=now,
        last_failure_time=now,
    )


def _readable(tool: str, value: bytes) -> ToolHealth | None:
    return readable(_read_health, read_json(value), "fleet_states", tool)
