"""What has had its time goes by itself: idle sessions and old notes on tools. What runs stays."""

import asyncio
import base64
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.responses import Response

from segue import tool
from segue.config import Settings
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.plans import Frozen, press
from tests.support.provider import Provider, calls, says
from tests.support.results import use_toolbox
from tests.support.service import running
from tests.support.stores import Stores, looking_into

pytestmark = pytest.mark.usefixtures("long_leases")

DAYS = 30
QUICK = {"turn_lease_s": 1}  # upkeep comes by four times a second
REFUSES = """
CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '23514'; END $$;
CREATE TRIGGER refuses BEFORE DELETE ON tool_state_changes FOR EACH ROW EXECUTE FUNCTION refuses();
"""
MORE = """
INSERT INTO audit (at, actor, action, details) SELECT at, actor, action, details FROM audit, generate_series(1, 600);
INSERT INTO usage (owner, day, model, calls, input_tokens, cached_tokens, output_tokens, reasoning_tokens, estimated)
SELECT owner, day, model, calls, 0, 0, 0, 0, false FROM usage, generate_series(1, 600);
INSERT INTO turns (id, session_id, seq, status, request, created_at, finished_at, run)
SELECT left(id, 15) || lpad(n::text, 16, '0'), session_id, seq + n, status, request, created_at, finished_at, run
FROM turns, generate_series(1, 1100) n;
"""


