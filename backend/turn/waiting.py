"""Everyone who waits for a turn, in one place: told by whoever ends it here, or reading its row where another did.

Any number may wait for one turn. Nobody waits longer than the process lives: it says so before it goes.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from backend.db.engine import Database
from backend.domain.errors import AppError
from backend.memory.history import TurnKey
from backend.turn import failures
from backend.turn.records import Result, result_of

LOOK_AT_ROW_S = 1.0

Told = asyncio.Future[Result]


class Waiting:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._told: defaultdict[str, set[Told]] = defaultdict(set)
        self._leaving = False

    def tell(self, turn_id: str, result: Result) -> None:
        for told in self._told.get(turn_id, ()):
            if not told.done():
                told.set_result(result)

    def leave(self) -> None:
        """The process goes. Whoever waits hears that the turn goes on without it, and so does who comes later."""
        self._leaving = True
        for turn_id in self._told:
            self.tell(turn_id, failures.interrupted())

    @contextmanager
    def watching(self, turn_id: str) -> Iterator[Told]:
        """To be entered before the turn is sent off, or its end could be missed."""
        told: Told = asyncio.get_running_loop().create_future()
        if self._leaving:
            told.set_result(failures.interrupted())
        self._told[turn_id].add(told)
        try:
            yield told
        finally:
            self._told[turn_id].discard(told)
            if not self._told[turn_id]:
                del self._told[turn_id]

    async def result(
        self, turn: TurnKey, told: Told, *, runs_here: Callable[[str], bool], may_have_ended: bool = False
    ) -> Result:
        """What the turn came to. `may_have_ended`: look at its row before waiting.

        `runs_here(turn_id)`: this process will tell of it by itself, so that nobody needs to read its row.
        """
        wait_s = 0.0 if may_have_ended else LOOK_AT_ROW_S
        while True:
            await asyncio.wait({told}, timeout=wait_s)
            if told.done():
                return told.result()
            wait_s = LOOK_AT_ROW_S
            if runs_here(turn.turn_id):
                continue  # asking for it would only take connections from those that run
            try:
                async with self._database.reading() as connection:
                    result = await result_of(connection, turn)
            except AppError as error:
                raise failures.lost_sight() from error
            if result is not None:
                return result
