"""Why Postgres cannot be used: every cause by name (outages.toml), what a client is told, and what the log.

The SQLSTATE or the type of an error tells the cause, not its text, which may hold part of the URL or a user's words;
only a pooler and a server without TLS are known by text. An outage is logged once in a while, with who blocks.
"""

import asyncio
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.resources import files
from socket import gaierror
from ssl import SSLError
from typing import Final, NoReturn

from asyncpg import ClientConfigurationError, InterfaceError, InternalClientError, PostgresError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.domain.errors import AppError
from segue.log import log
from segue.watch import end_tasks

READ_ONLY_STATE: Final = "25006"
DISK_FULL_STATE: Final = "53100"
PROTOCOL_VIOLATION: Final = "08P01"


@dataclass(frozen=True, slots=True)
class OutageCause:
    """A row of outages.toml, which says what its members are."""

    name: str
    why: str
    mend: str
    code: str = "storage_unavailable"
    states: Sequence[str] = field(default=(), compare=False)


_ROWS = tomllib.loads(files("segue.db").joinpath("outages.toml").read_text("utf-8"))
POSTGRES = {name: OutageCause(name, **row) for name, row in _ROWS["postgres"].items()}
REDIS = {name: OutageCause(name, **row) for name, row in _ROWS["redis"].items()}
_NAMED = ("conflict", "failing", "locked", "lost", "pooler", "read_only", "refused", "tls")
CONFLICT, FAILING, LOCKED, LOST, POOLER, READ_ONLY, REFUSED, TLS = (POSTGRES[name] for name in _NAMED)
_BY_STATE: Final = {state: cause for cause in POSTGRES.values() for state in cause.states}
_BY_KIND: Final[Mapping[type[BaseException], OutageCause]] = {
    gaierror: POSTGRES["unknown_host"],
    SSLError: TLS,
    ConnectionRefusedError: REFUSED,
    FileNotFoundError: REFUSED,  # a server that is starting has no socket yet
    ConnectionError: LOST,
    DisconnectionError: LOST,
    InterfaceError: LOST,  # this and the next are the driver's, of a connection that ends as it is set up:
    InternalClientError: LOST,  # the server has said so, and has not hung up yet
    TimeoutError: POSTGRES["no_answer"],
    PoolTimeoutError: POSTGRES["pool_busy"],
}
# What an outage can raise. `cause_of` says whether it is one.
OUTAGES: Final = (OSError, RuntimeError, DBAPIError, PostgresError, *_BY_KIND)


class StorageUnavailable(AppError):
    """Postgres cannot be used now. Its text holds nothing of the statement."""

    def __init__(self, cause: OutageCause) -> None:
        again = "Try again in a moment; with an Idempotency-Key nothing is done twice."
        detail = f"The database cannot be used: {cause.why}. {again}"
        super().__init__(cause.code, status=503, title="Storage is unavailable", detail=detail, retry_after_s=2)
        self.cause = cause


def state_of(error: BaseException) -> str:
    """Returns the SQLSTATE of the driver's error, or ""."""
    return getattr(getattr(error, "orig", None) or error, "sqlstate", None) or ""


def cause_of(error: BaseException) -> OutageCause | None:
    """Returns None if it is no outage, but a fault of ours or an answer to what was asked."""
    state = state_of(error)
    if unsaid := _without_state(error, state):
        return unsaid
    if state == READ_ONLY_STATE:  # else it is a write where only reading is meant
        return READ_ONLY if getattr(error, "connection_invalidated", False) else None
    if known := _BY_STATE.get(state) or _BY_STATE.get(state[:2]):
        return known
    if isinstance(error, DBAPIError):
        return LOST if error.connection_invalidated or not state else None
    if isinstance(error, RuntimeError):
        # uvloop raises it for a connection that the server has just closed
        return LOST if "handler is closed" in str(error) else None
    # asyncio's, if a name has several addresses, has no number
    several = REFUSED if type(error) is OSError and error.errno is None else None
    return next((cause for kind, cause in _BY_KIND.items() if isinstance(error, kind)), several)


