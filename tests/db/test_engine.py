"""What each way to Postgres allows."""

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import delete, event, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import Pool
from structlog.testing import capture_logs

from segue.db.engine import STATEMENT_TIMEOUT_S, TRANSACTION_ID, Database, has_committed
from segue.db.models import sessions
from segue.db.outages import LOST, TLS, StorageUnavailable, cause_of
from segue.domain.ids import utc_now
from segue.memory.session_store import create_session
from segue.turns.queries import CHANGES_NOTHING
from tests.support.logs import awaiting, until
from tests.support.patience import PATIENCE_S
from tests.support.proxy import door_to
from tests.support.stores import plain

READ_ONLY_TRANSACTION = "25006"


pytestmark = pytest.mark.usefixtures("new_connections")  # it is about how these are opened


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    yield opened
    await opened.close()


async def test_postgres_refuses_a_write_and_a_lock_where_only_reading_is_meant(database: Database) -> None:
    async with database.autocommit() as connection:
        session = await create_session(connection, "ada", title=None, metadata={}, now=utc_now())
    mine = select(sessions.c.id).where(sessions.c.owner == "ada")
    for write in (delete(sessions), mine.with_for_update()):
        with pytest.raises(DBAPIError) as refused:
            async with database.read_only() as connection:
                await connection.execute(write)
        assert getattr(refused.value.orig, "sqlstate", None) == READ_ONLY_TRANSACTION
    async with database.read_only() as connection:
        assert await connection.scalar(mine) == session.id


async def test_of_a_transaction_it_is_told_whether_it_has_committed_and_not_before_it_has_ended(
    database: Database,
) -> None:
    async with database.transaction() as connection:
        undone = await connection.scalar(TRANSACTION_ID)
        await connection.rollback()
    async with database.transaction() as connection:
        done = await connection.scalar(TRANSACTION_ID)
        with pytest.raises(StorageUnavailable):
            await database.read(has_committed, done)
    of = {done: True, undone: False}
    assert {each: await database.read(has_committed, each) for each in of} == of
    with pytest.raises(StorageUnavailable):
        await database.read(has_committed, str(int(done) + 1000))


async def test_reading_takes_no_connection_from_writing(database_url: str) -> None:
    database = Database(database_url, writing=1, reading=1)
    async with database.read_only() as reading, database.transaction() as writing:
        assert await reading.scalar(select(1)) == await writing.scalar(select(1))
        assert database.connections == (2, 2)
    await database.close()


async def test_a_socket_that_is_not_there_yet_is_an_outage(tmp_path: Path) -> None:
    database = Database(f"postgresql://segue@/segue?host={tmp_path}")
    for opened in (database.autocommit, database.transaction, database.read_only):
        with pytest.raises(StorageUnavailable):
            async with opened():
                pass
    await database.close()


async def test_a_connection_that_no_longer_writes_is_an_outage_once_and_then_gone(database_url: str) -> None:
    database = Database(database_url, writing=1, reading=1)
    async with database.read_only() as connection:
        reader = await connection.scalar(text("SELECT pg_backend_pid()"))
    async with database.autocommit() as connection:
        await connection.exec_driver_sql("SET default_transaction_read_only = on")
    with pytest.raises(StorageUnavailable):
        async with database.transaction() as connection:
            await connection.execute(delete(sessions))
    async with database.transaction() as connection:
        await connection.execute(delete(sessions))
    async with database.read_only() as connection:
        assert await connection.scalar(text("SELECT pg_backend_pid()")) != reader
    await database.close()


async def test_a_frozen_server_is_not_waited_for_when_its_connections_are_closed(database_url: str) -> None:
    async with door_to(database_url) as (door, url):
        database = Database(url, writing=2, reading=1)
        async with database.autocommit() as one, database.autocommit() as another, database.read_only() as reading:
            for connection in (one, another, reading):
                await connection.scalar(select(1))
        await door.begin("freezes")
        async with asyncio.timeout(STATEMENT_TIMEOUT_S):  # as long as one of them would wait
            await database.close()
        await door.open()


