"""The operator's webhook: what is sent, in which order, and what a receiver that fails, hangs or redirects costs."""

import asyncio
import base64
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from starlette.responses import RedirectResponse, Response

from segue.config import Settings
from segue.db.engine import Database
from segue.events.outbox import claim_due, drop, drop_excess, give_back, postpone, tool_failed
from segue.turns.jobs.webhooks import Webhooks, signatures
from tests.support.commands import ROOT
from tests.support.health import MOODY, connect, fails_for_all
from tests.support.logs import awaiting, until
from tests.support.metrics import scraped
from tests.support.patience import PATIENCE_S
from tests.support.plans import ASK, deletion, planned
from tests.support.provider import Provider, fails, says
from tests.support.receiver import SECRET, Post, Receiver, is_signed, receiving
from tests.support.service import Client, process, running
from tests.support.shelf import Shelf
from tests.support.stores import Stores

pytestmark = pytest.mark.usefixtures("long_leases")

NEW_SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
LEASE_S = 2 * PATIENCE_S
KILLS = 20 if "SWEEP" in os.environ else 1


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as served:
        yield served


@pytest.fixture
def told(settings: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What hangs hangs until the test says so, and what failed is tried again then, however long its other requests
    take.
    """
    monkeypatch.setattr("segue.turns.jobs.webhooks.FIRST_WAIT_S", PATIENCE_S)
    monkeypatch.setattr("segue.factories.TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr("segue.turns.jobs.webhooks.TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr("segue.turns.jobs.webhooks.LEASE_S", LEASE_S)
    update = {"webhook_url": SecretStr(receiver.url), "webhook_secret": SecretStr(SECRET), "turn_lease_s": 1}
    return settings.model_copy(update=update)


async def asked(client: Client, provider: Provider, session: str) -> str:
    """A turn that has ended, by its id."""
    provider.will(says("Lemons."))
    return str((await client.chat(session, "What grows here?"))["turn_id"])


async def retry(client: Client, **query: str) -> int:
    response = await client.http.post("/ops/webhooks/retry", params=query)
    assert response.status_code == 200, response.text
    return int(response.json()["events"])


async def failing(client: Client, failure: str) -> dict[str, Any]:
    """What operators see once an event has failed in this way."""

    async def found() -> dict[str, Any]:
        seen = await client.get("/ops/webhooks")
        return seen if failure in seen["failing"] else {}

    return await until(found, logged="webhook_failed")


def test_it_signs_as_the_specification_has_it() -> None:
    """The example of its own libraries."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signatures([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_the_receiver_of_the_examples_takes_what_is_signed_now_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    code = (ROOT / "examples" / "webhook_receiver.py").read_text("utf-8")
    assert code.endswith('\nHTTPServer(("127.0.0.1", 9000), Receiver).serve_forever()\n')
    code = code.replace('HTTPServer(("127.0.0.1", 9000)', 'server = HTTPServer(("127.0.0.1", 0)')
    written: dict[str, Any] = {}
    exec(code.replace(".serve_forever()", ""), written)  # noqa: S102 (our own example)
    server, key, now = written["server"], written["KEY"], int(time.time())
    with ThreadPoolExecutor(1) as threads:
        threads.submit(server.serve_forever, 0.05)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.server_port}") as http:
            answers = []
            for at, body, secrets in (
                (now, b"{}", [b"old", key]),
                (now, b"{ }", [key]),
                (now, b"{}", [b"x"]),
                (now - 600, b"{}", [key]),
            ):
                signed = signatures(secrets, "evt_1", at, b"{}")
                headers = {"webhook-id": "evt_1", "webhook-timestamp": str(at), "webhook-signature": signed}
                answers.append((await http.post("/", content=body, headers=headers)).status_code)
        server.shutdown()
    server.server_close()
    assert answers == [204, 400, 400, 400]


