"""The figures of the last hour and day, which operators and the console read."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from segue.config import Settings
from segue.domain.ids import new_id
from tests.support.health import connect
from tests.support.plans import THREE_STEPS, offered
from tests.support.provider import Provider, fails, says
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.stores import Stores, looking_into

EARLIER = """INSERT INTO turns (id, session_id, seq, status, request, agent, report, error, created_at, queued_at,
        started_at, finished_at)
    VALUES ($1, $2, $3, $4, '{"force_web_search": false}', 'clerk', $5, $6, $7::timestamptz,
        $7::timestamptz, $7::timestamptz + interval '0.5 s', $7::timestamptz + interval '1.5 s')"""
REPORT = """{"usage": {"llm_calls": 2, "input_tokens": 100, "cached_tokens": 40, "output_tokens": 10, "cost": 0.25},
    "model": "large", "agent": "clerk"}"""


async def figures(client: Client, window: str = "hour") -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/ops/overview", window=window))["figures"]
    return found


async def earlier(stores: Stores, session: str, at: datetime, seq: int, *, failed: bool = False) -> None:
    status, report, error = ("failed", None, '{"code": "turn_timeout"}') if failed else ("completed", REPORT, None)
    await stores.database.execute(EARLIER, new_id("turn", at), session, seq, status, report, error, at)


async def test_the_overview_counts_what_was_asked_answered_and_spent_and_what_waits(
    settings: Settings, provider: Provider
) -> None:
    async with serving_shelf() as shelf:
        connect(settings, shelf)
        async with running(settings) as client:
            await offered(client, provider, THREE_STEPS)
            session = await client.new_session()
            provider.will(fails(401))
            assert (await client.send(session, "Hallo")).status_code == 502
            provider.will(says("Hi."))
            answer = await client.chat(session, "Hello")
            forked = await client.http.post(f"/sessions/{session}/fork", json={"message_id": answer["message"]["id"]})
            assert forked.status_code == 201
            seen = await client.get("/ops/overview")
    total, buckets = seen["figures"]["total"], seen["figures"]["buckets"]
    assert [total[name] for name in ("accepted", "completed", "failed", "cancelled")] == [3, 2, 1, 0]
    assert (total["llm_calls"], total["input_tokens"], total["output_tokens"]) == (2, 22, 14)
    assert (total["cost"], total["cost_complete"]) == (0.0, False)  # the refused call's, and no price of the others'
    assert 0 < total["latency_ms"]["median"] <= total["latency_ms"]["p95"]
    assert total["waited_ms"]["median"] < total["latency_ms"]["p95"]
    assert len(buckets) == 60
    assert sum(bucket["figures"]["accepted"] for bucket in buckets) == 3
    assert sum(bucket["figures"]["input_tokens"] for bucket in buckets) == 22
    [error] = seen["figures"]["errors"]
    assert error["turns"] == 1
    assert {(each["agent"], each["model"]) for each in seen["figures"]["by_model"]} == {
        ("segue", "scripted"),
        ("segue", None),
    }
    now = seen["now"]
    assert (now["instances"], now["queued"], now["running"], now["oldest_queued_s"]) == (1, 0, 0, None)
    assert now["approvals_waiting"] == 1


async def test_a_turn_counts_in_the_bucket_of_its_message_and_only_the_newest_are_counted_of_very_many(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await client.new_session()
    now = datetime.fromisoformat((await client.get("/ops/overview"))["at"])
    async with looking_into(settings) as stores:
        for seq, minutes in enumerate((5, 5, 90, 60 * 30), start=1):
            await earlier(stores, session, now - timedelta(minutes=minutes), seq, failed=seq == 2)
    hour, day = await figures(client), await figures(client, "day")
    assert (hour["bucket_s"], len(hour["buckets"]), day["bucket_s"], len(day["buckets"])) == (60, 60, 900, 96)
    assert (hour["total"]["accepted"], day["total"]["accepted"]) == (2, 3)
    [busy] = [bucket for bucket in hour["buckets"] if bucket["figures"]["accepted"]]
    begins = datetime.fromisoformat(busy["at"])
    assert begins <= now - timedelta(minutes=5) < begins + timedelta(minutes=1)
    assert (busy["figures"]["completed"], busy["figures"]["failed"]) == (1, 1)
    assert (busy["figures"]["latency_ms"], busy["figures"]["waited_ms"]["p95"]) == ({"median": 1500, "p95": 1500}, 500)
    assert [busy["figures"][name] for name in ("llm_calls", "cached_tokens", "cost")] == [2, 40, 0.25]
    assert hour["errors"] == [{"code": "turn_timeout", "turns": 1}]
    assert [(each["agent"], each["model"]) for each in day["by_model"]] == [("clerk", "large"), ("clerk", None)]
    monkeypatch.setattr("segue.history.operator_figures.MOST_TURNS", 2)
    cut = await figures(client, "day")
    assert cut["total"]["accepted"] == 2
    assert datetime.fromisoformat(cut["counted_since"]) == now - timedelta(minutes=5)


async def test_figures_of_many_turns_are_added_up_once_for_all_operators_who_look_in_the_same_moment(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await client.new_session()
    now = datetime.fromisoformat((await client.get("/ops/overview"))["at"])
    async with looking_into(settings) as stores:

        async def counted_after(seq: int) -> int:
            await earlier(stores, session, now - timedelta(minutes=5), seq)
            counted: int = (await figures(client))["total"]["accepted"]
            return counted

        monkeypatch.setattr("segue.history.operator_figures.KEPT_S", 600)
        assert [await counted_after(seq) for seq in (1, 2)] == [1, 2]
        monkeypatch.setattr("segue.history.operator_figures.KEPT_FROM", 3)
        assert [await counted_after(seq) for seq in (3, 4)] == [3, 3]
        assert (await figures(client, "day"))["total"]["accepted"] == 4


async def test_figures_that_were_kept_for_their_moment_are_added_up_again(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.history.operator_figures.KEPT_FROM", 1)
    monkeypatch.setattr("segue.history.operator_figures.KEPT_S", 0)
    session = await client.new_session()
    now = datetime.fromisoformat((await client.get("/ops/overview"))["at"])
    async with looking_into(settings) as stores:
        for seq in (1, 2):
            await earlier(stores, session, now - timedelta(minutes=5), seq)
            assert (await figures(client))["total"]["accepted"] == seq