@pytest.mark.parametrize("is_heard", [True, False])
async def test_a_server_that_ends_a_connection_as_it_is_set_up_is_an_outage(
    database_url: str, *, is_heard: bool
) -> None:
    other = await asyncpg.connect(plain(database_url))
    hanging_up: list[asyncio.Task[None]] = []

    async def end(driver: asyncpg.Connection) -> None:
        closed = asyncio.Event()
        driver.add_termination_listener(lambda _: closed.set())
        await other.execute("SELECT pg_terminate_backend($1, 5000)", driver.get_server_pid())
        await other.fetchval("SELECT 1")  # by then the server's last word has come, too
        hanging_up.append(asyncio.create_task(door.begin("hangs_up")))
        if is_heard:
            await closed.wait()

    def once_connected(connection: Any, _: object) -> None:
        connection.run_async(end)

    async with door_to(database_url) as (door, url):
        door.swallows_ends = True
        database = Database(url, writing=1, reading=1)
        event.listen(Pool, "connect", once_connected)
        try:
            with pytest.raises(StorageUnavailable):
                async with database.autocommit():
                    pass
        finally:
            event.remove(Pool, "connect", once_connected)
        await asyncio.gather(*hanging_up)
        door.swallows_ends = False
        await door.open()
        assert await database.write(AsyncConnection.scalar, select(1)) == 1
        await database.close()
    await other.close()


