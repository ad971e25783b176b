"""DATABASE_URL as hosts hand it out, in the words of libpq, and as SQLAlchemy and asyncpg take it."""

from typing import Final
from urllib.parse import urlencode

from sqlalchemy.engine import URL, make_url

TAKEN: Final = frozenset(
    {"host", "port", "user", "password", "database", "passfile", "ssl", "prepared_statement_cache_size"}
)
OF_LIBPQ: Final = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "sslnegotiation", "options"})
# Of no use to asyncpg, which binds no channel, or set by Segue.
LEFT_OUT: Final = frozenset({"channel_binding", "gssencmode", "connect_timeout", "application_name"})


def parsed(url: str) -> URL:
    """Returns the URL with the asyncpg driver in its scheme. Raises ArgumentError or ValueError."""
    scheme, separator, rest = url.partition("://")
    return make_url(f"postgresql+asyncpg{separator}{rest}" if scheme in ("postgres", "postgresql") else url)


def address(url: str) -> tuple[URL, dict[str, str]]:
    """Returns the URL for SQLAlchemy, and what it is to hand to asyncpg, which reads libpq's words in a DSN only."""
    whole = parsed(url)
    said = {name: value for name, value in whole.query.items() if name in OF_LIBPQ}
    bare = whole.difference_update_query(OF_LIBPQ | LEFT_OUT)
    return bare, {"dsn": f"postgresql://?{urlencode(said)}"} if said else {}