def _without_state(error: BaseException, state: str) -> OutageCause | None:
    """Returns a cause without SQLSTATE and type: `ssl` is all of a URL that the driver can find wrong."""
    if state == PROTOCOL_VIOLATION and "startup parameter" in str(error):
        return POOLER
    if isinstance(getattr(getattr(error, "orig", None), "__cause__", None), ClientConfigurationError):
        return TLS
    return TLS if type(error) is ConnectionError and "rejected SSL upgrade" in str(error) else None


LOG_EVERY_S: Final = 10.0
LOOK_S: Final = 2.0
_BLOCKER = text(_ROWS["blocker"])


@dataclass(frozen=True, slots=True)
class Blocker:
    """A connection that holds a lock. Its query is left out: one not sent by this service may hold a user's words."""

    blocking_pid: int
    blocking_application: str | None
    blocking_state: str | None
    blocking_query_start: datetime | None
    blocking_for_s: int | None
    is_certain: bool  # another one waits for it at the moment; else it is the one that looks most like it

    def __str__(self) -> str:
        since = f"{self.blocking_query_start:%H:%M:%S} UTC" if self.blocking_query_start else "unknown"
        certainty = "blocked by" if self.is_certain else "probably blocked by"
        application = self.blocking_application or "unnamed"
        return (
            f"{certainty} pid {self.blocking_pid} ({application}, {self.blocking_state}), whose "
            f"transaction is {self.blocking_for_s} s old and whose last query began at {since}"
        )


class OutageLog:
    """Logs what goes wrong again and again, as `failed`, once for each reason, and its end as `over`."""

    def __init__(self, failed: str, over: str) -> None:
        self._failed, self._over = failed, over
        self._reasons: set[str] = set()  # that were logged since it last worked

    def fails(self, why: Exception | str) -> None:
        """An error that is no AppError is logged with its traceback."""
        fault = None if isinstance(why, AppError | str) else why
        reason = why.code if isinstance(why, AppError) else type(why).__name__ if fault else str(why)
        if reason not in self._reasons:
            log.warning(self._failed, reason=reason, exc_info=fault)
            self._reasons.add(reason)

    def works(self) -> None:
        if self._reasons:
            log.info(self._over)
        self._reasons.clear()

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Logs what the block raises in the place of raising it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (a fault ends no loop that looks after turns: the next look may work)
            self.fails(error)
        else:
            self.works()


class Outages:
    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[AsyncConnection]]) -> None:
        """`connect` opens a connection that no pool keeps: those of the pools may all wait for the lock."""
        self._connect = connect
        self._logged_at: dict[OutageCause, float] = {}
        self._lookups: set[asyncio.Task[None]] = set()

    def refuse(self, error: Exception, *, otherwise: OutageCause | None = None) -> NoReturn:
        """Raises StorageUnavailable for an error of OUTAGES that is one, or that is given a cause; else the error."""
        if (cause := cause_of(error) or otherwise) is None:
            raise error
        self._log(cause, error)
        raise StorageUnavailable(cause) from error

    async def blocker(self) -> Blocker | None:
        """Returns the connection that others wait for, or None if there is none or Postgres does not say in time."""
        try:
            async with asyncio.timeout(LOOK_S), self._connect() as connection:
                found = (await connection.execute(_BLOCKER)).mappings().one_or_none()
        except OUTAGES:
            return None
        return Blocker(**found) if found else None

    async def close(self) -> None:
        await end_tasks(*self._lookups)

    def _log(self, cause: OutageCause, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(cause, -LOG_EVERY_S) < LOG_EVERY_S:
            return
        self._logged_at[cause] = now
        kind = type(error).__name__
        log.warning("storage_failed", cause=cause.name, sqlstate=state_of(error), error=kind, advice=cause.mend)
        if cause is LOCKED:
            lookup = asyncio.create_task(self._log_blocker(), name="who holds the lock")
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    async def _log_blocker(self) -> None:
        if found := await self.blocker():
            log.warning("storage_locked", **asdict(found))
