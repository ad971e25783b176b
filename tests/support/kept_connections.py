"""Connections of the services of tests to the database that these share: the next service gets those that the one
before has closed, as PostgreSQL gives them back by `reset`. To start a server process, and to read the tables anew in
it, took half as long as all else that a service does to start.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_

MOST = 16
RESET_S = 2
OF_ONE_SERVICE = "prepared_statement_name_func"


@dataclass(slots=True)
class _Kept:
    """`database` is the name and the host of that of the tests. `opened` has how each connection to it was opened,
    `prepared` those that a service has had, `idle` those that none has, in the order in which they came back.
    """

    database: tuple[str, str] | None = None
    opened: dict[Any, str] = field(default_factory=dict)
    prepared: set[Any] = field(default_factory=set)
    idle: list[Any] = field(default_factory=list)


_kept = _Kept()


def keep_those_to(url: str) -> None:
    """Keeps from now on what is opened to this database, and not through a proxy."""
    read = make_url(url)
    _kept.database = str(read.database), str(read.query.get("host", read.host))


async def keep_none() -> None:
    """Until the next `keep_those_to`."""
    _kept.database = None
    await close_all()


def take(options: dict[str, Any]) -> Any:
    """Returns a connection that was opened with these options, None if there is none to this event loop."""
    wanted = _written(options)
    for connection in reversed(_kept.idle):
        if _kept.opened[connection] == wanted and _is_usable(connection):
            _kept.idle.remove(connection)
            return connection
    return None


def opened(connection: Any, options: dict[str, Any]) -> None:
    if (options.get("database"), options.get("host")) == _kept.database:
        _kept.opened[connection] = _written(options)


def is_prepared(connection: Any) -> bool:
    """Whether a service has had it before; it has, from now on."""
    if connection in _kept.prepared:
        return True
    if connection in _kept.opened:
        _kept.prepared.add(connection)
    return False


def give_back(connection: Any) -> bool:
    """Returns False if it is to be closed."""
    if connection not in _kept.opened or _kept.database is None:
        return False
    if not _is_usable(connection) or not _is_reset(connection):
        forget(connection)
        return False
    _kept.idle.append(connection)
    if len(_kept.idle) > MOST:  # the longest idle one may be of options that few tests have
        oldest = _kept.idle.pop(0)
        forget(oldest)
        oldest.driver_connection.terminate()
    return True


def _is_reset(connection: Any) -> bool:
    try:
        connection.rollback()
        await_(connection.driver_connection.reset(timeout=RESET_S))
    except (asyncpg.PostgresError, asyncpg.InterfaceError, DBAPIError, OSError):
        return False
    return True


def forget(connection: Any) -> None:
    _kept.opened.pop(connection, None)
    _kept.prepared.discard(connection)


def processes() -> list[int]:
    """The ids of PostgreSQL's processes for those that no service has."""
    return [each.driver_connection.get_server_pid() for each in _kept.idle if _is_usable(each)]


async def close_all() -> None:
    for connection in _kept.idle:
        await connection.driver_connection.close()
    for each in (_kept.idle, _kept.opened, _kept.prepared):
        each.clear()


def _is_usable(connection: Any) -> bool:
    driver = connection.driver_connection
    return not driver.is_closed() and driver._loop is asyncio.get_running_loop()  # noqa: SLF001 (asyncpg has no public name for it)


def _written(options: dict[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in options.items() if name != OF_ONE_SERVICE))
