"""Every key in Redis, its TTL, and clients that may fail; also the counts that limit a user's requests.

An operation that fails or takes over a second returns "not there", as do those after it; each process then counts
alone. A window of counts begins with its first count, so Retry-After is exact and a count is one round trip.
"""

import math
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, Final, Literal, get_args

import orjson
from redis.asyncio import Redis

from segue.db.outages import OutageCause
from segue.db.redis_connection import PROBE_KEY, RedisServer, connections
from segue.domain.ids import UNREADABLE, read_json
from segue.domain.session import TurnKey
from segue.log import log

TURN_EVENTS_TTL_S = 3600
TURN_WATCHED_TTL_S = 1200
FEED_TTL_S = 3600
MAX_LOG_ENTRIES = 4096
MAX_FEED_ENTRIES = 1000
FEED_STEP = 1000  # from the position of one millisecond's first entry of a feed to the next one's
READ_COUNT = 256
READ_BLOCK_MS, FEED_BLOCK_MS = 50, 200
# The budget of a process; docs/deployment.md adds it up.
CACHE_CONNECTIONS = 8
STREAM_CONNECTIONS = 4
QUEUE_CONNECTIONS = 8

FAILED_TOOLS_KEY = "segue:tools:failed"
UNTOLD_TOOLS_KEY = "segue:tools:untold"
DETAILS_DROPPED_KEY = "segue:turns:details_dropped"

# What Redis runs as one step.
SCRIPTS: Final[Mapping[str, str]] = tomllib.loads(files("segue.db").joinpath("scripts.toml").read_text("utf-8"))

WINDOW_S: Final = 60
RateKind = Literal["requests", "turns", "triggers"]


def _key_by(name: str) -> Callable[[str], str]:
    return f"segue:{name}:{{}}".format


def _key_by_two(name: str) -> Callable[[str, str], str]:
    return f"segue:{name}:{{}}:{{}}".format


short_term_memory_key = _key_by("memory")  # of a session
plans_of_owner_key = _key_by("plans")  # the keys of the plans that are cached for an owner
turn_places_key = _key_by("places")  # of a user
user_feed_key = _key_by("feed")
failed_sessions_key = _key_by("tools:failed")  # of a tool
tool_try_key = _key_by("tools:try")
activity_key = _key_by("activity")  # of a worker
turn_heard_key = _key_by("heard")  # of a turn
plan_cache_key = _key_by_two("plan")  # of an owner and a request
turn_events_key = _key_by_two("events")  # of a session and a turn
turn_watched_key = _key_by_two("watched")
_rate_key = _key_by_two("rate")  # of a kind and a user


class _Client:
    """Every operation ends within a second, or returns None."""

    def __init__(self, server: RedisServer, most: int = CACHE_CONNECTIONS) -> None:
        self._server = server
        self._redis = Redis.from_pool(connections(server.url, most))

    async def close(self) -> None:
        await self._redis.aclose()

    @property
    def degraded(self) -> bool:
        return self._server.degraded

    @property
    def cause(self) -> OutageCause | None:
        """Why Redis cannot be used; None if it can."""
        return self._server.cause

    async def _attempt(self, *command: Any) -> Any | None:
        return await self._server.answer(partial(self._redis.execute_command, *command))


