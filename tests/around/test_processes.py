"""`segue serve --processes`: one address, several processes, and a supervisor that may be killed like any other."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.commands import Started, segue
from tests.support.fork_client import Streams
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, says
from tests.support.service import Client, Process
from tests.support.stores import looking_into, urls_of

SUPERVISING = """
import os, select
from functools import partial
from segue.around.process_supervisor import ProcessSupervisor
from segue.log import configure_logging

configure_logging(level="INFO", log_format="json")
broken_first = iter(["broken", "mended", "broken"])

def run(settings, place):
    if settings != "broken":
        place.ready()
    os.write(1, f'"runs {settings}"\\n'.encode())
    ended, _, _ = select.select([place.supervisor_gone, *([0] if settings == "broken" else [])], [], [])
    return len(os.read(ended[0], 1))

def renewed():
    settings = next(broken_first)
    os.write(1, f'"read {settings}"\\n'.encode())
    return partial(run, settings)

raise SystemExit(ProcessSupervisor(2, partial(run, "good"), renewed, stop_s=lambda: 60).run())
"""


STOPPING = """
import os, select, signal
from segue.around import process_supervisor
from segue.around.terminal import settings_with

def run_with(settings):
    def run(place):
        is_renewed = settings.shutdown_grace_s == 60
        if is_renewed:
            signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'"is to end"\\n'))
        place.ready()
        ended, _, _ = select.select([place.supervisor_gone, *([0] if is_renewed else [])], [], [])
        os.write(1, b'"has ended"\\n')
        return len(os.read(ended[0], 1)) - 1
    return run

process_supervisor.KILL_AFTER_S = 0
os.environ["SHUTDOWN_GRACE_S"] = "60"
process_supervisor._run(2, run_with, settings_with(shutdown_grace_s=1e-9))
"""


RAISING = """
import os, select, sys, types
from segue.around import process_supervisor
from segue.around.terminal import settings_with

class Rules(types.ModuleType):
    def __getattr__(self, name):
        raise SystemExit("no licence") if "licence" in os.environ["BEFORE_CALL"] else RuntimeError("a fault")

def run_with(settings):
    def run(place):
        place.ready()
        return len(select.select([place.supervisor_gone], [], [])) - 3
    return run

settings = settings_with()
sys.modules["rules"] = Rules("rules")
os.environ["BEFORE_CALL"] = os.environ["RULE"]
process_supervisor._run(2, run_with, settings)
"""


RUNNING_DOWN = """
import asyncio, os
from contextlib import asynccontextmanager
from segue.around.service_process import _serve
from segue.config import Settings
from segue.main import create_app

settings = Settings(port=0)
app = create_app(settings)
lifespan = app.router.lifespan_context

async def stay():
    os.write(1, b'"runs"\\n')
    try:
        await asyncio.Event().wait()
    finally:
        os.write(1, b'"runs down"\\n')
        await asyncio.to_thread(os.read, 0, 1)
        os.write(1, b'"has run down"\\n')

@asynccontextmanager
async def left_behind(app):
    async with lifespan(app) as state:
        left = asyncio.create_task(stay())
        yield state

app.router.lifespan_context = left_behind
raise SystemExit(_serve(app, settings, None, None))
"""


STARTING = """
import os
from segue.around import service_process
from segue.config import Settings
from segue.language.lexicon import _LISTS
from segue.main import create_app

settings = Settings(port=0)
started = service_process._started

def tell(when):
    read = sum("shipped" in vars(each) for each in _LISTS.values())
    os.write(1, f'"{when}, lists: {"all" if read == len(_LISTS) else read}"\\n'.encode())

async def telling(*given):
    await started(*given)
    tell("has started")

