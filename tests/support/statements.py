"""SQL statements compiled once a process, a server asked once what it is, and connections that are kept. SQLAlchemy
keeps all of this by engine, and every service of a test makes new ones: a fifth of a test's time went into the first.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

from tests.support import kept_connections

_COMPILED: MutableMapping[Any, Any] = {}
_SERVER: dict[str, Any] = {}  # attributes of a dialect that has asked: all servers of a run are of one version


class Dialect(PGDialect_asyncpg):
    """Equal to every other, so that one finds what another has compiled."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return type(other) is Dialect

    def __hash__(self) -> int:
        return hash(Dialect)

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=_COMPILED)

    def initialize(self, connection: Connection) -> None:
        if not _SERVER:
            before = dict(vars(self))
            super().initialize(connection)  # type: ignore[no-untyped-call]
            _SERVER.update((name, value) for name, value in vars(self).items() if before.get(name) != value)
        vars(self).update(_SERVER)

    def connect(self, *args: Any, **options: Any) -> Any:
        if kept := kept_connections.take(options):
            return kept
        connection = super().connect(*args, **options)
        kept_connections.opened(connection, options)
        return connection

    def on_connect(self) -> Callable[[Any], None]:
        prepare = super().on_connect()  # type: ignore[no-untyped-call]

        def connect(connection: Any) -> None:
            if not kept_connections.is_prepared(connection):
                prepare(connection)

        return connect

    def do_close(self, dbapi_connection: Any) -> None:
        if not kept_connections.give_back(dbapi_connection):
            super().do_close(dbapi_connection)  # type: ignore[no-untyped-call]

    def do_terminate(self, dbapi_connection: Any) -> None:
        kept_connections.forget(dbapi_connection)
        super().do_terminate(dbapi_connection)


def compile_once() -> None:
    """For all engines made from now on."""
    registry.register("postgresql.asyncpg", __name__, "Dialect")
