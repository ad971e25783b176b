"""Which turn a free place of this process gets: nobody takes more than a share of the places while others wait.

Who has a share is passed over, never kept waiting in a place, and found again when one is free. `worker.py` asks, and
runs what it gets; what every process has passed over is `recovery.py`'s to find.
"""

from collections import Counter
from collections.abc import Iterable

from segue.db.engine import Database
from segue.turns import store
from segue.turns.store import Claim


class FairClaims:
    """`running` are the owners of the turns that run here, each as often as they have one."""

    def __init__(self, database: Database, *, worker: str, places: int, lease_s: float) -> None:
        self._database = database
        self._worker = worker
        self._places = places
        self._lease_s = lease_s
        self._passed_over = False

    async def claim(self, session_id: str, running: Iterable[str]) -> Claim | None:
        """The session's next turn, unless it has none or its owner is passed over."""
        served = _well_served(Counter(running), self._places)
        async with self._database.autocommit() as connection:
            claim = await store.claim_next(
                connection, session_id, worker=self._worker, lease_s=self._lease_s, well_served=served
            )
        self._passed_over |= claim is None and bool(served)
        return claim

    async def passed_over(self, running: Iterable[str]) -> list[str]:
        """For each free place the session that has waited longest, whoever has less than a share first."""
        if not self._passed_over:
            return []
        self._passed_over = False
        held = Counter(running)
        free = self._places - held.total()
        async with self._database.read_only() as connection:
            waiting = await store.sessions_waiting(connection, last=_well_served(held, self._places), at_most=free)
        self._passed_over |= len(waiting) >= free
        return waiting


def _well_served(held: Counter[str], places: int) -> list[str]:
    """Who runs as many turns as each could if one more owner came."""
    return [owner for owner, count in held.items() if count * (len(held) + 1) >= places]
