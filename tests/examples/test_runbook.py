"""The runbook: each of its troubles is made, seen with the commands of the page, and mended with them."""

import asyncio
import os
import re
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import make_url
from starlette.responses import Response

from segue.around.embedded.server_urls import ServerUrls
from tests.support.commands import ROOT, python
from tests.support.health import fails_for_all, states
from tests.support.logs import until
from tests.support.pooler import needs_pgbouncer, pooled
from tests.support.provider import calls, fails, says
from tests.support.receiver import SECRET, Receiver, receiving
from tests.support.service import Client
from tests.support.site import Site, site_on
from tests.support.stores import new_database, plain

PAGE = (ROOT / "docs" / "runbook.md").read_text("utf-8")
ENTRIES = {
    title: re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
# What readiness says when a store cannot be used, by the entry that the page names for it.
CAUSES = {title: said for said, title in re.findall(r"^\| `(.+?)` \| \[(.+?)\]", PAGE, re.MULTILINE)}
# What an entry has its reader put into the settings.
SETTINGS = {
    title: dict(re.findall(r"^([A-Z_]+)=(.+)$", entry, re.MULTILINE))
    for title, _, entry in (part.partition("\n") for part in PAGE.split("\n## ")[1:])
}
SLOW = """
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(9); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON turns FOR EACH STATEMENT EXECUTE FUNCTION audit();
"""
ONLY_READS = """
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$;
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
"""
# Turns are written to a device that is always full, as long as a file is there.
FULL = """
CREATE FUNCTION fills() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    IF (pg_stat_file('{file}', true)).size > 0 THEN COPY (SELECT 'a turn') TO '/dev/full'; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER fills BEFORE INSERT OR UPDATE ON turns FOR EACH STATEMENT EXECUTE FUNCTION fills();
"""
# What a newer release might leave, and a PostgreSQL whose clock is two days ahead.
MIGRATED = """
UPDATE alembic_version SET version_num = '0999';
ALTER TABLE sessions ADD COLUMN mood text;
"""
AHEAD = """
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT pg_catalog.clock_timestamp() + interval '2 days' $$;
"""
LONG = pytest.mark.skipif("SWEEP" not in os.environ, reason="it waits for leases or timeouts: make runbook")


@pytest.fixture(scope="module")
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as served:
        yield served


@pytest.fixture(scope="module")
async def site(servers: ServerUrls, template: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with new_database(servers, template) as url:
        own = ServerUrls(database_url=url, redis_url=servers.redis_url)
        async with site_on(own, tmp_path_factory.mktemp("runbook") / "servers") as whole:
            yield whole


@pytest.fixture(scope="module")
async def client(site: Site, receiver: Receiver) -> AsyncIterator[Client]:
    async with site.serving(WEBHOOK_URL=receiver.url, WEBHOOK_SECRET=SECRET) as (_, served):
        yield served


async def does(site: Site, sql: str, url: str | None = None) -> None:
    """What an operator does to the database behind Segue's back."""
    assert site.settings.database_url is not None
    connection = await asyncpg.connect(plain(url or site.settings.database_url.get_secret_value()))
    await connection.execute(sql)
    await connection.close()


async def ran(site: Site, client: Client, script: str, **variables: str) -> str:
    """What a terminal shows that has the variables of the page."""
    assert site.settings.database_url is not None
    url = plain(site.settings.database_url.get_secret_value())
    given = {"SEGUE": str(client.http.base_url).rstrip("/"), "DATABASE_URL": url, **variables}
    script = re.sub(r"^segue\b", shlex.join([*python(), "-m", "segue"]), script, flags=re.MULTILINE)
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script), env={**os.environ, **given}, stdout=-1, stderr=-2
    )
    said, _ = await shell.communicate()
    assert shell.returncode == 0, said.decode()
    return said.decode()


async def shows(site: Site, client: Client, title: str, number: int, **variables: str) -> str:
    """Runs a block of an entry until it says what the page says it does."""
    block = ENTRIES[title][number]
    wanted = re.findall(r"^# → (.*)$", block, re.MULTILINE)

    async def is_said() -> str:
        said = await ran(site, client, block, **variables)
        return said if all(part in said for part in wanted) else ""

    return await until(is_said)


async def is_well(site: Site, client: Client) -> None:
    title = "A store cannot be used"
    await shows(site, client, title, 0)


async def has_cause(site: Site, client: Client, title: str) -> None:
    """Asks readiness until it says what the page says of this entry."""

    async def is_said() -> bool:
        return CAUSES[title] in await ran(site, client, ENTRIES["A store cannot be used"][0])

    await until(is_said)


async def answers(site: Site, client: Client, session: str | None = None) -> None:
    site.provider.will(says("Well."))
    session = session or await client.new_session()
    assert (await client.chat(session, "Is all well?"))["message"]["content"] == "Well."