def silent(go: asyncio.Event) -> Any:
    async def never(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("too late")

    return never


async def test_what_waits_and_what_ends_is_told_in_order_without_what_was_said_unless_it_is_wanted(
    told: Settings, receiver: Receiver, provider: Provider, shelf: Shelf
) -> None:
    connect(told, shelf)
    both = {"webhook_secret": SecretStr(f"{NEW_SECRET} {SECRET}"), "webhook_content": True}
    for settings in (told, told.model_copy(update=both)):
        receiver.posts.clear()
        async with running(settings) as client:
            await client.connected("shelf")
            session = await client.new_session()
            provider.will(planned([deletion(1), deletion(2)]))
            question = await client.chat(session, ASK)
            provider.will(fails(500), silent(go := asyncio.Event()))
            await client.send(session, "And the lemons, what of these?")
            before = len(provider.requests)
            for message in ("What grows here?", "And what grows there?"):
                await client.send(session, message, background=True)
            await provider.wait_for_requests(before + 1)
            turns = await client.turns(session)
            for turn in reversed(turns[2:]):
                await client.http.post(f"/sessions/{session}/turns/{turn['turn_id']}/cancel")
            go.set()
            posts = await receiver.first(5)
        plan, ids = question["plan"], {"session_id": session, "user": "local", "agent": "segue"}
        asks = {**ids, "turn_id": question["turn_id"], "plan_id": plan["id"], "plan_version": plan["version"]}
        asks |= {"step_id": 1, "tool": "mcp_delete_item", "expires_at": plan["expires_at"].replace("Z", "+00:00")}
        answer = {}
        if settings.webhook_content:
            asks |= {"goal": plan["goal"], "args": {"item_id": "itm-1"}}
            answer = {"answer": question["message"]["content"]}
        ended = [(turns[0], "completed", None), (turns[1], "failed", turns[1]["error"] and turns[1]["error"]["code"])]
        ended += [(turn, "cancelled", "turn_cancelled") for turn in (turns[3], turns[2])]
        ends = [{**ids, "turn_id": turn["turn_id"], "status": how, "error_code": code} for turn, how, code in ended]
        assert [post.data for post in posts] == [asks, ends[0] | answer, *ends[1:]]
        kinds = ["approval.requested", "turn.completed", "turn.failed", "turn.cancelled", "turn.cancelled"]
        assert [post.type for post in posts] == kinds
        assert len({post.id for post in posts}) == len(posts)
        assert all(is_signed(NEW_SECRET, post.headers, post.body) == settings.webhook_content for post in posts)


async def test_the_words_of_an_event_are_cut_and_long_arguments_left_out(
    told: Settings, receiver: Receiver, provider: Provider, shelf: Shelf
) -> None:
    connect(told, shelf)
    async with running(told.model_copy(update={"webhook_content": True})) as client:
        await client.connected("shelf")
        session = await client.new_session()
        provider.will(says("x" * 4001))
        await client.chat(session, "What grows here?")
        for long in (11_900, 12_000):
            provider.will(planned([{**deletion(1), "args": {"item_id": "i" * long}}, deletion(2)]))
            await client.chat(await client.new_session(), f"{ASK} ({long})")  # else the plan is known
        posts = await receiver.until(lambda posts: sum(post.type == "approval.requested" for post in posts) == 2)
    assert posts[0].data["answer"] == "x" * 4000
    asked = {post.data["args"] and len(post.data["args"]["item_id"]) for post in posts if "args" in post.data}
    assert asked == {11_900, None}


async def test_a_tool_that_fails_for_all_is_told_once_also_if_the_process_died_before_it_stored_it(
    told: Settings, receiver: Receiver, provider: Provider, shelf: Shelf, stores: Stores
) -> None:
    connect(told, shelf)
    async with running(told) as client:
        await client.connected("shelf")
        await stores.redis.hset("segue:tools:untold", mapping={"evt_of_a_process_that_died": "mcp_get_item"})
        await fails_for_all(client, provider, shelf)
        posts = await receiver.until(lambda posts: sum(post.type == "tool.failed" for post in posts) == 2)
        failed = {post.data["tool"]: post for post in posts if post.type == "tool.failed"}
        assert failed.keys() == {MOODY, "mcp_get_item"}
        assert failed["mcp_get_item"].id == "evt_of_a_process_that_died"
        assert failed[MOODY].data == {"tool": MOODY, "status": "failed"}
        await stores.until("SELECT count(*) = 0 FROM webhook_events")
        assert await stores.redis.exists("segue:tools:untold") == 0


async def test_a_receiver_that_fails_costs_its_session_a_wait_and_no_turn_and_no_other_session_anything(
    told: Settings, receiver: Receiver, provider: Provider, stores: Stores
) -> None:
    bad = [Response(status_code=404), RedirectResponse(receiver.url, 307), Response(status_code=500)]

    def answer(post: Post) -> Response:
        return bad.pop() if bad and post.data["session_id"] == broken else Response("x" * 100_000)

    async with running(told) as client:
        broken, other = await client.new_session(), await client.new_session()
        receiver.answer = answer
        turns = [await asked(client, provider, broken), await asked(client, provider, broken)]
        for tries, failure in enumerate(("HTTP 500", "HTTP 307", "HTTP 404"), 1):
            seen = await failing(client, failure)
            assert (seen["pending"], seen["by_type"], seen["failing"]) == (2, {"turn.completed": 2}, {failure: 1})
            assert (seen["last_failure"]["session_id"], seen["last_failure"]["tries"]) == (broken, tries)
            assert seen["last_failure"]["next_try_at"] > seen["last_failure"]["failed_at"]
            fine = await asked(client, provider, other)
            await receiver.until_told_of(fine)
            assert await retry(client) == 2
        await stores.until("SELECT count(*) = 0 FROM webhook_events")
        posts = [post for post in receiver.posts if post.data["session_id"] == broken]
        assert [post.data["turn_id"] for post in posts] == [turns[0]] * 4 + turns[1:]
        assert len({(post.id, post.timestamp) for post in posts}) == 2
        found = await scraped(client)
        assert found("segue_webhook_pending") == 0
        assert found("segue_webhook_tries_total", outcome="failed") == 3
        [act] = {act["action"] for act in (await client.get("/ops/audit"))["items"]}
        assert act == "retry_webhooks"


async def test_an_event_on_its_way_says_until_when_and_is_neither_waiting_for_its_next_try_nor_sent_twice(
    told: Settings, receiver: Receiver, provider: Provider
) -> None:
    receiver.answer = lambda _: Response(status_code=500 if len(receiver.posts) == 1 else 204)
    async with running(told) as client:
        session = await client.new_session()
        await asked(client, provider, session)
        seen = await failing(client, "HTTP 500")
        assert (seen["in_flight"], seen["last_failure"]["in_flight_until"]) == ([], None)
        assert seen["last_failure"]["next_try_at"] is not None
        [waiting] = (await client.get("/ops/webhooks/events"))["items"]
        assert waiting == seen["last_failure"]
        assert (waiting["failure"], waiting["session_id"], waiting["tries"]) == ("HTTP 500", session, 1)
        assert await retry(client, event_id="evt_other") == 0
        receiver.hangs = asyncio.Event()
        before = datetime.now(UTC)
        assert await retry(client, event_id=waiting["event_id"]) == 1
        await receiver.first(2)
        seen = await client.get("/ops/webhooks")
        [flying], failed = seen["in_flight"], seen["last_failure"]
        lasts = datetime.fromisoformat(flying["in_flight_until"]) - before
        assert timedelta(seconds=LEASE_S - 1) < lasts < timedelta(seconds=LEASE_S + PATIENCE_S)  # of two clocks
        assert flying == {"event_id": receiver.posts[0].id, "type": "turn.completed", "session_id": session, "tries": 2,
                          "in_flight_until": failed["in_flight_until"]}  # fmt: skip
        assert (failed["next_try_at"], seen["pending"], await retry(client)) == (None, 1, 0)
        receiver.hangs.set()

        async def is_done() -> bool:
            return bool((await client.get("/ops/webhooks"))["pending"] == 0)

        await until(is_done)
        assert len(receiver.posts) == 2


async def test_an_event_is_given_up_after_a_day_or_at_410_and_the_next_of_its_session_is_sent(
    told: Settings, receiver: Receiver, provider: Provider, stores: Stores
) -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    bad = [Response(status_code=410), Response(status_code=503, headers={"retry-after": in_an_hour})]
    receiver.answer = lambda _: bad.pop() if bad else Response(status_code=204)
    async with running(told) as client:
        session = await client.new_session()
        turns = [await asked(client, provider, session)]
        seen = await failing(client, "HTTP 503")
        waits = "SELECT due_at - failed_at > interval '50 minutes' FROM webhook_events"
        assert (seen["pending"], await stores.database.fetchval(waits)) == (1, True)
        turns.append(await asked(client, provider, session))
        bad.append(Response(status_code=500))
        await stores.database.execute("UPDATE webhook_events SET created_at = now() - interval '25 hours'")
        async with awaiting("webhook_dropped") as dropped:
            await retry(client)
            await dropped.wait()
        await stores.until("SELECT count(*) = 0 FROM webhook_events")
        turns.append(await asked(client, provider, session))
        await receiver.until_told_of(turns[-1])
        assert [post.data["turn_id"] for post in receiver.posts] == [turns[0], *turns]
        found = await scraped(client)
        outcomes = ("failed", "given_up", "gone", "delivered")
        counted = [found("segue_webhook_tries_total", outcome=outcome) for outcome in outcomes]
        assert counted == [1, 1, 1, 1]


@pytest.mark.sweep
async def test_a_receiver_that_hangs_has_few_requests_at_once_and_an_event_of_a_frozen_sender_is_sent_by_another(
    told: Settings, receiver: Receiver, provider: Provider, stores: Stores
) -> None:
    receiver.hangs = asyncio.Event()
    async with running(told) as client:
        sessions = [await client.new_session() for _ in range(Webhooks.slots + 2)]
        turns = {session: [await asked(client, provider, session)] for session in sessions}
        await receiver.first(Webhooks.slots)
        for session in sessions:
            turns[session].append(await asked(client, provider, session))
        assert receiver.most_at_once == len(receiver.posts) == Webhooks.slots
        frozen, receiver.hangs = receiver.hangs, None
        async with running(told) as other:
            await stores.database.execute("UPDATE webhook_events SET due_at = now()")  # their leases have lapsed
            await stores.until("SELECT count(*) = 0 FROM webhook_events")
            assert (await other.get("/ops/webhooks"))["pending"] == 0
        assert first_of_each(receiver.posts) == turns
        frozen.set()
        await asked(client, provider, sessions[0])
        await stores.until("SELECT count(*) = 0 FROM webhook_events")
    assert receiver.most_at_once <= 2 * Webhooks.slots


def first_of_each(posts: list[Post]) -> dict[str, list[str]]:
    """The turns that were told of, by session, in the order of the first try of each."""
    found: dict[str, list[str]] = defaultdict(list)
    for post in posts:
        if post.data["turn_id"] not in found[post.data["session_id"]]:
            found[post.data["session_id"]].append(post.data["turn_id"])
    return found


@pytest.mark.sweep
async def test_two_instances_send_the_events_of_a_session_one_by_one_and_in_order(
    told: Settings, receiver: Receiver, provider: Provider, stores: Stores
) -> None:
    async with running(told) as here, running(told) as there:
        sessions = [await here.new_session() for _ in range(3)]
        provider.always("What grows", says("Lemons."))
        receiver.hangs = asyncio.Event()
        for number in range(4):
            for session in sessions:
                await (here, there)[number % 2].chat(session, f"What grows on tree {number}?")
        await receiver.first(len(sessions))
        assert await stores.database.fetchval("SELECT count(*) FROM webhook_events") == 12
        assert sorted(post.data["session_id"] for post in receiver.posts) == sorted(sessions), "one of each at a time"
        receiver.hangs.set()
        await stores.until("SELECT count(*) = 0 FROM webhook_events")
        turns = {session: [turn["turn_id"] for turn in await here.turns(session)] for session in sessions}
    assert len(receiver.posts) == 12
    assert first_of_each(receiver.posts) == turns


@pytest.mark.sweep
async def test_a_process_that_stops_gives_back_what_it_sends_and_a_deleted_session_takes_its_events_along(
    told: Settings, receiver: Receiver, provider: Provider, stores: Stores
) -> None:
    receiver.hangs = asyncio.Event()
    async with running(told) as client:
        kept, gone = await client.new_session(), await client.new_session()
        turn = await asked(client, provider, kept)
        await asked(client, provider, gone)
        await receiver.first(2)
        assert (await client.http.delete(f"/sessions/{gone}")).status_code == 204
    rows = await stores.database.fetch("SELECT session_id, due_at <= now() AS due FROM webhook_events")
    assert [tuple(row) for row in rows] == [(kept, True)]
    receiver.hangs.set()
    receiver.hangs = None
    async with running(told):
        assert (await receiver.first(3))[-1].data["turn_id"] == turn
        await stores.until("SELECT count(*) = 0 FROM webhook_events")


async def test_a_process_whose_claim_has_lapsed_changes_nothing_of_an_event_that_another_one_has(
    told: Settings, stores: Stores
) -> None:
    due = "UPDATE webhook_events SET due_at = now()"
    assert told.database_url is not None
    database = Database(told.database_url.get_secret_value())
    try:
        async with database.autocommit() as connection:
            await tool_failed(connection, "evt_1", "mcp_get_item")
            lapsed = await claim_due(connection, lease_s=30)
            assert await claim_due(connection, lease_s=30) is None
            await stores.database.execute(due)
            current = await claim_due(connection, lease_s=30)
            assert lapsed is not None
            assert current is not None
            before = await stores.database.fetchrow("SELECT * FROM webhook_events")
            await postpone(connection, lapsed, "HTTP 500", wait_s=600)
            await give_back(connection, lapsed, wait_s=0)
            assert not await drop(connection, lapsed)
            assert await stores.database.fetchrow("SELECT * FROM webhook_events") == before
            assert await drop(connection, current)
    finally:
        await database.close()


async def test_events_without_a_session_wait_for_no_other_and_are_held_back_by_none(
    told: Settings, stores: Stores
) -> None:
    assert told.database_url is not None
    database = Database(told.database_url.get_secret_value())
    kept = "SELECT due_at, leased_until, failure FROM webhook_events WHERE id = 'evt_2'"
    try:
        async with database.autocommit() as connection:
            await tool_failed(connection, "evt_1", "mcp_get_item")
            await tool_failed(connection, "evt_2", "mcp_find_items")
            first, second = [await claim_due(connection, lease_s=30) for _ in range(2)]
            assert first is not None
            assert second is not None
            before = await stores.database.fetchrow(kept)
            await postpone(connection, first, "HTTP 500", wait_s=600)
            assert await stores.database.fetchrow(kept) == before
            assert await drop(connection, replace(first, has_failed=True))
            assert await stores.database.fetchrow(kept) == before
            assert await drop(connection, second)
    finally:
        await database.close()


async def test_without_a_webhook_nothing_is_stored_and_what_nobody_sends_is_dropped_in_the_end(
    settings: Settings, client: Client, provider: Provider, stores: Stores
) -> None:
    session = await client.new_session()
    await asked(client, provider, session)
    assert await stores.database.fetchval("SELECT count(*) FROM webhook_events") == 0
    await stores.database.execute(
        "INSERT INTO webhook_events (id, type, data, created_at, due_at) SELECT number, 'x', '{}',"
        " now() - CASE number WHEN 3 THEN '4 days' ELSE '0' END::interval, now() FROM generate_series(1, 5) number"
    )
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    try:
        async with database.autocommit() as connection, awaiting("webhook_events_dropped") as said:
            assert await drop_excess(connection, most=3) == 3
            await said.wait()
    finally:
        await database.close()
    left = await stores.database.fetch("SELECT id FROM webhook_events ORDER BY seq")
    assert [row["id"] for row in left] == ["4", "5"]


@pytest.mark.sweep
async def test_a_kill_at_each_place_of_the_way_loses_no_event_and_reorders_none(
    told: Settings, receiver: Receiver, provider: Provider, stores: Stores, shelf: Shelf
) -> None:
    """Each kill meets a turn that has not ended, as many events as may be on their way, unanswered, and one that is not
    sent yet. `make webhook-kills` kills twenty times.
    """
    connect(told, shelf)
    provider.always("What grows", says("Lemons."))
    provider.always("Is there", says("Yes."))
    sessions: list[str] = []
    for number in range(KILLS):
        receiver.hangs, posted = asyncio.Event(), len(receiver.posts)
        provider.will_to(f"Is there a tree {number}", silent(answered := asyncio.Event()))
        async with process(told) as (_, client):
            sessions = sessions or [await client.new_session() for _ in range(Webhooks.slots + 2)]
            await client.send(sessions[-1], f"Is there a tree {number}?", background=True)
            for session in sessions[:-1]:
                await client.chat(session, f"What grows on tree {number}?")
            await receiver.first(posted + Webhooks.slots)
            await provider.wait_for_request_about(f"Is there a tree {number}")
            assert await stores.database.fetchval("SELECT count(*) FROM webhook_events WHERE tries = 0") > 0
        answered.set()
        receiver.hangs.set()
        await stores.database.execute("UPDATE webhook_events SET due_at = now()")  # the leases have lapsed
    receiver.hangs = None
    async with process(told) as (_, client):
        turns = {session: [turn["turn_id"] for turn in await client.ended(session, KILLS)] for session in sessions}
        await stores.until("SELECT count(*) = 0 FROM webhook_events")
    assert first_of_each(receiver.posts) == turns
    assert len({post.id for post in receiver.posts}) == KILLS * len(sessions) < len(receiver.posts)
