"""Redis keys of any type as JSON, and back."""

from typing import Any

from redis.asyncio import Redis


async def read_key(redis: Redis, key: str) -> dict[str, Any]:
    """Its type, value and the ms it has left (-1: for ever)."""
    kind = await redis.type(key)
    match kind:
        case "string":
            value: Any = await redis.get(key)
        case "hash":
            value = await redis.hgetall(key)
        case "list":
            value = await redis.lrange(key, 0, -1)
        case "set":
            value = sorted(await redis.smembers(key))
        case "zset":
            value = await redis.zrange(key, 0, -1, withscores=True)
        case "stream":
            value = await redis.xrange(key)
        case _:
            raise ValueError(f"{key} is a {kind!r}")
    return {"type": kind, "value": value, "left_ms": await redis.pttl(key)}


async def write_key(redis: Redis, key: str, recorded: dict[str, Any]) -> None:
    value = recorded["value"]
    match recorded["type"]:
        case "string":
            await redis.set(key, value)
        case "hash":
            await redis.hset(key, mapping=value)
        case "list":
            await redis.rpush(key, *value)
        case "set":
            await redis.sadd(key, *value)
        case "zset":
            await redis.zadd(key, dict(value))
        case "stream":
            for entry_id, fields in value:
                await redis.xadd(key, fields, id=entry_id)
    if recorded["left_ms"] > 0:
        await redis.pexpire(key, recorded["left_ms"])
