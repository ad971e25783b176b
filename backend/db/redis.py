"""The one way to Redis: every key, its TTL, and a client that is allowed to fail.

Redis only saves time. What fails or takes over a second answers "nothing there"; the outage is logged once.
"""

import asyncio
import math
from typing import Any

import orjson
import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError

OPERATION_TIMEOUT_S = 1.0

_GIVE_BACK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

log = structlog.get_logger()


def short_term_memory_key(session_id: str) -> str:
    return f"segue:memory:{session_id}"


def plan_cache_key(owner: str, request: str) -> str:
    return f"segue:plan:{owner}:{request}"


def failed_tools_key() -> str:
    return "segue:tools:failed"


def failed_sessions_key(tool: str) -> str:
    return f"segue:tools:failed:{tool}"


def tool_try_key(tool: str) -> str:
    return f"segue:tools:try:{tool}"


def connect(url: str, *, timeout_s: float = OPERATION_TIMEOUT_S, retries: int = 1) -> Redis:
    """A client that gives up after `timeout_s`. Not RESP3: redis-py fails its first command after a server's close."""
    return Redis.from_url(
        url,
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=OPERATION_TIMEOUT_S,
        retry=Retry(ConstantBackoff(0.05), retries),
    )


class Cache:
    """JSON values with a TTL, hashes, scripts and leases. A value that does not parse counts as missing."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)
        self._degraded = False

    async def get_json(self, key: str) -> Any | None:
        raw = await self._attempt("GET", key)
        try:
            return None if raw is None else orjson.loads(raw)
        except orjson.JSONDecodeError:
            log.warning("cache_value_unreadable", key=key)
            return None

    async def ttl_s(self, key: str) -> int:
        """The seconds a value has left; 0 where it is missing."""
        return max(int(await self._attempt("TTL", key) or 0), 0)

    async def set_json(self, key: str, value: object, *, ttl_s: int) -> None:
        await self._attempt("SET", key, orjson.dumps(value), "EX", ttl_s)

    async def delete(self, *keys: str) -> None:
        await self._attempt("DEL", *keys)

    async def hash(self, key: str) -> dict[str, bytes]:
        return {field.decode(): value for field, value in (await self._attempt("HGETALL", key) or {}).items()}

    async def evaluate(self, script: str, keys: tuple[str, ...], *args: Any) -> Any | None:
        return await self._attempt("EVAL", script, len(keys), *keys, *args)

    async def take(self, key: str, holder: str, *, ttl_s: float) -> bool:
        """A lease nobody else holds. Where Redis cannot be asked everyone gets it."""
        taken = await self._attempt("SET", key, holder, "NX", "PX", math.ceil(ttl_s * 1000))
        return bool(taken) or self._degraded

    async def give_back(self, key: str, holder: str) -> None:
        await self.evaluate(_GIVE_BACK, (key,), holder)

    async def ping(self) -> bool:
        return await self._attempt("PING") is not None

    async def close(self) -> None:
        await self._redis.aclose()

    async def _attempt(self, *command: Any) -> Any | None:
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                answer = await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError) as error:
            if not self._degraded:
                log.warning("redis_degraded", error=type(error).__name__)
            self._degraded = True
            return None
        if self._degraded:
            log.info("redis_recovered")
        self._degraded = False
        return answer
