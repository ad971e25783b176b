"""What the turns of a process are doing: their node, and the call of a model that they wait for.

Only the process itself knows. It says so in Redis, twice a second and for all its turns at once, once they have run for
LONG_S: a plain turn costs nothing. People read it, nothing is decided by it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import AwareDatetime

from segue.db.reading import cached, reader
from segue.db.redis import Cache, activity_key
from segue.domain.doc import doc
from segue.domain.timeline import RunTimeline

LONG_S: Final = 1.0
KEPT_S: Final = 600


@dataclass(frozen=True, slots=True)
class ModelWait:
    """A call of a model that has not answered."""

    name: Annotated[str, doc("The model that was asked.")]
    since: Annotated[AwareDatetime, doc("When it was asked, with all tries.")]


@dataclass(frozen=True, slots=True)
class TurnActivity:
    """`epoch` is the turn's: what a process says that has lost the turn counts for nothing."""

    epoch: int
    node: str | None
    model: ModelWait | None
    timeline: RunTimeline | None = None


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """What a process said last, and when."""

    at: AwareDatetime
    turns: dict[str, TurnActivity]


_read_said = reader(ActivityReport)


async def say(cache: Cache, worker: str, turns: Mapping[str, TurnActivity], *, now: datetime) -> None:
    await cache.set_json(activity_key(worker), ActivityReport(now, dict(turns)), ttl_s=KEPT_S)


async def heard(cache: Cache, workers: Iterable[str]) -> dict[str, ActivityReport]:
    """Returns what these processes said last, of those that have said something within KEPT_S."""
    names = sorted(set(workers))
    values = await asyncio.gather(*(cache.get_json(activity_key(name)) for name in names))
    found = zip(names, values, strict=True)
    read = {name: cached(_read_said, value) for name, value in found if value is not None}
    return {name: said for name, said in read.items() if said is not None}
