"""The fleet tier of tool health, in Redis: what has failed for all sessions, and the lease of the one try.

A tool that failed out in enough sessions, with no success between, has failed for all. Redis lost means nothing has
failed: the tier only ever spares a broken tool, it never is a reason to wait for one.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import orjson
import structlog
from pydantic import TypeAdapter, ValidationError

from segue.db.redis import Cache, failed_sessions_key, failed_tools_key, tool_try_key
from segue.domain.telemetry import GlobalToolStateChanged, Observe
from segue.tools.health import HealthRules, ToolHealth

KEPT_S: Final = 86_400  # a tool nobody tries any more

# KEYS: the tool's sessions, the failed tools. ARGV: tool, session or "", now, since when sessions count, threshold,
# the health to keep, its TTL and that of the sessions in milliseconds.
_FAILED: Final = """
if ARGV[2] ~= '' then
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[8])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[4])
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 and redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[5]) then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
return 1
"""
_SUCCEEDED: Final = """
redis.call('DEL', KEYS[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
"""

log = structlog.get_logger()

_HEALTH: Final = TypeAdapter(ToolHealth)


class Fleet:
    def __init__(self, cache: Cache, rules: HealthRules, observe: Observe) -> None:
        self._cache = cache
        self._rules = rules
        self._observe = observe

    async def load(self) -> dict[str, ToolHealth]:
        """The tools that have failed for all, by name; one round trip."""
        stored = await self._cache.hash(failed_tools_key())
        read = {tool: _readable(tool, value) for tool, value in stored.items()}
        return {tool: health for tool, health in read.items() if health is not None}

    async def failed(self, tool: str, session_id: str | None, *, now: datetime) -> None:
        """After a failure; `session_id` is the session in which the tool has failed out with it. Of a tool that has
        failed for all it was the one try: it stays failed from now on.
        """
        at = now.timestamp()
        opened = await self._cache.evaluate(
            _FAILED,
            (failed_sessions_key(tool), failed_tools_key()),
            tool,
            session_id or "",
            at,
            at - self._rules.failure_s,
            self._rules.fleet_threshold,
            _HEALTH.dump_json(_failed_for_all(now)),
            round((KEPT_S + self._rules.failure_s) * 1000),
            round(self._rules.failure_s * 1000) + 1000,
        )
        if opened:
            log.warning("tool_failed_for_all", tool=tool)
            self._observe(GlobalToolStateChanged(tool, failed=True))

    async def succeeded(self, tool: str) -> None:
        """A success anywhere closes the matter for all."""
        if await self._cache.evaluate(_SUCCEEDED, (failed_sessions_key(tool), failed_tools_key()), tool):
            log.info("tool_recovered_for_all", tool=tool)
            self._observe(GlobalToolStateChanged(tool, failed=False))

    async def reset(self, tools: Iterable[str]) -> None:
        for tool in tools:
            if await self._cache.evaluate(_SUCCEEDED, (failed_sessions_key(tool), failed_tools_key()), tool):
                self._observe(GlobalToolStateChanged(tool, failed=False))
            await self._cache.delete(tool_try_key(tool))

    @asynccontextmanager
    async def trying(self, tool: str, holder: str, *, ttl_s: float) -> AsyncIterator[bool]:
        """Whether this is the one try of the whole fleet; whoever hangs or dies holds it no longer than `ttl_s`."""
        alone = await self._cache.take(tool_try_key(tool), holder, ttl_s=ttl_s)
        try:
            yield alone
        finally:
            if alone:
                await self._cache.give_back(tool_try_key(tool), holder)


def _failed_for_all(now: datetime) -> ToolHealth:
    """What a tool said in one session is not for the others: only that it has failed."""
    return ToolHealth(
        status="failed",
        reason="It has failed in several sessions.",
        reason_code="fleet_failed",
        failed_at=now,
        last_updated=now,
        last_failure_time=now,
    )


def _readable(tool: str, value: bytes) -> ToolHealth | None:
    try:
        return _HEALTH.validate_python(orjson.loads(value))
    except (orjson.JSONDecodeError, ValidationError):
        log.warning("fleet_state_unreadable", tool=tool)
        return None
