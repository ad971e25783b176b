"""One run: load, faults and samples side by side; then calm, a last message to every session, and the check."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from asyncpg import InterfaceError, PostgresError
from psutil import NoSuchProcess
from redis.exceptions import RedisError

from tests.chaos.clients import Historian
from tests.chaos.history import ASKING
from tests.chaos.load import Talker
from tests.chaos.meter import HEADER, Sample, growth, row, sample
from tests.chaos.site import Site, own_stores, site_on
from tests.chaos.storm import Storm
from tests.support.commands import Starter, forked, fresh

SAMPLE_EVERY_S = 5.0
SAMPLES_A_ROW = 12
KINDS = (*ASKING, "steer", "cancel", "read", "look")
GONE = (OSError, TimeoutError, PostgresError, InterfaceError, RedisError, NoSuchProcess)  # a store or an instance


@dataclass(frozen=True, slots=True)
class Weather:
    """`faults` are methods of Storm and how often each is chosen, `calm_s` the time between two of them, on average.
    `histories` is in how many sessions at once the order of what several clients do is searched for. What Redis
    holds of new sessions has its time, so it `stays_flat` only if something empties it, or no sessions are made.
    """

    instances: int
    faults: Mapping[str, int]
    calm_s: float
    start: Starter
    histories: int = 0
    stays_flat: bool = True
    processes: int = 1  # of each instance


CHAOS = Weather(
    2,
    {
        "kill": 30,
        "kill_all": 3,
        "terminate": 3,
        "freeze": 2,
        "empty_redis": 2,
        "kill_redis": 1,
        "restart_postgres": 2,
        "restart_tools": 2,
    },
    calm_s=0.3,
    start=forked,
    histories=3,
)
ORDER = replace(CHAOS, faults={"kill": 9, "kill_all": 1}, histories=6, stays_flat=False)
BEHIND_SUPERVISORS: Mapping[str, int] = {"kill_one_process": 20, "kill_supervisor": 4, "renew": 4}
SOAK = Weather(1, {"restart_tools": 1}, calm_s=20.0, start=fresh)


class Run:
    def __init__(self, weather: Weather, *, seconds: float, seed: int, talkers: int = 6) -> None:
        self._weather = weather
        self._seconds = seconds
        self._seed = seed
        self._talkers = talkers
        self._samples: list[Sample] = []
        self._faults: Counter[str] = Counter()
        self._tally: Counter[str] = Counter()

    async def whole(self, folder: Path) -> list[str]:
        """Returns what is wrong, on stores of its own. Prints a table."""
        weather, random = self._weather, self._random("site")
        async with (
            own_stores(folder) as urls,
            site_on(
                urls, folder, random, instances=weather.instances, start=weather.start, processes=weather.processes
            ) as site,
        ):
            await self.through(site)
            async with site.stores() as stores:
                await site.ledger.check(stores.database)
            self._report(site)
            return site.ledger.wrongs

    async def through(self, site: Site) -> None:
        """Returns when the faults are over and every session has answered once more."""
        over = asyncio.Event()
        talkers = [Talker(site, self._random(f"talker {number}"), over) for number in range(self._talkers)]
        numbers = range(self._weather.histories)
        historians = [Historian(site, self._random(f"history {number}"), over, self._tally) for number in numbers]
        storm = Storm(site, self._random("storm"), self._weather.faults, calm_s=self._weather.calm_s)
        self._faults = storm.faults
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(storm.rage(over), name="faults")
            tasks.create_task(self._measure(site, over), name="samples")
            for talker in talkers:
                tasks.create_task(talker.talk(), name="talker")
            for historian in historians:
                tasks.create_task(historian.record(), name="history")
            await asyncio.sleep(self._seconds)
            over.set()
        await asyncio.gather(*(talker.say_goodbye() for talker in talkers))

    async def _measure(self, site: Site, over: asyncio.Event) -> None:
        """Ends by itself: a sample that was just given up for its time has once swallowed that it was cancelled."""
        started = time.monotonic()
        print(HEADER, flush=True)
        while not over.is_set():
            await asyncio.sleep(SAMPLE_EVERY_S)
            with suppress(*GONE):
                async with asyncio.timeout(SAMPLE_EVERY_S):
                    if not site.living:
                        continue
                    self._samples.append(await sample(site, started))
                    if len(self._samples) % SAMPLES_A_ROW == 0:
                        print(row(self._samples[-1]), flush=True)

    def _report(self, site: Site) -> None:
        table, grown = growth(self._samples)
        for what in grown if self._weather.stays_flat else ():
            site.ledger.wrong(what)
        kills = self._faults["kill"] + self._faults["kill_all"] * len(site.instances)
        seconds = sorted(turn.seconds for turn in site.ledger.turns)
        print("\n".join(table))
        print(f"turns   {dict(site.ledger.outcomes)}")
        print(f"        half of them within {seconds[len(seconds) // 2]:.1f} s, all within {seconds[-1]:.1f} s")
        print(f"faults  {dict(self._faults)}")
        told = self._tally
        print(
            f"history {told['operations']} operations, {told['unknown']} of unknown outcome, in {told['rounds']} rounds"
        )
        print(f"        {', '.join(f'{told[kind]} {kind}' for kind in KINDS)}")
        print(f"        {kills} kills, {told['undecided']} rounds undecided, {told['violations']} violations")
        print(f"errors  {dict(sum((each.errors for each in site.instances), Counter()))}")
        print(f"seed {self._seed}: {len(site.ledger.wrongs)} wrong", flush=True)

    def _random(self, name: str) -> Random:
        return Random(f"{self._seed} {name}")  # noqa: S311 (to be repeated)
