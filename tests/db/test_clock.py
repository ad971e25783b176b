"""The clock of a process is PostgreSQL's, whatever that of its machine says."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from segue.config import Settings
from segue.db.engine import Database
from segue.db.postgres_server import StoreClock
from segue.domain.ids import utc_now
from tests.support.provider import Provider, calls
from tests.support.service import running
from tests.support.stores import Stores, looking_into

pytestmark = pytest.mark.usefixtures("new_connections")  # which get the time as it is set for them

CLOSE, TWO_DAYS = timedelta(seconds=10), timedelta(days=2)
LATE = """
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT pg_catalog.clock_timestamp() + interval '2 days' $$;
"""
RIGHT = """
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET search_path', current_database()); END $$;
DROP FUNCTION public.clock_timestamp();
"""


@pytest.fixture
async def late(settings: Settings) -> AsyncIterator[Stores]:
    """A PostgreSQL whose clock is two days ahead of this machine's."""
    async with looking_into(settings) as stores:
        await stores.database.execute(LATE)
        yield stores
        await stores.database.execute(RIGHT)


@pytest.mark.parametrize("wrong_by", [-TWO_DAYS, timedelta(seconds=0.5), TWO_DAYS])
async def test_a_machine_whose_clock_is_wrong_tells_the_time_of_postgres(
    database_url: str, wrong_by: timedelta
) -> None:
    database = Database(database_url)
    try:
        clock = StoreClock(database, lambda: utc_now() + wrong_by)
        assert abs(clock() - utc_now() - wrong_by) < timedelta(seconds=0.2)
        async with clock:
            assert abs(clock() - utc_now()) < timedelta(seconds=0.2)
    finally:
        await database.close()


async def test_a_yes_comes_too_late_by_the_clock_of_postgres_though_not_by_that_of_the_machine(
    settings: Settings, provider: Provider, late: Stores
) -> None:
    provider.will(calls(("current_time", {})))
    async with running(settings.model_copy(update={"confirm": "always"})) as client:
        session = await client.new_session()
        asked = await client.chat(session, "What time is it?")
        assert abs(datetime.fromisoformat(asked["message"]["created_at"]) - utc_now() - TWO_DAYS) < CLOSE
        await late.database.execute("UPDATE plans SET expires_at = pg_catalog.now() + interval '1 day'")
        decision = {"decision": "confirm", "version": asked["plan"]["version"]}
        pressed = await client.http.post(f"/sessions/{session}/plan/decision", json=decision)
    assert (pressed.status_code, pressed.json()["code"]) == (409, "plan_expired")