@pytest.fixture
def clock() -> Frozen:
    return Frozen()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Upkeep comes by twice a second."""
    return settings.model_copy(update={"turn_lease_s": 2, "session_ttl_days": DAYS})


async def unused_for(stores: Stores, session: str, **time: float) -> None:
    aged = "UPDATE sessions SET updated_at = now() - $2::interval WHERE id = $1"
    await stores.database.execute(aged, session, timedelta(**time))


async def gone(stores: Stores, session: str) -> None:
    async with asyncio.timeout(PATIENCE_S):  # upkeep writes for as long as the service runs
        await stores.until("SELECT count(*) = 0 FROM sessions WHERE id = $1", session)


async def lacks_keys_of(stores: Stores, session: str) -> bool:
    return not await stores.keys(session)


@pytest.mark.sweep
async def test_a_session_nobody_has_used_for_long_goes_with_everything_in_it(
    settings: Settings, provider: Provider, stores: Stores
) -> None:
    use_toolbox(settings)
    async with running(settings) as client:
        idle = await client.new_session()
        provider.will(calls(("echo", {"n": 1})), says("one"), says("two"))
        await client.chat(idle, "call it")
        assert await stores.keys(idle)
        used = await client.new_session()
        await unused_for(stores, used, days=2 * DAYS)
        await client.chat(used, "hello")
        await unused_for(stores, idle, days=DAYS, seconds=1)
        await gone(stores, idle)
        assert len(await client.messages(used)) == 2
        await stores.until_key(lambda: lacks_keys_of(stores, idle))
        assert await stores.keys(used)
    assert await stores.rows() == {"sessions": 1, "turns": 1, "messages": 2, "tool_calls": 0, "tool_results": 0}


@pytest.mark.sweep
async def test_a_session_in_which_a_turn_runs_stays(settings: Settings, provider: Provider, stores: Stores) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def thinks(_: dict[str, Any]) -> Response:
        entered.set()
        await release.wait()
        return says("at last")

    provider.will(thinks)
    async with running(settings) as client:
        busy = await client.new_session()
        turn = asyncio.create_task(client.chat(busy, "think long"))
        await entered.wait()
        idle = await client.new_session()
        await unused_for(stores, busy, days=20 * DAYS)
        await unused_for(stores, idle, days=10 * DAYS)
        await gone(stores, idle)
        release.set()
        assert (await turn)["message"]["content"] == "at last"
        assert len(await client.messages(busy)) == 2


async def test_an_idle_session_that_a_schedule_or_a_trigger_will_go_on_in_stays_until_that_is_over(
    settings: Settings, stores: Stores
) -> None:
    update = {"turn_lease_s": 0.4, "mcp_token_key": SecretStr(base64.urlsafe_b64encode(bytes(32)).decode())}
    async with running(settings.model_copy(update=update)) as client:
        scheduled, triggered, idle = [await client.new_session() for _ in range(3)]
        made = []
        for kind, session, more in (("schedules", scheduled, {"cron": "0 3 * * *"}), ("triggers", triggered, {})):
            response = await client.http.post(f"/{kind}", json={"message": "Report", "session_id": session, **more})
            assert response.status_code == 201, response.text
            made.append(f"/{kind}/{response.json()['id']}")
        for days, session in enumerate((scheduled, triggered, idle)):
            await unused_for(stores, session, days=DAYS + 4 - days)
        await gone(stores, idle)
        assert (await stores.rows())["sessions"] == 2
        await client.http.patch(made[0], json={"status": "paused"})
        await gone(stores, scheduled)
        assert (await stores.rows())["sessions"] == 1
        await client.http.patch(made[1], json={"status": "paused"})
        await gone(stores, triggered)


async def test_an_idle_session_in_which_a_plan_waits_stays_until_that_is_decided(
    settings: Settings, provider: Provider, stores: Stores
) -> None:
    @tool(effect="destructive")
    async def delete(name: str) -> str:
        """Deletes a file."""
        return name

    async with running(settings.model_copy(update=QUICK), tools=[delete]) as client:
        waiting, idle = [await client.new_session() for _ in range(2)]
        provider.will(calls(("delete", {"name": "doc-1"})))
        asked = await client.chat(waiting, "Delete doc-1")
        await unused_for(stores, waiting, days=DAYS + 1)
        await unused_for(stores, idle, days=DAYS, seconds=1)
        await gone(stores, idle)
        assert (await client.get(f"/sessions/{waiting}/plan"))["id"] == asked["plan"]["id"]
        await press(client, waiting, asked, decision="reject", remember=None)
        await unused_for(stores, waiting, days=DAYS, seconds=1)
        await gone(stores, waiting)


async def test_what_processes_that_died_had_reserved_goes_after_a_day(settings: Settings, stores: Stores) -> None:
    reserved = "INSERT INTO reservations VALUES ($1, 1, 'ada', current_date, 1, 1, now() - $2::interval)"
    for holder, ago in (("long ago", timedelta(days=1, seconds=1)), ("just now", timedelta(hours=23))):
        await stores.database.execute(reserved, holder, ago)
    async with running(settings.model_copy(update=QUICK)):
        await stores.until("SELECT count(*) = 1 FROM reservations")
    assert await stores.database.fetchval("SELECT holder FROM reservations") == "just now"


@pytest.mark.sweep  # the test below holds it of all that grows
async def test_sessions_are_kept_for_ever_unless_a_time_is_set(
    settings: Settings, provider: Provider, clock: Frozen, stores: Stores
) -> None:
    use_toolbox(settings)
    async with running(settings.model_copy(update={"session_ttl_days": None}), clock=clock) as client:
        session = await client.new_session()
        provider.will(calls(("echo", {"n": 1})), says("one"))
        await client.chat(session, "call it")
        clock.now += timedelta(days=4000)
        await unused_for(stores, session, days=4000)
        await stores.until("SELECT count(*) = 0 FROM tool_results")
        assert len(await client.messages(session)) == 4


@pytest.mark.sweep  # the audit goes in the same batches below
async def test_old_notes_on_a_tools_state_go_batch_after_batch(
    settings: Settings, clock: Frozen, stores: Stores
) -> None:
    async with running(settings.model_copy(update={**QUICK, "session_ttl_days": None}), clock=clock) as client:
        session = await client.new_session()
        path = f"/sessions/{session}/tool-states"
        for number, status in enumerate(("maintenance", "available")):
            clock.now += timedelta(days=20 * number)
            await client.http.put(f"{path}/current_time", json={"status": status})
        await stores.database.execute(
            "INSERT INTO tool_state_changes (id, session_id, tool, before, after, at)"
            " SELECT id || n, session_id, tool, before, after, at"
            " FROM tool_state_changes, generate_series(1, 600) n WHERE after = 'maintenance'"
        )
        clock.now += timedelta(days=11)
        await stores.until("SELECT count(*) <= 1 FROM tool_state_changes")
        left = (await client.get(f"{path}/history"))["items"]
        assert [change["to"] for change in left] == ["available"]


@pytest.mark.sweep
async def test_audit_usage_and_details_of_turns_go_after_their_days_batch_after_batch_and_nothing_else_does(
    settings: Settings, provider: Provider, clock: Frozen, stores: Stores
) -> None:
    days = {**QUICK, "session_ttl_days": 0, "audit_ttl_days": 400, "usage_ttl_days": 90, "turn_details_ttl_days": 30}

    async def left() -> list[int]:
        counts = (
            "SELECT count(*) FROM audit",
            "SELECT count(*) FROM usage",
            "SELECT count(*) FROM turns WHERE run IS NOT NULL OR timeline IS NOT NULL",
        )
        return [await stores.database.fetchval(count) for count in counts]

    async with running(settings.model_copy(update=days), clock=clock) as client:
        provider.will(says("one"), says("two"))
        old = await client.chat(await client.new_session(), "long ago")
        await client.http.post("/tool-states/reset", json={"all": True})
        await stores.database.execute("UPDATE audit SET at = $1", clock.now)
        await stores.database.execute(MORE)
        assert await left() == [601, 601, 1101]
        clock.now += timedelta(days=29, hours=23)
        recent = await client.chat(await client.new_session(), "just now")
        for later, expected in ((1, [601, 602, 1]), (61, [601, 1, 0]), (310, [0, 0, 0])):
            clock.now += timedelta(days=later)

            async def is_so(expected: list[int] = expected) -> bool:
                return await left() == expected

            await until(is_so)
            timelines = [await client.get(f"/ops/turns/{turn['turn_id']}/timeline") for turn in (old, recent)]
            assert [bool(each["nodes"]) for each in timelines] == [False, expected[2] == 1]
        turn = await client.get(f"/sessions/{old['session_id']}/turns/{old['turn_id']}")
        assert turn["answer"]["message"]["content"] == "one"
        assert (turn["answer"]["usage"], len(await client.messages(old["session_id"]))) == (old["usage"], 2)


@pytest.mark.sweep
async def test_what_is_more_than_one_batch_goes_batch_after_batch_without_a_pause(
    settings: Settings, stores: Stores
) -> None:
    async def is_gone() -> bool:
        return bool(await stores.database.fetchval("SELECT count(*) = 0 FROM audit"))

    async with running(settings.model_copy(update={"turn_lease_s": 6})):
        await stores.database.execute(
            "INSERT INTO audit (at, actor, action, details)"
            " SELECT now() - interval '2 years', 'ada', 'cancel_turn', '{}' FROM generate_series(1, 8000)"
        )
        await until(is_gone)


@pytest.mark.sweep
async def test_details_of_a_turn_that_was_run_again_go_after_the_days_since_then(
    settings: Settings, provider: Provider, clock: Frozen, stores: Stores
) -> None:
    detailed = "SELECT array_agg(id) FROM turns WHERE run IS NOT NULL OR timeline IS NOT NULL"
    async with running(settings.model_copy(update={**QUICK, "turn_details_ttl_days": 30}), clock=clock) as client:
        provider.will(says("one"), says("two"))
        again, once = [(await client.chat(await client.new_session(), "hello"))["turn_id"] for _ in range(2)]
        assert set(await stores.database.fetchval(detailed)) == {again, once}
        await stores.database.execute(
            "UPDATE turns SET finished_at = finished_at + '20 d'::interval WHERE id = $1", again
        )
        clock.now += timedelta(days=31)
        await stores.until(f"SELECT ({detailed}) = ARRAY['{again}']")
        clock.now += timedelta(days=20)
        await stores.until(f"SELECT ({detailed}) IS NULL")


@pytest.mark.sweep
async def test_what_grows_is_kept_for_ever_but_the_audit_unless_a_time_is_set(
    settings: Settings, provider: Provider, clock: Frozen, stores: Stores
) -> None:
    kept = settings.model_copy(update={**QUICK, "session_ttl_days": 0})
    for audit_days, left in ((400, 0), (0, 1)):
        async with running(kept.model_copy(update={"audit_ttl_days": audit_days}), clock=clock) as client:
            provider.will(says("one"))
            session = await client.new_session()
            await client.chat(session, "hello")
            await client.http.post("/tool-states/reset", json={"all": True})
            await stores.database.execute("UPDATE audit SET at = $1", clock.now)
            clock.now += timedelta(days=4000)
            for _ in range(2):  # the upkeep has come by, and has begun once more
                path = f"/sessions/{session}/tool-states/current_time"
                await client.http.put(path, json={"status": "maintenance"})
                clock.now += timedelta(days=40)
                await stores.until("SELECT count(*) = 0 FROM tool_state_changes")
            assert await stores.database.fetchval("SELECT count(*) FROM audit") == left
            assert await stores.database.fetchval("SELECT count(*) FROM usage") > 0
            assert (await client.get(f"/ops/turns/{(await client.turns(session))[0]['turn_id']}/timeline"))["nodes"]


@pytest.mark.sweep
async def test_what_cannot_be_deleted_keeps_nothing_else(settings: Settings, own_database_url: str) -> None:
    own = settings.model_copy(update={"database_url": SecretStr(own_database_url)})
    async with running(own) as client, looking_into(own) as stores, looking_into(own) as holder:
        await stores.database.execute(REFUSES)
        locked, idle, used = [await client.new_session() for _ in range(3)]
        for session in (locked, used):
            await client.http.put(f"/sessions/{session}/tool-states/current_time", json={"status": "maintenance"})
        await stores.database.execute("UPDATE tool_state_changes SET at = now() - interval '40 days'")
        async with holder.database.transaction():
            await holder.database.execute("SELECT FROM tool_state_changes WHERE session_id = $1 FOR UPDATE", locked)
            await unused_for(stores, locked, days=2 * DAYS)
            await unused_for(stores, idle, days=DAYS, seconds=1)
            await gone(stores, idle)
        assert await stores.database.fetchval("SELECT count(*) FROM sessions") == 2
