"""Whether the process that runs a turn is alive: each holds a lock on its own connection, and PostgreSQL drops the lock
of one that dies. A free lock takes no turn: it shortens the turn's lease to a grace, in which a process that merely
lost its connection renews it. Through a pooler no lock can be held, and the lease alone decides.
"""

import asyncio
import os
import socket
import time
from secrets import token_hex

import anyio
from sqlalchemy import text

from segue.db.engine import Connection, Database, is_pooled
from segue.db.outages import OutageLog
from segue.log import log

LOOK_EVERY_S = 0.5
GRACE_S = 1.0  # twice as long as a process takes to look after its leases
SETTLED_S = 5.0  # after an outage the others need as long as this to take their locks again
POOLED_RETRY_S = 60.0
START_WITHIN_S = 2.0

_TAKE = text("SELECT pg_advisory_lock(hashtextextended(:worker, 1))")
# A process without a lock, of an older release too, has a name without a slash.
_DOUBT = text("""
UPDATE turns SET lease_until = now() + make_interval(secs => :grace_s) WHERE id IN (
    SELECT id FROM turns
    WHERE status = 'running' AND worker LIKE '%/%' AND lease_until > now() + make_interval(secs => :grace_s)
    AND CAST(:settled AS boolean) AND NOT EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32 | objid::bigint) = hashtextextended(worker, 1)
    )
    FOR UPDATE SKIP LOCKED
) RETURNING id, worker
""")


class Presence:
    """`worker`, who claims turns for `lease_s` seconds, is a name that others find while this holds its lock."""

    def __init__(self, database: Database, *, lease_s: float) -> None:
        self._database = database
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._had_lock = False
        self._held = OutageLog("presence_not_held", "presence_held")
        self._tried, self._closing, self._lapsed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.lease_s, self.grace_s = lease_s, min(GRACE_S, lease_s / 2)
        self.worker = self._unlocked = f"{self._host}:{self._pid}"

    async def keep(self) -> None:
        """Holds the lock, and shortens the leases of processes that no longer hold theirs. Returns after `close`; a
        task that is cancelled instead may leave its connection open.
        """
        while not self._closing.is_set():
            again_in_s = LOOK_EVERY_S
            try:
                async with self._database.alone() as connection:
                    if await is_pooled(connection):
                        self._held.fails("a pooler: turns of a process that dies wait for their leases")
                        again_in_s = POOLED_RETRY_S
                    else:
                        await self._hold(connection)
            except Exception as error:  # noqa: BLE001 (what an outage does not explain may be over by the next try)
                self._held.fails(error)
            self.worker = self._unlocked
            self._tried.set()
            await _wait(self._closing, at_most_s=again_in_s)

    async def started(self) -> None:
        """Returns once turns can be claimed by the name of the lock, or soon if it cannot be had: then the lease of a
        turn decides, until `keep` has the lock and renews the turn by its name.
        """
        await _wait(self._tried, at_most_s=START_WITHIN_S)

    def close(self) -> None:
        """Releases the lock, for a process that no longer runs turns."""
        self._closing.set()

    async def wait_for_lapse(self, *, at_most_s: float) -> None:
        """Returns when a lease that was shortened here may have lapsed."""
        await _wait(self._lapsed, at_most_s=at_most_s)
        self._lapsed.clear()

    async def _hold(self, connection: Connection) -> None:
        """Raises AppError when the connection is lost."""
        worker = f"{self._host}/{token_hex(4)}:{self._pid}"  # a server that has not noticed a loss holds the old one
        await connection.execute(_TAKE, {"worker": worker})
        settled_at = time.monotonic() + (SETTLED_S if self._had_lock else 0)
        self.worker, self._had_lock = worker, True
        self._tried.set()
        while not self._closing.is_set():
            settled = time.monotonic() >= settled_at
            doubted = (await connection.execute(_DOUBT, {"grace_s": self.grace_s, "settled": settled})).all()
            self._held.works()
            for turn in doubted:
                log.warning("worker_gone", turn_id=turn.id, worker=turn.worker)
            await _wait(self._closing, at_most_s=self.grace_s if doubted else LOOK_EVERY_S)
            if doubted:
                self._lapsed.set()


async def _wait(event: asyncio.Event, *, at_most_s: float) -> None:
    with anyio.move_on_after(at_most_s):
        await event.wait()