class Cache(_Client):
    """JSON values with a TTL, hashes, scripts and leases. A value that does not parse counts as missing."""

    async def get_json(self, key: str) -> Any | None:
        raw = await self._attempt("GET", key)
        value = None if raw is None else read_json(raw)
        if value is UNREADABLE:
            log.warning("cache_value_unreadable", key=key)
            return None
        return value

    async def ttl_s(self, key: str) -> int:
        """Returns the seconds a value has left, 0 if it is missing."""
        return max(int(await self._attempt("TTL", key) or 0), 0)

    async def set_json(self, key: str, value: object, *, ttl_s: int) -> None:
        await self._attempt("SET", key, orjson.dumps(value, default=tuple), "EX", ttl_s)

    async def set_listed(self, key: str, value: object, *, listing: str, ttl_s: int) -> None:
        """Stores a value under a key that `delete_listed` finds."""
        await self.evaluate(SCRIPTS["set_listed"], (key, listing), orjson.dumps(value), ttl_s)

    async def delete_listed(self, listing: str) -> None:
        """Deletes the keys that `set_listed` has listed, and the listing."""
        await self.delete(*(await self._attempt("SMEMBERS", listing) or ()), listing)

    async def delete(self, *keys: str | bytes) -> None:
        await self._attempt("DEL", *keys)

    async def delete_where(self, is_gone: Callable[[str], bool]) -> int | None:
        """Goes over the names of all keys. Returns how many it deleted, None if Redis cannot be asked."""
        cursor, deleted = b"0", 0
        while True:
            answer = await self._attempt("SCAN", cursor, "COUNT", 1000)
            if answer is None:
                return None
            cursor, keys = answer
            if mine := [key for key in keys if is_gone(key.decode(errors="replace"))]:
                deleted += int(await self._attempt("DEL", *mine) or 0)
            if int(cursor) == 0:
                return deleted

    async def hash(self, key: str) -> dict[str, bytes]:
        return {field.decode(): value for field, value in (await self._attempt("HGETALL", key) or {}).items()}

    async def evaluate(self, script: str, keys: tuple[str, ...], *args: Any) -> Any | None:
        return await self._attempt("EVAL", script, len(keys), *keys, *args)

    async def take(self, key: str, holder: str, *, ttl_s: float) -> bool:
        """Returns whether the holder got the lease. If Redis cannot be asked, every caller gets it."""
        return bool(await self._attempt("SET", key, holder, "NX", "PX", math.ceil(ttl_s * 1000))) or self.degraded

    async def give_back(self, key: str, holder: str) -> None:
        await self.evaluate(SCRIPTS["give_back"], (key,), holder)

    async def ping(self) -> bool:
        """Writes, because a replica and a full Redis still answer what only reads."""
        return await self._attempt("SET", PROBE_KEY, 1, "EX", 1) is not None

    async def server(self) -> dict[str, Any] | None:
        """Returns the fields of INFO; None if Redis cannot be asked."""
        return await self._attempt("INFO")


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that are appended to a stream under one id."""

    turn: TurnKey
    last: int
    body: bytes
    opens: bool  # its stream, which no other batch creates
    renews: bool = True  # keeps its stream for TURN_EVENTS_TTL_S from now on, as one that opens it does


class Streams(_Client):
    """The event logs of turns: streams whose writer chooses the ids. Redis refuses an id that is not above the last.
    And the feeds of users, whose ids Redis makes of its time. A feed takes events once a reader has opened it.
    """

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server, STREAM_CONNECTIONS)

    async def append(self, batches: Sequence[Batch], told: Sequence[tuple[str, bytes]] = ()) -> bool:
        """Writes what was `told`, events by user, with the logs. Returns False if Redis cannot be reached. Drops a
        batch that Redis refuses: it was written before, or another process has taken over the log.
        """
        pipeline, bound = self._redis.pipeline(transaction=False), ("NOMKSTREAM", "MAXLEN", "~")
        for batch in batches:
            key = turn_events_key(batch.turn.session_id, batch.turn.turn_id)
            position = f"{batch.last}-0"
            if batch.opens:
                pipeline.eval(SCRIPTS["open_stream"], 1, key, MAX_LOG_ENTRIES, position, batch.body, TURN_EVENTS_TTL_S)
                continue
            pipeline.execute_command("XADD", key, *bound, MAX_LOG_ENTRIES, position, "events", batch.body)
            if batch.renews:
                pipeline.execute_command("EXPIRE", key, TURN_EVENTS_TTL_S)
        for user, event in told:
            pipeline.execute_command("XADD", user_feed_key(user), *bound, MAX_FEED_ENTRIES, "*", "event", event)
        return await self._server.answer(partial(pipeline.execute, raise_on_error=False)) is not None

    async def read(self, after: Mapping[TurnKey, int]) -> dict[TurnKey, list[tuple[int, bytes]]] | None:
        """Returns by turn the batches after a position; waits READ_BLOCK_MS for some. None if Redis is away."""
        turns = {turn_events_key(turn.session_id, turn.turn_id).encode(): turn for turn in after}
        ids = [f"{after[turn]}-0" for turn in turns.values()]
        answer = await self._attempt("XREAD", "COUNT", READ_COUNT, "BLOCK", READ_BLOCK_MS, "STREAMS", *turns, *ids)
        if answer is None and (self.degraded or len(after) == 1):
            return None
        if answer is None:  # one of the keys is no stream: that log counts as lost, the others do not
            found: dict[TurnKey, list[tuple[int, bytes]]] = {}
            for turn, position in after.items():
                found |= await self.read({turn: position}) or {}
            return found
        return {
            turns[key]: [(int(at.partition(b"-")[0]), fields.get(b"events", b"")) for at, fields in entries]
            for key, entries in answer
        }

    async def mark_watched(self, turn: TurnKey) -> None:
        """Asks the process that runs a turn to emit the model's words as they come, because a reader follows it."""
        await self._attempt("SET", turn_watched_key(turn.session_id, turn.turn_id), 1, "EX", TURN_WATCHED_TTL_S)

    async def is_watched(self, turn: TurnKey) -> bool:
        return await self._attempt("EXISTS", turn_watched_key(turn.session_id, turn.turn_id)) == 1

    async def length(self, session_id: str, turn_id: str) -> int | None:
        """Returns how many batches a log has; None if Redis cannot be reached."""
        return await self._attempt("XLEN", turn_events_key(session_id, turn_id))

    async def delete(self, session_id: str, turn_ids: Sequence[str]) -> None:
        keys = [key(session_id, turn_id) for turn_id in turn_ids for key in (turn_events_key, turn_watched_key)]
        if keys:
            await self._attempt("DEL", *keys, *map(turn_heard_key, turn_ids))

    async def open_feeds(self, users: Sequence[str], opening: bytes) -> list[int] | None:
        """Makes the feeds that are not there, with the event `opening`, and keeps all for FEED_TTL_S. Returns the
        positions of their last entries; None if Redis cannot be reached.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for user in users:
            pipeline.eval(SCRIPTS["open_feed"], 1, user_feed_key(user), FEED_TTL_S, opening)
        lasts = await self._server.answer(pipeline.execute)
        return None if lasts is None else [_position(last) for last in lasts]

    async def in_feed(self, user: str, position: int) -> bool:
        """Returns whether a feed still has this entry, and so all that follow it."""
        at = _id(position)
        return bool(await self._attempt("XRANGE", user_feed_key(user), at, at))

    async def read_feeds(self, after: Mapping[str, int]) -> dict[str, list[tuple[int, bytes]]] | None:
        """Returns by user what follows a position. Waits FEED_BLOCK_MS. None without Redis, or if a key is no feed."""
        users = {user_feed_key(user).encode(): user for user in after}
        ids = map(_id, after.values())
        answer = await self._attempt("XREAD", "COUNT", READ_COUNT, "BLOCK", FEED_BLOCK_MS, "STREAMS", *users, *ids)
        if answer is None:
            return None
        return {
            users[key]: [(_position(each), fields.get(b"event", b"")) for each, fields in entries]
            for key, entries in answer
        }

    async def clear_feed(self, user: str, opening: bytes) -> None:
        """A feed that is there begins anew, with the event `opening`."""
        await self._attempt("EVAL", SCRIPTS["clear_feed"], 1, user_feed_key(user), FEED_TTL_S, opening)


def _position(entry_id: bytes) -> int:
    """Fits a number of JavaScript until the year 2255."""
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds) * FEED_STEP + min(int(number), FEED_STEP - 1)


def _id(position: int) -> str:
    return "{}-{}".format(*divmod(position, FEED_STEP))


class Rates:
    """`now` is in seconds, and never goes back."""

    def __init__(self, cache: Cache, *, now: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._now = now
        self._local: OrderedDict[str, tuple[int, float]] = OrderedDict()  # the count of a window, and when it ends

    async def count(self, kind: RateKind, user: str, at_most: int) -> int | None:
        """Counts one more. Returns None within the limit, else the seconds until the next window."""
        key = _rate_key(kind, user)
        left_ms = await self._cache.evaluate(SCRIPTS["count"], (key,), at_most, WINDOW_S)
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
    return key in {_rate_key(kind, user) for kind in get_args(RateKind)} or key.startswith(before)
