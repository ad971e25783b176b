"""What every command does the same way: settings and flags become one, a refusal is a sentence, the stores are opened.

Knows no command. `cli.py` and the modules beside this one are built on it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import typer
from pydantic import ValidationError

from backend.config import Settings
from backend.db.engine import Database
from backend.db.migrations import upgrade
from backend.db.redis import Cache
from backend.domain.errors import AppError
from backend.log import configure_logging
from backend.parts import server_urls

Done = TypeVar("Done")


def settings_with(**flags: Any) -> Settings:
    """Flags that are given win over the environment. Raises typer.Exit that names each setting that cannot be."""
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise refusal("\n".join(_sentence(fault) for fault in error.errors())) from None
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    return settings


def on_the_stores(run: Callable[[Database, Cache], Awaitable[Done]]) -> Done:
    """On the servers `segue serve` uses with these settings, whether it runs or not; at their newest schema."""
    settings = settings_with()

    async def opened() -> Done:
        async with AsyncExitStack() as stack:
            urls = await server_urls(stack, settings)
            if settings.migrate_on_start:
                await asyncio.to_thread(upgrade, urls.database)
            database, cache = Database(urls.database, pool_size=1), Cache(urls.redis)
            stack.push_async_callback(database.close)
            stack.push_async_callback(cache.close)
            return await run(database, cache)

    try:
        return asyncio.run(opened())
    except AppError as error:
        raise refusal(error.detail) from error


def refusal(text: str) -> typer.Exit:
    typer.secho(text, err=True, fg=typer.colors.RED)
    return typer.Exit(code=2)


def _sentence(fault: Any) -> str:
    """A fault of the settings, without pydantic's "Value error" before a sentence of ours."""
    text = str(fault["ctx"]["error"]) if fault["type"] == "value_error" else fault["msg"]
    return f"{'.'.join(map(str, fault['loc'])).upper()} {text}".strip()
