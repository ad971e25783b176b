"""What /metrics tells after a conversation, to whom it tells it, and that what watches it asks for what there is."""

import asyncio
import concurrent.futures
import re
import socket
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs

from segue.api.deps import Services
from segue.api.metrics import Metrics, metrics_served
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.telemetry import TurnRecovered
from segue.main import run_worker
from tests.support.health import MOODY, connect, fails_for_all, put, reset, uses
from tests.support.identity import new_key, speaking
from tests.support.logs import awaiting
from tests.support.metrics import Scrape, scraped
from tests.support.patience import PATIENCE_S
from tests.support.plans import THREE_STEPS, Frozen, deletion, offered, planned
from tests.support.provider import Provider, calls, fails, raw, says, streams
from tests.support.proxy import proxied
from tests.support.results import use_toolbox
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into, socket_of
from tests.support.streams import chatting


def two_steps(number: int) -> list[dict[str, Any]]:
    return [THREE_STEPS[0], {**deletion(number), "id": 2}]


def ask(number: int) -> str:
    """No two alike, since plans are cached by the request; too long for an answer to a question."""
    return f"Cerca le cose di Rossi, poi leggi la prima e infine cancella la numero {number}, per favore"


async def test_a_conversation_shows_in_the_metrics(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    before = await scraped(client)
    provider.will(calls(("current_time", {}), ("no_such_tool", {}), ("current_time", {"timezone": 7})), says("noon"))
    await client.chat(session, "what time is it?")
    after = await scraped(client)
    assert before("segue_turns_total", outcome="completed", code="") == 0
    assert after("segue_turns_total", outcome="completed", code="") == 1
    assert after("segue_turn_duration_seconds_count", outcome="completed") == 1
    assert after("segue_turn_queue_wait_seconds_count") == 1
    assert after("segue_model_calls_total", outcome="answered") == 2
    assert after("segue_model_call_duration_seconds_count") == 2
    assert after("segue_model_tokens_total", direction="input", model="scripted", agent="segue") > 0
    assert after("segue_model_tokens_total", direction="output", model="scripted", agent="segue") > 0
    assert after("segue_tool_calls_total", tool="current_time", outcome="succeeded") == 1
    assert after("segue_tool_calls_total", tool="current_time", outcome="bad_arguments") == 1
    assert after("segue_tool_calls_total", tool="other", outcome="refused") == 1
    assert after("segue_tool_call_duration_seconds_count", tool="current_time") == 2
    assert after("segue_acknowledgements_total", verdict="none") == 1
    assert after("segue_web_search_decisions_total", performed="false", reason="not_asked") == 1
    assert after("segue_http_requests_total", method="POST", status=200) == 1
    chat = {"method": "POST", "route": "/sessions/{session_id}/chat"}
    assert after("segue_http_request_duration_seconds_count", **chat) == 1
    assert after("segue_http_request_duration_seconds_sum", **chat) > 0
    assert "no_such_tool" not in after.text
    assert session not in after.text


async def test_what_an_alert_looks_for_the_first_of_is_there_before_it_happens(client: Client) -> None:
    begun = (await scraped(client)).labelled("segue_turn_recoveries_total", "action")
    assert begun == dict.fromkeys(get_args(get_type_hints(TurnRecovered)["action"]), 0)


async def test_a_turn_queued_by_a_clock_that_was_ahead_has_waited_for_no_time(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, takes_turns=False) as accepts:
        await accepts.send(await accepts.new_session(), "hello", background=True)
    async with looking_into(settings) as stores:
        await stores.database.execute("UPDATE turns SET queued_at = now() + interval '1 hour'")
    provider.will(says("hi"))
    async with awaiting("turn_finished") as finished, running(settings) as client:
        async with asyncio.timeout(PATIENCE_S):
            await finished.wait()
        after = await scraped(client)
    waited = [after(f"segue_turn_queue_wait_seconds_{end}") for end in ("count", "sum")]
    assert waited == [1, 0]


async def test_how_things_stand_is_read_as_it_is_asked_for(client: Client, provider: Provider) -> None:
    gate = asyncio.Event()

    provider.will(streams(gate, "at last"))
    session = await client.new_session()
    async with chatting(client, session, "wait") as stream:
        await provider.wait_for_requests(1)
        now = await scraped(client)
        gate.set()
        await stream.rest()
    assert now("segue_turns_running") == 1
    assert now("segue_turn_places") == 64
    assert now("segue_turns_open", status="running") == 1
    assert now("segue_turns_open", status="queued") == 0
    assert (now("segue_streams_open"), now("segue_watchers")) == (1, 1)
    assert now("segue_database_pool_size") == 10
    assert now("segue_store_up", store="postgres") == now("segue_store_up", store="redis") == 1
    assert now("segue_turns_lapsed") == now("segue_turn_oldest_waiting_seconds") == 0
    assert now("process_resident_memory_bytes") > 0


@pytest.mark.sweep
async def test_failures_and_retries_of_the_model_are_told_apart(settings: Settings, provider: Provider) -> None:
    async with running(settings.model_copy(update={"llm_max_retries": 1})) as client:
        session = await client.new_session()
        provider.will(fails(500), says("there"), fails(401))
        await client.chat(session, "hello")
        assert (await client.send(session, "hello?")).status_code == 502
        after = await scraped(client)
    assert after("segue_model_retries_total") == 1
    assert after("segue_model_calls_total", outcome="answered") == 1
    assert after("segue_model_calls_total", outcome="key") == 1
    assert after("segue_turns_total", outcome="failed", code="model_unavailable") == 1


async def test_why_the_model_gave_no_answer_is_counted_and_logged_with_what_to_do(
    settings: Settings, provider: Provider
) -> None:
    no_quota = fails(429, body='{"error": {"code": "insufficient_quota", "message": "You have spent it all."}}')
    failures = {
        "rate_limit": (fails(429), "WORKER_CONCURRENCY"),
        "quota": (no_quota, "top it up"),
        "refused": (fails(400), "what the provider said is above"),
        "failing": (fails(503), "LLM_FALLBACK_MODEL"),
        "no_answer": (raw("<html>Hello</html>", media_type="text/html"), "does not speak this protocol"),
    }
    with capture_logs() as logs:
        async with running(settings.model_copy(update={"llm_max_retries": 0})) as client:
            for reply, _ in failures.values():
                provider.will(reply)
                assert (await client.send(await client.new_session(), "hello")).status_code == 502
            after = await scraped(client)
    assert {outcome: after("segue_model_calls_total", outcome=outcome) for outcome in failures} == dict.fromkeys(
        failures, 1
    )
    told = {line["outcome"]: line["advice"] for line in logs if line["event"] == "model_failed"}
    assert told.keys() == failures.keys()
    assert all(advice in told[outcome] for outcome, (_, advice) in failures.items()), told


async def test_every_end_of_a_plan_is_counted_once(settings: Settings, provider: Provider, shelf: Shelf) -> None:
    connect(settings, shelf)
    async with running(settings) as client:
        session, _ = await offered(client, provider, two_steps(1), ask(1))
        provider.will(says("It is gone."))
        await client.chat(session, "sì, grazie")
        session, _ = await offered(client, provider, two_steps(2), ask(2))
        await client.chat(session, "no")
        session, answer = await offered(client, provider, two_steps(3), ask(3))
        decision = {"decision": "reject", "version": answer["plan"]["version"]}
        await client.http.post(f"/sessions/{session}/plan/decision", json=decision)
        session, _ = await offered(client, provider, two_steps(4), ask(4))
        provider.will(planned(two_steps(5)))
        await client.chat(session, ask(5))
        after = await scraped(client)
    assert after("segue_plans_total", outcome="completed") == 1
    assert after("segue_plans_total", outcome="cancelled") == 2
    assert after("segue_plans_total", outcome="superseded") == 1
    assert after("segue_acknowledgements_total", verdict="confirm") == 1
    assert after("segue_acknowledgements_total", verdict="reject") == 2


@pytest.mark.sweep
async def test_a_tool_that_fails_for_all_shows_until_it_is_reset(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    connect(settings, shelf)
    async with running(settings) as client:
        assert (await scraped(client))("segue_tool_failed_for_all", tool=MOODY) == 0
        await fails_for_all(client, provider, shelf)
        failed = await scraped(client)
        assert await uses(client, provider, await client.new_session()) == "failed"
        await client.http.post("/tool-states/reset", json={"tool_name": MOODY})
        session = await client.new_session()
        await put(client, session, MOODY, "maintenance")
        await reset(client, session)
        mended = await scraped(client)
    assert failed("segue_tool_failed_for_all", tool=MOODY) == 1
    assert failed("segue_tool_fleet_changes_total", tool=MOODY, status="failed") == 1
    assert failed("segue_tool_state_changes_total", tool=MOODY, status="failed") == 3
    assert failed("segue_mcp_server_ready", server="shelf") == 1
    assert mended("segue_tool_calls_total", tool=MOODY, outcome="refused") == 1
    assert mended("segue_tool_failed_for_all", tool=MOODY) == 0
    assert mended("segue_tool_fleet_changes_total", tool=MOODY, status="available") == 1
    assert mended("segue_tool_state_changes_total", tool=MOODY, status="maintenance") == 1
    # In the three sessions in which it had failed, and in the one of the maintenance.
    assert mended("segue_tool_state_changes_total", tool=MOODY, status="available") == 3 + 1


@pytest.mark.sweep
@pytest.mark.usefixtures("long_leases")
async def test_what_upkeep_removes_is_counted_with_its_size(settings: Settings, provider: Provider) -> None:
    use_toolbox(settings)
    clock = Frozen()
    async with running(settings.model_copy(update={"turn_lease_s": 1}), clock=clock) as client:
        provider.will(calls(("big", {"n_bytes": 5000})), says("big"))
        await client.chat(await client.new_session(), "make it big")
        async with asyncio.timeout(PATIENCE_S), awaiting("retention_swept") as swept:
            clock.now += timedelta(days=31)
            await swept.wait()
        after = await scraped(client)
    assert after("segue_retention_removed_rows_total", kind="results") == 1
    assert after("segue_retention_removed_bytes_total", kind="results") == 5000


async def test_a_redis_that_is_lost_shows_and_costs_no_scrape(
    settings: Settings, redis_url: str, provider: Provider
) -> None:
    async with proxied(Path(redis_url.removeprefix("unix://"))) as redis:
        url = SecretStr(f"redis://127.0.0.1:{redis.port}")
        async with running(settings.model_copy(update={"redis_url": url})) as client:
            await redis.begin("refuses")
            provider.will(says("without it"))
            await client.chat(await client.new_session(), "hello")
            lost = await scraped(client)
            await redis.open()
    assert lost("segue_store_up", store="redis") == 0
    assert lost("segue_store_up", store="postgres") == 1
    assert lost("segue_redis_degraded") == 1
    assert lost("segue_redis_outages_total") == 1
    assert not lost.has("segue_tool_failed_for_all")
    assert lost("segue_turns_total", outcome="completed", code="") == 1


async def test_a_process_whose_metrics_are_cut_short_is_left_out_of_those_of_all(tmp_path: Path) -> None:
    metrics, other, told = Metrics(), Metrics(), b""

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(told)
        writer.close()

    await metrics.share(tmp_path, 0)
    async with metrics.given, await asyncio.start_unix_server(tell, tmp_path / "1"):
        whole = other.text()
        figure = whole.index(b"segue_build_info{")
        ends = (whole.index(b"\n", figure) - 1, figure + 20, whole.index(b"process_start_time_seconds ") + 30)
        for told in (*(whole[:end] for end in ends), "è".encode()[:1]):
            assert set(re.findall(rb'process="(\d)"', await asyncio.to_thread(metrics.text))) == {b"0"}, told[-60:]
        told = whole
        assert set(re.findall(rb'process="(\d)"', await asyncio.to_thread(metrics.text))) == {b"0", b"1"}


async def test_metrics_are_for_ops_unless_they_are_public(settings: Settings) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    ada, ops = await new_key(guarded, "ada"), await new_key(guarded, "ops", ["ops"])
    async with running(guarded) as client:
        assert (await client.http.get("/metrics")).status_code == 401
        async with speaking(client, ada) as known:
            assert (await known.http.get("/metrics")).status_code == 403
        async with speaking(client, ops) as known:
            assert (await known.http.get("/metrics")).status_code == 200
    async with running(guarded.model_copy(update={"metrics_public": True})) as client:
        await scraped(client)
        assert (await client.http.get("/sessions")).status_code == 401


async def tell(started: asyncio.Event, _: Services) -> None:
    started.set()


async def test_a_lost_postgres_shows_to_a_key_that_was_known_and_no_other_route_takes_it(
    settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.users.api_keys.CHECK_EVERY_S", 0)
    ops, late = await new_key(settings, "ops", ["ops"]), await new_key(settings, "late", ["ops"])
    async with proxied(socket_of(database_url)) as postgres:
        url = make_url(database_url).set(host="127.0.0.1", port=postgres.port, query={})
        through = {"auth": "api_key", "database_url": SecretStr(url.render_as_string(hide_password=False))}
        async with running(settings.model_copy(update=through)) as client, speaking(client, ops) as known:
            await scraped(known)
            await postgres.begin("refuses")
            lost = await scraped(known)
            assert (await known.http.get("/agents")).status_code == 503  # which needs no PostgreSQL itself
            async with (
                speaking(client, late) as unknown,
                speaking(client, ops[:-1] + ("1" if ops[-1] == "0" else "0")) as wrong,
            ):
                assert (await unknown.http.get("/metrics")).status_code == 503
                assert (await wrong.http.get("/metrics")).status_code == 401
            await postgres.open()
    assert lost("segue_store_up", store="postgres") == 0
    assert not lost.has("segue_turns_open")


@pytest.mark.sweep
async def test_a_worker_serves_its_own_where_it_is_given_a_port(settings: Settings, provider: Provider) -> None:
    settings = settings.model_copy(update={"worker_metrics_port": 0})
    stopped, started = asyncio.Event(), asyncio.Event()
    async with running(settings, takes_turns=False) as client:
        with capture_logs() as logs:
            worker = asyncio.create_task(run_worker(settings, stopped, partial(tell, started)))
            await started.wait()
        [url] = [entry["url"] for entry in logs if entry["event"] == "metrics_served"]
        provider.will(says("from the worker"))
        await client.chat(await client.new_session(), "hello")
        here = await scraped(client)
        async with httpx2.AsyncClient() as http:
            there = Scrape((await http.get(url)).text)
            for path, answer in (("/health/live", 200), ("/health/ready", 404), ("/", 404), ("/metrics/x", 404)):
                assert (await http.get(url.replace("/metrics", path))).status_code == answer, path
        stopped.set()
        await worker
    assert here("segue_turns_total", outcome="completed", code="") == 0
    assert there("segue_turns_total", outcome="completed", code="") == 1
    assert there("segue_model_calls_total", outcome="answered") == 1
    assert (here("segue_turn_places"), there("segue_turn_places")) == (0, 64)


async def test_a_worker_is_alive_only_while_its_event_loop_answers_although_a_thread_does() -> None:
    async with metrics_served(Metrics(), "127.0.0.1", 0, live_within_s=0.2) as url:
        live = f"{url}/health/live"
        assert (await asyncio.to_thread(httpx2.get, live)).status_code == 200
        held = concurrent.futures.ThreadPoolExecutor(1).submit(httpx2.get, live)
        assert held.result(PATIENCE_S).status_code == 503  # the loop waits here
        assert (await asyncio.to_thread(httpx2.get, live)).status_code == 200


async def test_a_worker_whose_port_is_taken_says_which(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = settings.model_copy(update={"worker_metrics_port": port})
        with pytest.raises(AppError) as refused:
            await run_worker(settings, asyncio.Event(), partial(tell, asyncio.Event()))
    assert f"WORKER_METRICS_PORT={port}" in refused.value.detail
