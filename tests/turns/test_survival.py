"""What survives: `segue serve` as a process of its own, killed, stopped, doubled, left by its clients."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from redis.asyncio import Redis
from sqlalchemy import select
from starlette.responses import Response

from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from segue.db.engine import Database
from segue.db.models import turns
from segue.models.normal_form import short_id
from tests.support.commands import ROOT, python
from tests.support.files import PNG
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, calls, says, streams
from tests.support.results import TOOLBOX
from tests.support.service import Client, Process
from tests.support.stores import looking_into
from tests.support.streams import chatting, kinds, listening
from tests.support.uploads import uploaded

MAILBOX = ROOT / "examples" / "mailbox" / "server.py"
EMAIL_ID = re.compile(r"eml-[0-9a-f]{6}")


@pytest.fixture
def environment(servers: ServerUrls, database_url: str, tmp_path: Path) -> dict[str, str]:
    """Settings of a process on the test's stores, with the mailbox and the toolbox; no model configured."""
    program, *options = python()
    outbox = {"MAILBOX_OUTBOX": str(tmp_path / "outbox.mbox")}
    configured = {
        "mailbox": {"command": program, "args": [*options, str(MAILBOX)], "env": outbox},
        "toolbox": {"command": "python", "args": [TOOLBOX]},
    }
    mcp_config = tmp_path / "servers.json"  # `settings` writes an empty mcp.json here
    mcp_config.write_text(json.dumps({"mcpServers": configured}))
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": servers.redis_url,
        "MCP_CONFIG": str(mcp_config),
        "WEB_SEARCH_PROVIDER": "none",
        "MIGRATE_ON_START": "false",
        "TURN_LEASE_S": "5",
        "LLM_MAX_RETRIES": "0",
    }


@pytest.fixture
def scripted(environment: dict[str, str], provider: Provider) -> dict[str, str]:
    """The same, asking the scripted provider."""
    return {**environment, "OPENAI_BASE_URL": provider.base_url, "LLM_MODEL": "scripted"}


@asynccontextmanager
async def serving(environment: dict[str, str]) -> AsyncIterator[tuple[Process, Client]]:
    """A process and a client of it. Leaving it is kill -9."""
    process = Process(environment)
    try:
        url = await asyncio.to_thread(process.start)
        async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
            client = Client(http)
            await asyncio.to_thread(process.wait_for, "mcp_server_ready", times=2)
            yield process, client
    finally:
        process.kill()


async def empty_redis(environment: dict[str, str]) -> None:
    async with Redis.from_url(environment["REDIS_URL"], protocol=2) as redis:
        await redis.flushall()


async def turns_of(environment: dict[str, str], session: str) -> list[tuple[str, str | None]]:
    """Status and error code of a session's turns in order."""
    database = Database(environment["DATABASE_URL"])
    try:
        async with database.read_only() as connection:
            rows = await connection.execute(
                select(turns.c.status, turns.c.error["code"].astext)
                .where(turns.c.session_id == session)
                .order_by(turns.c.seq)
            )
            return [(status, code) for status, code in rows]
    finally:
        await database.close()


def ids_in(messages: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(EMAIL_ID.findall(orjson.dumps(messages).decode())))


def emails_found(answer: dict[str, Any]) -> list[str]:
    [call] = answer["tool_calls"]
    assert (call["tool_name"], call["status"]) == ("mcp_search_emails", "succeeded")
    return EMAIL_ID.findall(call["metadata"]["truncated_preview"])


