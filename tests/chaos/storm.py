"""Faults, one after the other: instances killed, ended and stopped, Redis emptied and killed, PostgreSQL restarted."""

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from random import Random

import psutil

from tests.chaos.site import ENDS_WITHIN_S, LEASE_S, Instance, Site

POSTGRES, REDIS = "postgres/postmaster.pid", "redis.pid"
DOWN_S = 1.0  # at most, before an instance is started again


class Storm:
    """`kinds` are the names of its methods, and how often each is chosen; `faults` counts what was done."""

    def __init__(self, site: Site, random: Random, kinds: Mapping[str, int], *, calm_s: float) -> None:
        self._site = site
        self._random = random
        self._kinds = kinds
        self._calm_s = calm_s
        self.faults: Counter[str] = Counter()

    async def rage(self, over: asyncio.Event) -> None:
        while not over.is_set():
            [fault] = self._random.choices(list(self._kinds), list(self._kinds.values()))
            self.faults[fault] += 1
            await getattr(self, fault)()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._random.uniform(0, 2 * self._calm_s)):
                    await over.wait()

    async def kill(self) -> None:
        instance = self._one()
        await instance.end(signal.SIGKILL)
        await self._start(instance)

    async def kill_all(self) -> None:
        instances = self._site.instances
        await asyncio.gather(*(instance.end(signal.SIGKILL) for instance in instances))
        await asyncio.gather(*map(self._start, instances))

    async def kill_one_process(self) -> None:
        """Of those behind a supervisor, which replaces it."""
        self._one().signal(signal.SIGKILL, to_supervisor=False, to_all=False)

    async def kill_supervisor(self) -> None:
        instance = self._one()
        try:
            await instance.lose_supervisor()
        except psutil.TimeoutExpired:
            self._site.ledger.wrong("a process does not end without its supervisor")
        await self._start(instance)

    async def renew(self) -> None:
        """The processes behind a supervisor, one after the other."""
        instance = self._one()
        if instance.process is not None:
            os.kill(instance.process.pid, signal.SIGHUP)

    async def terminate(self) -> None:
        instance, started = self._one(), time.monotonic()
        try:
            await instance.end(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self._site.ledger.wrong("an instance does not end on SIGTERM")
        if time.monotonic() - started > ENDS_WITHIN_S:
            self._site.ledger.wrong(f"an instance took {time.monotonic() - started:.0f} s to end on SIGTERM")
        await self._start(instance)

    async def freeze(self) -> None:
        """For longer than a lease."""
        instance = self._one()
        instance.signal(signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(1.2, 2.5) * LEASE_S)
        instance.signal(signal.SIGCONT)

    async def empty_redis(self) -> None:
        async with self._site.stores() as stores:
            await stores.redis.flushall()

    async def kill_redis(self) -> None:
        self._site.end_server(REDIS, signal.SIGKILL)
        await self._site.stores_answer()

    async def restart_postgres(self) -> None:
        number = self._random.choice((signal.SIGINT, signal.SIGQUIT, signal.SIGKILL))
        self._site.end_server(POSTGRES, number)
        await asyncio.sleep(0.5)
        await self._site.stores_answer()

    async def restart_tools(self) -> None:
        await self._site.tools.stop()
        await self._site.tools.start()

    def _one(self) -> Instance:
        return self._random.choice(self._site.instances)

    async def _start(self, instance: Instance) -> None:
        await asyncio.sleep(self._random.uniform(0, DOWN_S))
        await instance.start()