@pytest.mark.sweep
async def test_a_tool_that_fails_is_seen_and_given_back(site: Site, client: Client) -> None:
    title = "A tool fails"
    await fails_for_all(client, site.provider, site.shelf)
    await shows(site, client, title, 0)
    await shows(site, client, title, 1)
    state = (await states(client, await client.new_session()))["mcp_moody"]
    assert state["available"]


async def test_a_session_that_is_stuck_is_seen_and_freed(site: Site, client: Client) -> None:
    title, session = "A session is stuck", await client.new_session()
    site.provider.will(calls(("mcp_look_up", {"item_id": "it"})))
    await client.send(session, "Look it up for me, please.", background=True)
    await shows(site, client, title, 0, SESSION=session)
    await shows(site, client, title, 1, SESSION=session)
    site.shelf.go.set()
    await answers(site, client, session)


async def test_a_redis_that_is_gone_is_seen_and_comes_back_by_itself(site: Site, client: Client) -> None:
    title = "Redis is gone"
    await site.redis.begin("refuses")
    await has_cause(site, client, title)
    await answers(site, client)
    await site.redis.open()
    await is_well(site, client)


@pytest.mark.sweep
async def test_a_redis_that_refuses_is_seen_and_given_its_password(site: Site) -> None:
    title = "Redis refuses"
    right = SETTINGS[title]["REDIS_URL"].replace(":6379/", f":{site.redis.port}/")
    async with site.stores() as stores:
        await stores.redis.acl_setuser("segue", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
        async with site.serving(REDIS_URL=right.replace("right", "wrong")) as (_, refused):
            await has_cause(site, refused, title)
            await answers(site, refused)
        async with site.serving(REDIS_URL=right) as (_, served):
            await is_well(site, served)
        await stores.redis.acl_deluser("segue")


async def test_a_postgres_that_is_gone_is_seen_and_comes_back_by_itself(site: Site, client: Client) -> None:
    title = "PostgreSQL is gone"
    await site.postgres.begin("refuses")
    await has_cause(site, client, title)
    await site.postgres.open()
    await is_well(site, client)
    await answers(site, client)


@LONG
async def test_a_postgres_that_is_slow_is_seen_and_freed_of_what_slows_it(site: Site, client: Client) -> None:
    title, session = "PostgreSQL is slow", await client.new_session()
    await does(site, SLOW)
    await has_cause(site, client, title)
    refused = asyncio.create_task(client.http.get("/health/ready"))
    await shows(site, client, title, 0)
    assert (await refused).status_code == 503
    await shows(site, client, title, 1)
    await shows(site, client, title, 2)
    await answers(site, client, session)


async def test_a_postgres_that_only_reads_is_seen_and_writes_again(site: Site, client: Client) -> None:
    title, session = "PostgreSQL only reads", await client.new_session()
    await does(site, ONLY_READS)
    await has_cause(site, client, title)
    await shows(site, client, title, 0)
    assert (await client.send(session, "Is all well?")).json()["code"] == "storage_read_only"
    await shows(site, client, title, 1)
    await is_well(site, client)
    await answers(site, client, session)


@LONG
@needs_pgbouncer
async def test_a_pooler_that_is_not_named_is_seen_and_named(site: Site, servers: ServerUrls, template: str) -> None:
    title = "PostgreSQL is behind a pooler"
    async with new_database(servers, template) as direct, pooled(direct, "transaction") as url:
        console = make_url(plain(url)).set(database="pgbouncer").render_as_string(hide_password=False)
        async with site.serving(DATABASE_URL=url) as (_, client):
            await has_cause(site, client, title)
            assert (await client.http.post("/sessions", json={})).json()["code"] == "storage_pooler"
        await shows(site, client, title, 0, POOLER=console)
        async with site.serving(DATABASE_URL=url, **SETTINGS[title]) as (_, client):
            await is_well(site, client)
            await answers(site, client)


@LONG
async def test_a_disk_that_is_full_is_seen_and_cleared(site: Site, client: Client, tmp_path: Path) -> None:
    title, session = "The disk of PostgreSQL is full", await client.new_session()
    file = tmp_path / "forgotten.backup"
    file.write_bytes(bytes(2_000_000))
    assert site.settings.database_url is not None
    administrator = site.settings.database_url.get_secret_value().replace("segue@", "postgres@")
    await does(site, FULL.format(file=file), administrator)
    try:
        await has_cause(site, client, title)
        assert (await client.send(session, "Is all well?")).json()["code"] == "storage_full"
        await shows(site, client, title, 0, DISK=str(tmp_path))
        await ran(site, client, ENTRIES[title][1], DISK=str(tmp_path))
        await is_well(site, client)
        await answers(site, client, session)
    finally:
        file.unlink(missing_ok=True)


async def test_a_lock_is_seen_and_ended(site: Site, client: Client) -> None:
    title = "PostgreSQL is locked"
    assert site.settings.database_url is not None
    holder = await asyncpg.connect(plain(site.settings.database_url.get_secret_value()))
    await holder.execute("BEGIN")
    await holder.execute("LOCK TABLE turns")
    await has_cause(site, client, title)
    stuck = asyncio.create_task(answers(site, client))
    await shows(site, client, title, 0)
    await shows(site, client, title, 1)
    await stuck
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await holder.execute("SELECT 1")
    holder.terminate()


async def test_a_model_that_is_busy_or_refuses_is_told_apart(site: Site, client: Client) -> None:
    title, session = "The model is busy, out of quota, or refuses", await client.new_session()
    empty = '{"error": {"message": "no", "code": "insufficient_quota"}}'
    for refusal in (fails(503), fails(429, body=empty), fails(401)):
        site.provider.will(refusal)
        assert (await client.send(session, "Is all well?")).status_code >= 500
    await shows(site, client, title, 0)
    await answers(site, client, session)


@LONG
async def test_a_model_that_is_slow_is_seen_and_given_time(site: Site) -> None:
    title = "The model is slow"
    limits = dict.fromkeys(("LLM_FIRST_TOKEN_TIMEOUT_S", "LLM_TIMEOUT_S"), "1")
    over = asyncio.Event()  # what the limit was at first

    async def thinks(_: object) -> Response:
        await over.wait()
        return says("Well.")

    async with site.serving(**limits) as (_, hasty), site.serving(**SETTINGS[title]) as (_, patient):
        site.provider.will(thinks, thinks)
        before = len(site.provider.requests)
        waiting = asyncio.create_task(patient.chat(await patient.new_session(), "Is all well?"))
        await site.provider.wait_for_requests(before + 1)
        assert (await hasty.send(await hasty.new_session(), "Is all well?")).json()["code"] == "model_timeout"
        over.set()
        await shows(site, hasty, title, 0)
        assert (await waiting)["message"]["content"] == "Well."


@LONG
async def test_webhooks_that_are_late_are_seen_and_sent(site: Site, client: Client, receiver: Receiver) -> None:
    title = "Webhooks are late"
    async with site.stores() as stores:
        await stores.until("SELECT count(*) = 0 FROM webhook_events")
        receiver.answer = lambda _: Response(status_code=500)
        await answers(site, client)
        await shows(site, client, title, 0)
        receiver.answer = lambda _: Response(status_code=204)
        await shows(site, client, title, 1)
        await stores.until("SELECT count(*) = 0 FROM webhook_events")


@LONG
async def test_a_process_that_is_frozen_is_seen_and_ended(site: Site, client: Client) -> None:
    title = "A process is frozen"
    seen = asyncio.Event()

    async def slow(_: object) -> Response:
        await seen.wait()
        return says("Well.")

    async with site.serving() as (frozen, elsewhere):
        session = await elsewhere.new_session()
        site.provider.will(slow, slow)
        before = len(site.provider.requests)
        await elsewhere.send(session, "Is all well?", background=True)
        await site.provider.wait_for_requests(before + 1)
        os.kill(frozen.pid, signal.SIGSTOP)
        await shows(site, client, title, 0)
        await shows(site, client, title, 1, PID=str(frozen.pid))
        await ran(site, client, ENTRIES[title][2], PID=str(frozen.pid))
        seen.set()
        assert (await client.ended(session))[0]["status"] == "completed"


@LONG
async def test_a_bad_deployment_is_seen_and_taken_back(site: Site, servers: ServerUrls, template: str) -> None:
    title = "Errors since a deployment"
    nowhere = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    async with new_database(servers, template) as url:
        await does(site, MIGRATED, url)
        async with site.serving(DATABASE_URL=url, **nowhere) as (_, client):
            session = await client.new_session()
            assert (await client.send(session, "Is all well?")).status_code >= 500
            await shows(site, client, title, 0)
        await shows(site, client, title, 1, DATABASE_URL=url, REDIS_URL=servers.redis_url)
        async with site.serving(DATABASE_URL=url) as (_, client):
            await answers(site, client, session)


@LONG
async def test_a_clock_that_jumped_is_seen_and_set(site: Site, servers: ServerUrls, template: str) -> None:
    title = "The clock jumped"
    async with new_database(servers, template) as url:
        await does(site, AHEAD, url)
        async with site.serving(DATABASE_URL=url) as (_, client):
            await answers(site, client)
            await shows(site, client, title, 0, DATABASE_URL=plain(url))
            await does(site, "DROP FUNCTION public.clock_timestamp()", url)
            assert "ahead by hours: 0" in await ran(site, client, ENTRIES[title][0], DATABASE_URL=plain(url))
            await answers(site, client)


def test_every_entry_of_the_page_is_played() -> None:
    played = set(re.findall(r'title(?:, session)? = "([^"]+)"', Path(__file__).read_text("utf-8")))
    assert set(ENTRIES) == played
