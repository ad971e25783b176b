"""Which URLs lead to a PostgreSQL and a Redis, as their libraries read them.

Each function raises ValueError with the end of a sentence. It shows nothing of the URL, which may hold a password.
"""

from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from segue.db.engine import asyncpg_url
from segue.db.sentinels import watched_by_sentinels

_SSL = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_OF_POSTGRES = {"host", "port", "user", "password", "database", "passfile", "ssl", "prepared_statement_cache_size"}
_OF_REDIS = {"connection_class", "host", "port", "path", "db", "username", "password", "client_name"}
_LAST_PORT = 65535


def check_postgres(url: str) -> None:
    try:
        parts = make_url(asyncpg_url(url))
    except (ArgumentError, ValueError):
        parts = None
    if parts is None or parts.drivername != "postgresql+asyncpg" or (parts.port or 0) > _LAST_PORT:
        raise ValueError("has to be a URL, such as postgresql://user:password@host:5432/database") from None
    if parts.query.keys() - _OF_POSTGRES or parts.query.get("ssl", "require") not in _SSL:
        known = ", ".join(sorted(_OF_POSTGRES))
        raise ValueError(
            f"has a parameter that cannot be used. There are {known}; ssl is {', '.join(_SSL[:-1])} or {_SSL[-1]},"
            " and stands for sslmode"
        )


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
    if any(name not in _OF_REDIS and not name.startswith("ssl_") for name in options):
        raise ValueError(f"has a parameter that cannot be used. There are {', '.join(sorted(_OF_REDIS))} and ssl_…")
