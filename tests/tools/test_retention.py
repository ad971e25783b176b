"""How long results are kept, and what is left of them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from segue.config import Settings
from tests.support.provider import Provider, calls, says
from tests.support.results import Call, last_result, listed, loaded, problem, ran, use_toolbox
from tests.support.service import Client, running
from tests.support.stores import looking_into


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """A session may keep 100 kB."""
    use_toolbox(settings)
    return settings.model_copy(update={"tool_result_max_bytes": 90_000, "tool_result_session_bytes": 100_000})


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as served:
        yield served


async def kept(client: Client, session: str, made: list[Call]) -> list[bool]:
    """Of each call, whether its result can still be had; the others say that it has expired."""
    answers = [await client.http.get(f"/sessions/{session}/tool-results/{call['tool_call_id']}") for call in made]
    assert all(answer.is_success or answer.json()["code"] == "tool_result_expired" for answer in answers)
    return [answer.is_success for answer in answers]


async def test_an_expired_result_is_gone_but_what_it_was_stays_listed(settings: Settings, provider: Provider) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def clock() -> datetime:
        return now

    async with running(settings, clock=clock) as client:
        session = await client.new_session()
        [call, failed] = await ran(client, provider, session, ("table", {"rows": 3}), ("fails", {"message": "no"}))
        assert call["expires_at"] == "2026-03-31T12:00:00Z"
        now += timedelta(days=30, seconds=-1)
        assert (await loaded(client, session, call))["result"]["total"] == 3
        now += timedelta(seconds=1)
        assert await problem(client, session, call["tool_call_id"]) == (
            410,
            "tool_result_expired",
            "The result of table (3 rows: Row 0, Row 1, Row 2) is no longer kept. Run the tool again to have it anew.",
        )
        assert await listed(client, session) == [failed, call]
        assert (await loaded(client, session, failed))["error"] == "no"
        provider.will(calls(("get_tool_result", {"tool_call_id": call["tool_call_id"]})), says("It is gone."))
        await client.chat(session, "What was in the table?")
    assert "is no longer kept" in last_result(provider.requests[-1])["error"]


@pytest.mark.sweep
@pytest.mark.usefixtures("long_leases")
async def test_expired_payloads_are_deleted_and_their_calls_stay(settings: Settings, provider: Provider) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    often = settings.model_copy(update={"turn_lease_s": 0.2})
    async with running(often, clock=lambda: now) as client, looking_into(settings) as stores:
        session = await client.new_session()
        await ran(client, provider, session, ("table", {"rows": 3}))
        assert (await stores.rows())["tool_results"] == 1
        now += timedelta(days=31)
        await stores.until("SELECT count(*) = 0 FROM tool_results")
        assert (await stores.rows())["tool_calls"] == 1


@pytest.mark.sweep
async def test_the_oldest_results_make_room_where_a_session_has_used_up_its_quota(
    client: Client, provider: Provider
) -> None:
    session, other = await client.new_session(), await client.new_session()
    [theirs] = await ran(client, provider, other, ("big", {"n_bytes": 40_000}))
    made = [(await ran(client, provider, session, ("big", {"n_bytes": 40_000 + n})))[0] for n in range(4)]
    assert await kept(client, session, made) == [False, False, True, True]
    made += await ran(client, provider, session, ("echo", {"small": True}))
    assert await kept(client, session, made) == [False, False, True, True, True]
    made += await ran(client, provider, session, ("big", {"n_bytes": 200_000}))
    assert await kept(client, session, made) == [False, False, False, False, True, True]
    assert await kept(client, other, [theirs]) == [True]
    assert (await problem(client, session, made[0]["tool_call_id"]))[0] == 410
    still = await listed(client, session)
    assert [call["tool_call_id"] for call in still[::-1]] == [call["tool_call_id"] for call in made]
    gone_at = datetime.fromisoformat(still[-1]["expires_at"])
    assert gone_at <= datetime.now(UTC) < datetime.fromisoformat(still[0]["expires_at"])


@pytest.mark.sweep
async def test_calls_that_end_at_once_do_not_get_past_the_quota(settings: Settings, provider: Provider) -> None:
    async with running(settings) as client, looking_into(settings) as stores:
        session = await client.new_session()
        made = await ran(client, provider, session, *(("big", {"n_bytes": 30_000 + n}) for n in range(12)))
        assert sum(await kept(client, session, made)) == 3
        assert await stores.database.fetchval("SELECT sum(length(payload)) FROM tool_results") <= 100_000


async def test_results_that_had_to_make_room_are_shown_to_the_model_as_expired(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    made = [(await ran(client, provider, session, ("big", {"n_bytes": 60_000 + n})))[0] for n in range(2)]
    provider.will(calls(("get_tool_result", {"tool_call_id": made[0]["tool_call_id"]})), says("It is gone."))
    await client.chat(session, "Show me both.")
    first, second = (message["content"] for message in provider.messages(-2, role="tool"))
    assert ('"expired":true' in first, '"expired":true' in second) == (True, False)
    assert "is no longer kept" in last_result(provider.requests[-1])["error"]


def test_a_quota_that_cannot_hold_one_result_is_refused() -> None:
    with pytest.raises(ValidationError, match="TOOL_RESULT_SESSION_BYTES=1000 is less than one result may take"):
        Settings(_env_file=None, tool_result_session_bytes=1000)


@pytest.mark.sweep  # tests/db/test_erasure.py holds it of every table
async def test_deleting_a_session_deletes_its_results(settings: Settings, provider: Provider) -> None:
    async with running(settings) as client, looking_into(settings) as stores:
        session, other = await client.new_session(), await client.new_session()
        [call, _] = await ran(client, provider, session, ("echo", {"a": 1}), ("big", {"n_bytes": 50_000}))
        await ran(client, provider, other, ("echo", {"a": 1}))
        assert (await client.http.delete(f"/sessions/{session}")).status_code == 204
        assert (await problem(client, session, call["tool_call_id"]))[:2] == (404, "tool_result_not_found")
        rows = await stores.rows()
        assert (rows["sessions"], rows["tool_calls"], rows["tool_results"]) == (1, 1, 1)