@pytest.mark.parametrize(
    ("state", "cause", "code"),
    [
        ("08006", "lost", "storage_unavailable"),
        ("26000", "pooler", "storage_pooler"),
        ("53300", "too_many_connections", "storage_too_many_connections"),
        ("57014", "statement_timeout", "storage_slow"),
        ("57P03", "starting", "storage_unavailable"),
        ("58030", "failing", "storage_unavailable"),
    ],
)
async def test_what_the_server_refuses_is_an_outage_with_its_cause(
    database: Database, state: str, cause: str, code: str
) -> None:
    with pytest.raises(StorageUnavailable) as refused:
        async with database.read_only() as connection:
            await connection.exec_driver_sql(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$")
    assert (refused.value.cause.name, refused.value.code) == (cause, code)


async def test_a_full_disk_of_this_machine_is_no_outage_of_postgres(database: Database) -> None:
    with pytest.raises(OSError, match="No space left"):
        async with database.read_only():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@asynccontextmanager
async def told(cause: str, code: str) -> AsyncIterator[None]:
    """Within the block Postgres fails with this cause, which is in the log."""
    with pytest.raises(StorageUnavailable) as failed, capture_logs() as logs:
        yield
    assert (failed.value.cause.name, failed.value.code, failed.value.status) == (cause, code, 503)
    assert [line["cause"] for line in logs if line["event"] == "storage_failed"] == [cause]


async def cannot_connect(url: str, cause: str, code: str) -> None:
    database = Database(url, writing=1, reading=1)
    async with told(cause, code), database.autocommit():
        pass
    await database.close()


async def test_a_wrong_role_and_a_wrong_database_are_told_apart(database_url: str) -> None:
    nowhere = make_url(database_url).set(database="nowhere").render_as_string(hide_password=False)
    await cannot_connect(nowhere, "no_database", "storage_access_denied")
    await cannot_connect(database_url.replace("segue@", "stranger@"), "access_denied", "storage_access_denied")


async def test_tls_that_cannot_be_had_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # without .postgresql/root.crt

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # SSLRequest
        writer.write(b"N")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        url = f"postgresql+asyncpg://segue@127.0.0.1:{port}/segue?ssl="
        await cannot_connect(f"{url}verify-full", "tls", "storage_unavailable")
        await cannot_connect(f"{url}require", "tls", "storage_unavailable")
        as_handed_out = url.replace("+asyncpg", "").replace("?ssl=", "?sslmode=require&channel_binding=require")
        await cannot_connect(as_handed_out, "tls", "storage_unavailable")
    assert cause_of(ssl.SSLCertVerificationError("self-signed certificate")) is TLS
    assert cause_of(ConnectionError("unexpected connection_lost() call")) is LOST


@contextmanager
def asking_for_a_password(role: str, access: Path) -> Iterator[None]:
    """For the server to read: its pg_hba.conf."""
    before = access.read_text("utf-8")
    access.write_text(f"local all {role} scram-sha-256\n{before}", "utf-8")
    try:
        yield
    finally:
        access.write_text(before, "utf-8")


async def test_a_wrong_password_is_told_and_the_right_one_connects(database_url: str) -> None:
    right, wrong = (database_url.replace("segue@", f"guarded:{password}@") for password in ("right", "wrong"))

    async def is_asked_for_it() -> bool:
        try:
            await asyncpg.connect(plain(wrong))
        except asyncpg.InvalidAuthorizationSpecificationError as refused:  # before the server has read its file, too
            return isinstance(refused, asyncpg.InvalidPasswordError)
        return False

    admin = await asyncpg.connect(plain(database_url.replace("segue@", "postgres@")))
    await admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    try:
        with asking_for_a_password("guarded", Path(await admin.fetchval("SHOW hba_file"))):
            await admin.execute("SELECT pg_reload_conf()")
            await until(is_asked_for_it)
            await cannot_connect(wrong, "access_denied", "storage_access_denied")
            database = Database(right, writing=1, reading=1)
            async with database.read_only() as connection:
                await connection.exec_driver_sql("SELECT 1")
            await database.close()
    finally:
        await admin.execute("SELECT pg_reload_conf()")
        await admin.execute("DROP ROLE guarded")
        await admin.close()


async def test_a_role_that_has_no_connections_left_says_so(database_url: str) -> None:
    admin = await asyncpg.connect(plain(database_url.replace("segue@", "postgres@")))
    try:
        await admin.execute("ALTER ROLE segue CONNECTION LIMIT 0")
        await cannot_connect(database_url, "too_many_connections", "storage_too_many_connections")
    finally:
        await admin.execute("ALTER ROLE segue CONNECTION LIMIT -1")
        await admin.close()


async def test_a_slow_statement_and_a_lock_are_told_apart_and_the_log_names_who_holds_it(database_url: str) -> None:
    database = Database(database_url, writing=1, reading=1)
    async with database.autocommit() as connection:
        for limit in ("lock_timeout = '20ms'", "statement_timeout = '50ms'"):
            await connection.exec_driver_sql(f"SET {limit}")
    async with told("statement_timeout", "storage_slow"), database.autocommit() as connection:
        await connection.exec_driver_sql("SELECT pg_sleep(9)")
    holder = await asyncpg.connect(plain(database_url))
    pid = holder.get_server_pid()
    async with holder.transaction(), awaiting("storage_locked") as looked_up:
        await holder.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
        async with told("locked", "storage_locked"), database.autocommit() as connection:
            await connection.execute(delete(sessions))
        found = await database.outages.blocker()
        assert found is not None
        assert found.blocking_pid == pid
        async with asyncio.timeout(PATIENCE_S):
            await looked_up.wait()
    await holder.close()
    await database.close()


async def test_a_server_whose_disk_is_full_is_down_until_it_takes_a_file(database_url: str) -> None:
    database = Database(database_url.replace("segue@", "postgres@"), writing=1)
    async with database.autocommit() as connection:
        await connection.exec_driver_sql("SET temp_file_limit = 0")
    await database.ping(CHANGES_NOTHING)
    async with told("disk_full", "storage_full"), database.autocommit() as connection:
        await connection.exec_driver_sql("COPY (SELECT 'a turn') TO '/dev/full'")
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await database.ping(CHANGES_NOTHING)
    async with database.autocommit() as connection:
        await connection.exec_driver_sql("SET temp_file_limit = -1")
    await database.ping(CHANGES_NOTHING)
    await database.close()