service_process._started = telling
app = create_app(settings)
tell("was imported")
service_process._serve(app, settings, None, None)
"""


def scripted(
    script: str, stdin: int, _: tuple[str, ...], cwd: Path, environment: Mapping[str, str], streams: Streams
) -> Started:
    """Starts a Python that runs this, for what no command does at a given moment."""
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, cwd=cwd, env=environment, stdin=stdin, stdout=streams[1], stderr=streams[2])


def environment_of(settings: Settings) -> dict[str, str]:
    return {
        **urls_of(settings),
        "OPENAI_BASE_URL": str(settings.openai_base_url),
        "LLM_MODEL": "scripted",
        "WEB_SEARCH_PROVIDER": "none",
        "MCP_CONFIG": str(settings.mcp_config),
        "MIGRATE_ON_START": "false",
        "TURN_LEASE_S": "3",
    }


@asynccontextmanager
async def two_serving(settings: Settings, **environment: str) -> AsyncIterator[tuple[Process, Client]]:
    """Leaving it is kill -9 of the supervisor; the others end by themselves."""
    given = {**environment_of(settings), **environment}
    served = Process(given, command=("serve", "--port", "0", "--processes", "2"), ready="process_ready")
    try:
        await asyncio.to_thread(served.start)
        await asyncio.to_thread(served.wait_for, "process_ready", times=2)
        [url] = [entry["url"] for entry in said(served, "serving")]
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            yield served, Client(http)
    finally:
        served.kill()
        for pid in pids(served):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def said(process: Process, event: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in process.log if f'"{event}"' in line]


def pids(process: Process) -> list[int]:
    return [entry["pid"] for entry in said(process, "process_ready")]


async def test_a_process_that_is_killed_is_replaced_and_its_turn_goes_on(
    settings: Settings, provider: Provider
) -> None:
    asked, held = asyncio.Event(), asyncio.Event()

    async def holds(_: dict[str, Any]) -> Response:
        asked.set()
        await held.wait()
        return says("Too late.")

    provider.will(holds, says("Back again."))
    async with two_serving(settings) as (served, client):
        session = await client.new_session()
        asking = asyncio.create_task(client.send(session, "Hello"))
        await asked.wait()
        async with looking_into(settings) as stores:
            worker = await stores.database.fetchval("SELECT worker FROM turns")
        killed = int(worker.rpartition(":")[2])
        assert killed in pids(served)
        os.kill(killed, signal.SIGKILL)
        await asyncio.gather(asking, return_exceptions=True)  # it may have been a request of that process
        await asyncio.to_thread(served.wait_for, "process_ready", times=3)
        [turn] = await client.ended(session)
        assert (await client.messages(session))[-1]["content"] == "Back again."
    held.set()
    assert turn["status"] == "completed"
    [ended] = said(served, "process_ended")
    assert (ended["pid"], ended["code"]) == (killed, -signal.SIGKILL)


@pytest.mark.sweep
async def test_a_hangup_renews_one_process_after_the_other_and_loses_no_request(settings: Settings) -> None:
    async with two_serving(settings) as (served, client):
        renewed = asyncio.Event()
        farewells = 0  # a client that is not told may ask just when its connection is closed

        async def ask_on() -> int:
            nonlocal farewells
            asked = 0
            while not renewed.is_set():
                answer = await client.http.get("/health/live")
                assert answer.status_code == 200
                farewells += answer.headers.get("connection") == "close"
                asked += 1
            return asked

        clients = [asyncio.create_task(ask_on()) for _ in range(8)]
        first = pids(served)
        os.kill(served.pid, signal.SIGHUP)
        await asyncio.to_thread(served.wait_for, "process_ready", times=4)
        await asyncio.to_thread(served.wait_for, "process_left", times=2)
        renewed.set()
        assert min(await asyncio.gather(*clients)) > 0
        assert farewells
        metrics = (await client.http.get("/metrics")).text
        assert set(re.findall(r'segue_turn_places{process="(\d+)"}', metrics)) == {"0", "1"}
        assert {entry["pid"] for entry in said(served, "process_left")} == set(first)
        assert served.stop() == 0  # its output has ended too: no process holds it


@pytest.mark.sweep
async def test_a_hangup_with_settings_that_cannot_be_leaves_all_as_it_is(settings: Settings, tmp_path: Path) -> None:
    agents = tmp_path / "agents.toml"
    agents.write_text("")
    async with two_serving(settings, AGENTS_CONFIG=str(agents)) as (served, client):
        agents.write_text("[agents.")
        os.kill(served.pid, signal.SIGHUP)
        await asyncio.to_thread(served.wait_for, "renewal_refused")
        agents.write_text("")
        os.kill(served.pid, signal.SIGHUP)
        await asyncio.to_thread(served.wait_for, "process_left", times=2)
        assert (await client.http.get("/health/live")).status_code == 200
    assert len(pids(served)) == 4


@pytest.mark.sweep
async def test_a_second_hangup_while_the_first_renewal_fails_renews_to_what_it_has_read() -> None:
    reads, writes = os.pipe()  # a process with the broken settings ends once it has read from it

    supervisor = Process({}, ready="process_ready", start=partial(scripted, SUPERVISING, reads))

    async def logged(event: str, times: int = 1) -> None:
        await asyncio.to_thread(supervisor.wait_for, event, times=times)

    def hang_up() -> None:
        os.kill(supervisor.pid, signal.SIGHUP)

    try:
        await asyncio.to_thread(supervisor.start)
        await logged("runs good", times=2)
        hang_up()
        await logged("runs broken")
        hang_up()
        await logged("read mended")
        os.write(writes, b"e")
        await logged("runs mended", times=2)
        await logged("process_left", times=2)
        hang_up()
        await logged("runs broken", times=2)
        os.write(writes, b"e")
        await logged("renewal_failed")
        os.kill(pids(supervisor)[-1], signal.SIGKILL)
        await logged("runs mended", times=3)
        assert supervisor.stop() == 0
    finally:
        supervisor.kill()
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("rule", ["rules:fault", "rules:licence"])
async def test_a_hangup_whose_rule_over_calls_raises_leaves_all_as_it_is(rule: str) -> None:
    supervisor = Process({"RULE": rule}, ready="process_ready", start=partial(scripted, RAISING, subprocess.DEVNULL))
    try:
        await asyncio.to_thread(supervisor.start)
        await asyncio.to_thread(supervisor.wait_for, "process_ready", times=2)
        os.kill(supervisor.pid, signal.SIGHUP)
        await asyncio.to_thread(supervisor.wait_for, "renewal_refused")
        assert len(said(supervisor, "renewal_raised")) == 1
        assert supervisor.stop() == 0
    finally:
        supervisor.kill()


@pytest.mark.sweep
async def test_processes_have_the_grace_that_a_hangup_has_read() -> None:
    reads, writes = os.pipe()  # a process ends once it has read from it
    supervisor = Process({"LOG_FORMAT": "json"}, ready="process_ready", start=partial(scripted, STOPPING, reads))
    try:
        await asyncio.to_thread(supervisor.start)
        await asyncio.to_thread(supervisor.wait_for, "process_ready", times=2)
        os.kill(supervisor.pid, signal.SIGHUP)
        await asyncio.to_thread(supervisor.wait_for, "process_left", times=2)
        os.kill(supervisor.pid, signal.SIGTERM)
        await asyncio.to_thread(supervisor.wait_for, "is to end", times=2)
        os.write(writes, b"ee")
        assert await asyncio.to_thread(supervisor.ended) == 0
        assert sum("has ended" in line for line in supervisor.log) == 2
    finally:
        supervisor.kill()
        os.close(reads)
        os.close(writes)


async def test_without_their_supervisor_the_processes_end_and_leave_the_port(settings: Settings) -> None:
    async with two_serving(settings) as (served, client):
        served.kill()  # returns once no process holds its output
        with pytest.raises(httpx2.ConnectError):
            await client.http.get("/health/live")


@pytest.mark.sweep
async def test_a_process_that_is_told_to_end_while_its_loop_runs_down_is_not_cut_off(settings: Settings) -> None:
    reads, writes = os.pipe()  # the loop has run down once it has read from it
    served = Process(environment_of(settings), ready='"runs"', start=partial(scripted, RUNNING_DOWN, reads))
    try:
        await asyncio.to_thread(served.start)
        os.kill(served.pid, signal.SIGTERM)
        await asyncio.to_thread(served.wait_for, "runs down")
        os.kill(served.pid, signal.SIGTERM)
        os.write(writes, b"e")
        assert await asyncio.to_thread(served.ended) == 0
    finally:
        served.kill()
        os.close(reads)
        os.close(writes)
    assert served.log[-1] == '"has run down"\n'


@pytest.mark.sweep
async def test_the_word_lists_are_read_once_a_process_starts_its_service(settings: Settings) -> None:
    """They take an eighth of a start, so no import reads one, and the first turn needs them."""
    served = Process(environment_of(settings), ready='"has started', start=partial(scripted, STARTING, 0))
    try:
        await asyncio.to_thread(served.start)
        said = [line for line in served.log if "lists:" in line]
    finally:
        served.kill()
    assert said == ['"was imported, lists: 0"\n', '"has started, lists: all"\n']


def test_processes_that_cannot_start_end_all() -> None:
    nowhere = "postgresql+asyncpg://nobody@127.0.0.1:1/none"
    code, printed = segue(
        "serve", "--port", "0", "--processes", "2", DATABASE_URL=nowhere, REDIS_URL="redis://127.0.0.1:1"
    )
    assert code == 3
    assert "process_ready" not in printed


@pytest.mark.parametrize("count", ["0", "many", "1000"])
def test_a_number_of_processes_that_cannot_be_is_refused(count: str) -> None:
    code, printed = segue("serve", "--processes", count)
    assert (code, printed.count("\n")) == (2, 1)
    assert "--processes" in printed


@pytest.mark.sweep
async def test_workers_share_a_port_for_their_metrics_and_keep_it_when_a_hangup_renews_them(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**environment_of(settings), "WORKER_METRICS_PORT": port}
    workers = Process(environment, command=("worker", "--processes", "2"), ready="process_ready")
    try:
        await asyncio.to_thread(workers.start)
        await asyncio.to_thread(workers.wait_for, "process_ready", times=2)
        await asyncio.to_thread(workers.wait_for, "metrics_served")
        os.kill(workers.pid, signal.SIGHUP)
        await asyncio.to_thread(workers.wait_for, "process_left", times=2)
        [url] = {entry["url"] for entry in said(workers, "metrics_served")}
        metrics = (await asyncio.to_thread(httpx2.get, url)).text
        assert set(re.findall(r'segue_turn_places{process="(\d+)"}', metrics)) == {"0", "1"}
    finally:
        assert workers.stop() == 0
