"""A connection that repeats what PostgreSQL gave up for another transaction: a deadlock, a serialization failure.

A statement by itself is sent again. Of a transaction all statements are sent again, with the values they had: if each
returns what it returned before, it is the same transaction, only later. If one does not, what was decided by the
answers may be wrong by now, and the failure is raised.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import asyncpg
import structlog

REPEATS: Final = 3
PAUSE_S: Final = 0.05
_ANEW: Final = "ROLLBACK; BEGIN ISOLATION LEVEL READ COMMITTED"
_GIVEN_UP: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

SendStatement = Callable[[], Awaitable[Any]]

log = structlog.get_logger()


class RepeatingConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A transaction is repeated only between `remember` and `forget`: all of its statements are SQLAlchemy's then."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sent: list[tuple[SendStatement, Any]] | None = None
        self._repeats = 0

    def remember(self) -> None:
        """Called as a transaction begins."""
        self._sent, self._repeats = [], 0

    def forget(self) -> None:
        self._sent = None

    async def prepare(self, query: str, **options: Any) -> "_Statement":
        return _Statement(self, await self._repeated(partial(super().prepare, query, **options)))

    async def executemany(self, command: str, args: Any, **options: Any) -> None:
        await self.run(partial(super().executemany, command, args, **options))

    async def run(self, send: SendStatement) -> Any:
        """Returns what `send` gives at last, and keeps it to compare if the transaction is repeated later."""
        answer = await self._repeated(send)
        if self._sent is not None:
            self._sent.append((send, answer))
        return answer

    async def _repeated(self, send: SendStatement) -> Any:
        alone = not (self.is_closed() or self.is_in_transaction())
        if alone:
            self._sent, self._repeats = None, 0
        failure = None
        while True:
            try:
                if failure is not None and not alone:
                    await self._send_again(failure)
                return await send()
            except _GIVEN_UP as error:
                failure = error
                if self._repeats == REPEATS or not (alone or self._sent is not None):
                    raise
            self._repeats += 1
            log.warning("transaction_repeated", sqlstate=failure.sqlstate, time=self._repeats)
            await asyncio.sleep(random.uniform(0.5, 1) * PAUSE_S * 2**self._repeats)  # noqa: S311 (no secret)

    async def _send_again(self, failure: Exception) -> None:
        """Raises `failure` if an answer is another one, or none."""
        await self.execute(_ANEW)
        for send, answer in self._sent or ():
            try:
                is_same = await send() == answer
            except _GIVEN_UP:
                raise
            except asyncpg.PostgresError:
                is_same = False
            if not is_same:
                self.forget()
                raise failure


class _Statement:
    """A prepared statement, as much of it as SQLAlchemy uses."""

    def __init__(self, connection: RepeatingConnection, prepared: Any) -> None:
        self._connection, self._prepared = connection, prepared
        self.get_attributes, self.get_statusmsg = prepared.get_attributes, prepared.get_statusmsg

    async def fetch(self, *args: Any) -> Any:
        rows, _ = await self._connection.run(partial(self._answer, args))
        return rows

    async def _answer(self, args: tuple[Any, ...]) -> tuple[Any, str | None]:
        return await self._prepared.fetch(*args), self._prepared.get_statusmsg()
