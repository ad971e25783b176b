"""SQL statements compiled once a process. SQLAlchemy keeps what it compiles by engine and dialect, and every service of
a test makes new ones: a fifth of a test's time went into it.
"""

from collections.abc import MutableMapping
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

_COMPILED: MutableMapping[Any, Any] = {}


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


def compile_once() -> None:
    """For all engines made from now on."""
    registry.register("postgresql.asyncpg", __name__, "Dialect")