@pytest.mark.sweep
async def test_what_was_found_is_read_after_kill_nine_and_the_loss_of_redis(
    scripted: dict[str, str], provider: Provider
) -> None:
    async def opens_the_first(body: dict[str, Any]) -> Response:
        return calls(("mcp_get_email", {"email_id": ids_in(body["messages"])[0]}))

    provider.will(calls(("mcp_search_emails", {"query": "invoice"})), says("Ho trovato qualcosa. Leggo la prima?"))
    async with serving(scripted) as (_, client):
        session = await client.new_session()
        found = emails_found(await client.chat(session, "Cerca le email sulle fatture"))
        memory = (await client.get(f"/sessions/{session}/memory"))["short_term"]
    await empty_redis(scripted)
    provider.will(opens_the_first, says("Ecco cosa dice."))
    async with serving(scripted) as (_, client):
        assert (await client.get(f"/sessions/{session}/memory"))["short_term"] == memory
        answer = await client.chat(session, "sì, grazie")
    assert answer["message"]["content"] == "Ecco cosa dice."
    assert answer["acknowledgement"]["verdict"] == "confirm"
    assert answer["memory_used"]["short_term"]
    [read] = answer["tool_calls"]
    assert (read["tool_name"], read["status"], read["args"]) == ("mcp_get_email", "succeeded", {"email_id": found[0]})
    assert set(found) <= set(ids_in(provider.messages(2)))
    assert orjson.loads(provider.messages(3, role="tool")[-1]["content"])["id"] == found[0]


@pytest.mark.sweep  # the test above does it with a scripted model
async def test_the_offline_model_reads_what_it_found_after_kill_nine_too(environment: dict[str, str]) -> None:
    async with serving(environment) as (_, client):
        session = await client.new_session()
        first = await client.chat(session, "Cerca le email di Giulia")
        found = emails_found(first)
    await empty_redis(environment)
    async with serving(environment) as (_, client):
        answer = await client.chat(session, "sì, grazie")
    assert first["model"] == answer["model"] == "offline"
    [read] = answer["tool_calls"]
    assert (read["tool_name"], read["status"], read["args"]) == ("mcp_get_email", "succeeded", {"email_id": found[0]})


@pytest.mark.sweep  # faults/test_crash.py kills a turn in three parallel calls
async def test_a_turn_killed_while_its_tools_run_goes_on_without_repeating_what_had_ended(
    scripted: dict[str, str],
    provider: Provider,
    settings: Settings,
) -> None:
    provider.will(says("Hello."), calls(("mcp_search_emails", {"query": "invoice"}), ("mcp_slow", {})))
    async with serving({**scripted, "TOOL_TIMEOUT_S": "30"}) as (process, client):
        session = await client.new_session()
        await client.chat(session, "hello")
        turn = asyncio.create_task(client.send(session, "Search, and wait"))
        results = f"/sessions/{session}/tool-results"
        async with looking_into(settings) as stores:
            await stores.until("SELECT count(*) > 0 FROM tool_calls WHERE status = 'succeeded'")
        process.kill()
        with pytest.raises(httpx2.TransportError):
            await turn
    provider.will(says("It did not answer."), says("Nothing more."))
    async with serving({**scripted, "TOOL_TIMEOUT_S": "2"}) as (_, client):
        await client.ended(session, 2)
        answer = await client.chat(session, "What happened?")
        ledger = (await client.get(results))["items"]
        memory = (await client.get(f"/sessions/{session}/memory"))["short_term"]
    assert answer["message"]["content"] == "Nothing more."
    assert await turns_of(scripted, session) == [("completed", None)] * 3
    sent = [message["role"] for message in provider.messages()[1:]]
    assert sent == ["user", "assistant", "user", "assistant", "tool", "tool", "assistant", "user"]
    searched, hung = provider.messages(role="tool")
    assert EMAIL_ID.search(searched["content"])
    assert orjson.loads(hung["content"])["status"] == "failed"
    statuses = {hung["tool_call_id"]: "failed", searched["tool_call_id"]: "succeeded"}
    assert {short_id(call["tool_call_id"]): call["status"] for call in ledger} == statuses
    assert answer["memory_used"]["tool_results"] == 2
    assert {short_id(result["tool_call_id"]): result["status"] for result in memory["tool_results"]} == statuses


