"""PgBouncer, as Debian has it, in front of the tests' PostgreSQL."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import make_url

from tests.support.logs import until
from tests.support.proxy import proxied
from tests.support.stores import plain, socket_of

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NOT_ROOT = "nobody"  # PgBouncer does not run as root
needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")
CONFIG = """
[databases]
* = host=127.0.0.1 port={port} user=segue
[pgbouncer]
unix_socket_dir = {folder}
listen_port = 6432
auth_type = any
admin_users = segue
pool_mode = {mode}
"""


@asynccontextmanager
async def pooled(database_url: str, mode: str) -> AsyncIterator[str]:
    """The URL that leads to the same database through a pooler."""
    url = make_url(database_url)
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() == 0:
            shutil.chown(folder, NOT_ROOT)
        async with (
            proxied(socket_of(database_url)) as door,
            _running(Path(folder), CONFIG.format(port=door.port, folder=folder, mode=mode)),
        ):
            through = url.set(query={"host": folder, "port": "6432"}).render_as_string(hide_password=False)
            await until(lambda: _answers(through))
            yield through


@asynccontextmanager
async def _running(folder: Path, config: str) -> AsyncIterator[None]:
    assert PROGRAM is not None
    path = folder / "pgbouncer.ini"
    path.write_text(config)
    as_user = ("-u", NOT_ROOT) if os.geteuid() == 0 else ()
    process = await asyncio.create_subprocess_exec(PROGRAM, "-q", *as_user, str(path))
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _answers(url: str) -> bool:
    try:
        await (await asyncpg.connect(plain(url))).close()
    except OSError:
        return False
    return True
