"""The open turns of all processes, counted, and how long the first that could run has been waiting. Only reads."""

from typing import Any

from sqlalchemy import Float, Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import OPEN_TURNS, QUEUED, RUNNING, turns
from segue.telemetry.gauges import Backlog


async def read_backlog(connection: AsyncConnection) -> Backlog:
    row = (await connection.execute(_BACKLOG)).one()
    return Backlog(queued=row.queued, running=row.running, lapsed=row.lapsed, oldest_s=row.oldest_s)


def _counting() -> Select[*tuple[Any, ...]]:
    """Over the index of open turns. What waits behind another turn of its session is not waiting for a process."""
    queued, running = turns.c.status == QUEUED, turns.c.status == RUNNING
    busy = turns.alias("busy")
    behind = select(busy.c.id).where(busy.c.session_id == turns.c.session_id, busy.c.status == RUNNING).exists()
    waited = func.extract("epoch", func.now() - func.min(turns.c.queued_at).filter(queued, ~behind))
    return select(
        func.count().filter(queued).label("queued"),
        func.count().filter(running).label("running"),
        func.count().filter(running, turns.c.lease_until < func.now()).label("lapsed"),
        func.coalesce(waited.cast(Float), 0.0).label("oldest_s"),
    ).where(turns.c.status.in_(OPEN_TURNS))


_BACKLOG = _counting()