@pytest.mark.sweep  # it goes on in the same way without a file
async def test_a_file_is_read_once_by_a_turn_that_another_process_goes_on_with_after_kill_nine(
    scripted: dict[str, str], provider: Provider
) -> None:
    never = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    scripted = {**scripted, "LLM_MODEL": "gpt-4o"}
    provider.will(silent)
    async with serving(scripted) as (process, client):
        session = await client.new_session()
        files = [await uploaded(client, session, each, "file") for each in (PNG, b"a letter to Rossi")]
        await client.send(session, "Look", attachments=files, background=True)
        await provider.wait_for_requests(1)
        process.kill()
    provider.will(says("Seen."))
    async with serving(scripted) as (_, client):
        [turn] = await client.ended(session)
    assert turn["answer"]["message"]["content"] == "Seen."
    assert [call["tool_name"] for call in turn["answer"]["tool_calls"]] == ["read_attachment"] * 2
    before, after = (str(provider.requests[request]["messages"]) for request in (0, -1))
    for sent in (before, after):
        assert (sent.count("data:image/png;base64,"), sent.count("a letter to Rossi")) == (1, 1)
    never.set()


async def test_sigterm_lets_a_turn_end_hands_back_what_takes_longer_and_leaves_nothing_running(
    scripted: dict[str, str], provider: Provider
) -> None:
    soon, never = asyncio.Event(), asyncio.Event()

    async def ends_soon(_: dict[str, Any]) -> Response:
        await soon.wait()
        return says("Just in time.")

    async def never_ends(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    provider.will(ends_soon, never_ends)
    scripted = {**scripted, "TURN_LEASE_S": "30"}  # what is handed back does not wait for it
    async with serving({**scripted, "SHUTDOWN_GRACE_S": "3"}) as (process, client):
        quick, slow = await client.new_session(), await client.new_session()
        answered = asyncio.create_task(client.chat(quick, "hello"))
        await provider.wait_for_requests(1)
        interrupted = asyncio.create_task(client.send(slow, "Take your time"))
        await provider.wait_for_requests(2)
        started = [process.pid, *children(process.pid)]
        assert len(started) >= 3
        stopped = asyncio.create_task(asyncio.to_thread(process.stop))
        await refused(client)
        soon.set()
        assert (await answered)["message"]["content"] == "Just in time."
        async with asyncio.timeout(PATIENCE_S):
            assert await stopped == 0
        never.set()
        told = await interrupted
    assert (told.status_code, told.json()["code"]) == (503, "turn_interrupted")
    assert int(told.headers["retry-after"]) > 0
    assert alive(started) == []
    assert await turns_of(scripted, quick) == [("completed", None)]
    assert await turns_of(scripted, slow) == [("queued", None)]
    provider.will(says("Here I am."))
    async with serving(scripted) as (_, client):
        [turn] = await client.ended(slow)
    assert (turn["turn_id"], turn["status"], turn["attempts"]) == (told.json()["turn_id"], "completed", 1)


async def test_a_request_to_a_process_that_stops_gets_its_answer_from_the_process_that_runs_the_turn(
    scripted: dict[str, str], provider: Provider, tmp_path: Path
) -> None:
    soon = asyncio.Event()

    async def ends_soon(_: dict[str, Any]) -> Response:
        await soon.wait()
        return says("Just in time.")

    (tmp_path / "none.json").write_text('{"mcpServers": {}}')
    plain = {**scripted, "MCP_CONFIG": str(tmp_path / "none.json"), "SHUTDOWN_GRACE_S": "100"}
    api = Process(plain, command=("serve", "--port", "0", "--no-worker"))
    worker = Process(plain, command=("worker",), ready="waiting_for_turns")
    provider.will(ends_soon)
    try:
        url, _ = await asyncio.gather(asyncio.to_thread(api.start), asyncio.to_thread(worker.start))
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            client = Client(http)
            asked = asyncio.create_task(client.chat(await client.new_session(), "hello"))
            await provider.wait_for_requests(1)
            stopped = asyncio.create_task(asyncio.to_thread(api.stop))
            await refused(client)
            soon.set()
            assert (await asked)["message"]["content"] == "Just in time."
            assert await stopped == 0
    finally:
        api.kill()
        worker.kill()


@pytest.mark.sweep
async def test_a_request_that_the_end_of_its_process_cuts_off_gets_a_problem_that_says_to_repeat_it(
    scripted: dict[str, str],
) -> None:
    """Its body never comes whole, so nothing but the end of the process ends it."""
    page = "https://chat.example"
    async with serving({**scripted, "SHUTDOWN_GRACE_S": "1", "CORS_ORIGINS": page}) as (process, client):
        url = client.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        request = (
            b"POST /sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n"
        )
        writer.write(request + b"x-request-id: cut-off\r\norigin: %b\r\n" % page.encode())
        writer.write(b"expect: 100-continue\r\n\r\n{")
        async with asyncio.timeout(PATIENCE_S):
            assert b"100" in await reader.readline()  # the application waits for the body
            assert await asyncio.to_thread(process.stop) == 0
            answer = (await reader.read()).decode()
        writer.close()
    head, _, body = answer.strip().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 503")
    headers = {"x-request-id: cut-off", "retry-after: 2", "cache-control: no-store"}
    assert headers | {f"access-control-allow-origin: {page}"} <= set(head.split("\r\n"))
    assert json.loads(body)["code"] == "turn_interrupted"


async def test_sigterm_closes_open_streams_at_once_and_the_turn_behind_them_still_ends(
    scripted: dict[str, str], provider: Provider
) -> None:
    go_on = asyncio.Event()
    provider.will(streams("Just ", go_on, "in time."))
    async with serving({**scripted, "SHUTDOWN_GRACE_S": "100"}) as (process, client):
        session = await client.new_session()
        async with chatting(client, session, "hello") as chat:
            [started, *_] = await chat.until("TEXT_MESSAGE_CONTENT")
            events = f"/sessions/{session}/turns/{started.event['runId']}/events"
            look = {"threadId": session, "runId": "a run", "messages": []}
            async with (
                listening(client, events) as follower,
                listening(client, "/agui", method="POST", json=look) as run,
            ):
                await run.until("TEXT_MESSAGE_CONTENT")
                stopped = asyncio.create_task(asyncio.to_thread(process.stop))
                async with asyncio.timeout(PATIENCE_S):
                    for stream in (chat, follower):
                        assert "RUN_FINISHED" not in kinds(await stream.rest())
                    assert (await run.rest())[-1].event["code"] == "turn_interrupted"  # else it is taken for a success
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await stopped == 0
    assert await turns_of(scripted, session) == [("completed", None)]


async def test_a_worker_of_its_own_runs_what_a_service_without_one_accepts(
    scripted: dict[str, str], provider: Provider
) -> None:
    provider.will(says("from the worker"))
    worker = Process(scripted, command=("worker", "--concurrency", "2"), ready="waiting_for_turns")
    accepting = Process(scripted, command=("serve", "--port", "0", "--no-worker"))
    try:
        url, _ = await asyncio.gather(asyncio.to_thread(accepting.start), asyncio.to_thread(worker.start))
        async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
            client = Client(http)
            answer = await client.chat(await client.new_session(), "hello")
    finally:
        accepting.kill()
        stopped = await asyncio.to_thread(worker.stop)
    assert answer["message"]["content"] == "from the worker"
    assert stopped == 0
    assert any('"turn_finished"' in line for line in worker.log)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def refused(client: Client) -> None:
    """Returns once the service takes no more connections."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection(client.http.base_url.host, client.http.base_url.port)
            except OSError:
                return
            writer.close()
