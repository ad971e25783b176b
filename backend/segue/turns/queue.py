"""Carries turns between processes: a list in Redis of sessions in which a turn may wait. A lost, doubled or late entry
does no harm: Postgres decides who runs a turn, and recovery finds the lost. So a process with a free place sends none.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from segue.db.redis_connection import LOST, OPERATION_TIMEOUT_S, RedisServer, connections
from segue.db.redis_keys import QUEUE_CONNECTIONS

KEY = "segue:queue"
LISTEN_S = 5
KEPT_S = 3600  # after the last entry; recovery finds a turn within seconds without one
PAUSE_S = 1.0  # of a listener that has failed


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """`workers` counts the processes that take sessions, by their connections; None if Redis does not list them."""

    waiting: int
    workers: int | None


async def look_at_queue(url: str) -> QueueFacts | None:
    """Returns None if Redis cannot be reached."""
    async with Redis.from_pool(connections(url, 1)) as redis:
        with suppress(*LOST):
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                return QueueFacts(int(await redis.llen(KEY)), await _count_listeners(redis))
    return None


class TurnQueue:
    """Has `concurrency` places, for sessions of its own and for those sent to it; with 0 it only sends.
    `run_turns(session_id)` returns when this process has nothing more to do in that session.
    """

    def __init__(
        self, redis: RedisServer, run_turns: Callable[[str], Coroutine[None, None, None]], *, concurrency: int
    ) -> None:
        self._server = redis
        self._redis = Redis.from_pool(connections(redis.url, QUEUE_CONNECTIONS))
        # A connection for BLPOP alone: no other command waits behind it, and CLIENT LIST shows who listens.
        self._listener = Redis.from_pool(connections(redis.url, 1, timeout_s=LISTEN_S + OPERATION_TIMEOUT_S, retries=0))
        self._run_turns = run_turns
        self._concurrency = concurrency
        self._free = asyncio.Semaphore(max(concurrency - 1, 0))  # beside the listener's
        self._taking: asyncio.Task[None] | None = None
        self._here: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._concurrency:
            self._taking = asyncio.create_task(self._take_sessions(), name="the queue of turns")

    @property
    def alive(self) -> bool:
        return self._taking is None or not self._taking.done()

    @property
    def has_place(self) -> bool:
        """Whether this process takes turns and a place is free."""
        return self._taking is not None and not self._free.locked()

    async def hold_place(self, line: asyncio.Task[None]) -> None:
        """Takes a free place until the line ends."""
        await self._free.acquire()
        line.add_done_callback(lambda _: self._free.release())

    async def waiting(self) -> int | None:
        """Returns how many sessions no process has taken; None if Redis cannot be asked."""
        return await self._server.answer(lambda: self._redis.llen(KEY))

    async def workers(self) -> int | None:
        """Returns how many processes take sessions; None if Redis cannot be asked, or does not say."""
        return await self._server.answer(lambda: _count_listeners(self._redis))

    async def send(self, session_id: str) -> bool:
        """Takes the session here if a place is free, else sends it. False without Redis: then it has to run here."""
        if self.has_place:
            self._here.add(task := asyncio.create_task(self._run_turns(session_id), name=f"the turns of {session_id}"))
            task.add_done_callback(self._here.discard)
            await self.hold_place(task)
            return True
        return await self._push("RPUSH", session_id)

    async def stop_taking(self) -> None:
        """Puts the sessions that were taken back into the queue; the turns that run here are left alone."""
        taking, self._taking = self._taking, None
        for task in self._here:
            task.cancel()
        if taking is not None:
            taking.cancel()
            await asyncio.wait({taking})

    async def close(self) -> None:
        await self.stop_taking()
        for redis in (self._listener, self._redis):
            with suppress(*LOST):
                await redis.aclose()

    async def _take_sessions(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                if (session_id := await self._next()) is not None:
                    running = tasks.create_task(self._run_taken(session_id), name=f"the turns of {session_id}")
                    running.add_done_callback(lambda _: self._free.release())
                    await self._free.acquire()

    async def _next(self) -> str | None:
        await self._server.until_it_answers()
        try:
            taken: Any = await self._listener.blpop(KEY, timeout=LISTEN_S)
        except LOST as error:
            self._server.lose(error)
            await asyncio.sleep(PAUSE_S)
            return None
        return taken[1].decode(errors="replace") if taken else None

    async def _run_taken(self, session_id: str) -> None:
        try:
            await self._run_turns(session_id)
        except asyncio.CancelledError:
            await self._push("LPUSH", session_id)
            raise

    async def _push(self, command: str, session_id: str) -> bool:
        """Returns False if Redis cannot be reached."""
        async with self._redis.pipeline(transaction=False) as pipeline:  # sent as one
            pipeline.execute_command(command, KEY, session_id)
            pipeline.expire(KEY, KEPT_S)
            return await self._server.answer(pipeline.execute) is not None


async def _count_listeners(redis: Redis) -> int | None:
    """Returns how many connections to this database sent BLPOP last; None if Redis does not list them."""
    try:
        clients = await redis.client_list()
    except ResponseError:  # not every hosted Redis allows CLIENT LIST
        return None
    database = str(redis.connection_pool.connection_kwargs.get("db") or 0)
    return sum(client["cmd"] == "blpop" and client["db"] == database for client in clients)
