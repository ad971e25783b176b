"""Which URLs lead to PostgreSQL, in the words of libpq or SQLAlchemy, and to Redis. A check raises ValueError with the
end of a sentence, which shows no value of the URL: that may be a password.
"""

import os
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlencode, urlsplit

from redis.asyncio.connection import parse_url
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from segue.db.redis_connection import watched_by_sentinels

TAKEN: Final = {"host", "port", "user", "password", "database", "passfile", "ssl", "prepared_statement_cache_size"}
OF_LIBPQ: Final = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "sslnegotiation", "options"})
# Of no use to asyncpg, which binds no channel, or set by Segue.
LEFT_OUT: Final = frozenset({"channel_binding", "gssencmode", "connect_timeout", "application_name"})
_SSL = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_OF_REDIS = {"connection_class", "host", "port", "path", "db", "username", "password", "client_name"}
_LAST_PORT = 65535
_SHOWN_CHARS = 40


def parsed(url: str) -> URL:
    """Returns the URL with the asyncpg driver in its scheme. Raises ArgumentError or ValueError."""
    scheme, separator, rest = url.partition("://")
    return make_url(f"postgresql+asyncpg{separator}{rest}" if scheme in ("postgres", "postgresql") else url)


def address(url: str) -> tuple[URL, dict[str, str]]:
    """Returns the URL for SQLAlchemy, and what it is to hand to asyncpg, which reads libpq's words in a DSN only."""
    whole = parsed(url)
    options = {name: value for name, value in whole.query.items() if name in OF_LIBPQ}
    bare = whole.difference_update_query(OF_LIBPQ | LEFT_OUT)
    return bare, {"dsn": f"postgresql://?{urlencode(options)}"} if options else {}


def check_postgres(url: str) -> None:
    try:
        parts = parsed(url)
        (parts.host or "").encode("idna")  # as the system will: it refuses ".db", of a template without its value
        parts.get_dialect()().create_connect_args(parts)  # it refuses a port that is none, or none for a second host
    except (ArgumentError, ValueError):
        parts = None
    if parts is None or parts.drivername != "postgresql+asyncpg" or (parts.port or 0) > _LAST_PORT:
        raise ValueError("has to be a URL, such as postgresql://user:password@host:5432/database") from None
    _refuse_unknown(parts.query.keys(), TAKEN | OF_LIBPQ | LEFT_OUT)
    for name in ("sslmode", "ssl"):
        if parts.query.get(name, "require") not in _SSL:
            raise ValueError(f"has an {name} that there is not: it is {', '.join(_SSL[:-1])} or {_SSL[-1]}")
    for name in ("sslrootcert", "sslcert", "sslkey"):
        if not os.access(str(parts.query.get(name, "/")), os.R_OK):
            raise ValueError(f"names a file as {name} that cannot be read")


def check_redis(url: str) -> None:
    try:
        watched = watched_by_sentinels(url)
        url = url if watched is None else watched.url
        options = dict(parse_url(url))
        path = urlsplit(url).path.strip("/")
    except ValueError:
        options, path = {}, ""
    if not options or not (path.isdecimal() or "path" in options or not path):
        raise ValueError(
            "has to be a URL, such as redis://:password@host:6379/0, rediss://…, unix:///path or"
            " redis+sentinel://:password@host:26379,host:26379/name/0 (with TLS rediss+sentinel://…)"
        ) from None
    _refuse_unknown((name for name in options if not name.startswith("ssl_")), _OF_REDIS, more=" and ssl_…")


def _refuse_unknown(names: Iterable[str], known: frozenset[str] | set[str], more: str = "") -> None:
    if unknown := sorted(set(names) - known):
        named = ", ".join(name[:_SHOWN_CHARS] for name in unknown)
        raise ValueError(f"has a parameter that cannot be used: {named}. There are {', '.join(sorted(known))}{more}")
