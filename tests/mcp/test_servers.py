import asyncio
import base64
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents, ToolAnnotations
from mcp_types import Tool as McpTool
from structlog.testing import capture_logs

from segue.domain.errors import AppError
from segue.domain.ids import TOOL_NAME
from segue.domain.tool import DependencyGroup, ToolFailed, ToolRetry
from segue.mcp.mcp_config import McpConfig, McpServerConfig, read_mcp_config
from segue.mcp.mcp_servers import McpServers
from segue.mcp.status import LeftOut
from segue.mcp.stdio import Stderr
from segue.mcp.tool_mapping import tools_of, value_of
from segue.tools.run import run_tool
from segue.tools.tool_settings import ToolSettings
from tests.support import logs
from tests.support.commands import python
from tests.support.loop_lag import loop_kept_free
from tests.support.mcp_peer import SERVER, SMALL, STDIO, WHO, call, tool, until
from tests.support.patience import PATIENCE_S
from tests.support.server import serving

ODD = {"command": "python", "args": [str(Path(__file__).with_name("mcp_odd_server.py"))]}
MUTE = {"command": "python", "args": ["-c", "import sys; sys.stdin.read()"]}
EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
ENDED = "the process ended with exit code 3; its last lines on stderr say why"
KILLED = "the process was ended by SIGKILL; if no person did that, memory may have run out"

Configure = Callable[..., McpConfig]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def write_and_read(**servers: dict[str, Any]) -> McpConfig:
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        return read_mcp_config(path)

    return write_and_read


@pytest.fixture(scope="module")
async def ours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpServers]:
    path = tmp_path_factory.mktemp("ours") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"ours": {**STDIO, "confirm": ["find"], "disabled": ["secret"]}}}))
    async with McpServers(read_mcp_config(path), timeout_s=5, start_timeout_s=PATIENCE_S) as servers:
        yield servers


async def until_answered(servers: McpServers, name: str, **arguments: object) -> object:
    async def answer() -> object:
        with suppress(ToolFailed):
            return await call(servers, name, **arguments)
        return None

    return await logs.until(answer)


def children() -> set[int]:
    """Process ids of this process's children, but for those that read large answers."""
    found = psutil.Process().children()
    return {child.pid for child in found if "anyio.to_process" not in " ".join(child.cmdline())}


@asynccontextmanager
async def http_server(port: int = 0) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    child = await asyncio.create_subprocess_exec(*python(), SERVER, "http", str(port), stdout=asyncio.subprocess.PIPE)
    assert child.stdout
    try:
        yield int(await asyncio.wait_for(child.stdout.readline(), PATIENCE_S)), child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_a_call_returns_what_the_tool_returned(ours: McpServers) -> None:
    assert await call(ours, "add", a=2, b=3) == 5
    assert await call(ours, "find", query="fattura") == {"query": "fattura", "emails": [{"id": "eml-0a1b2c"}]}


async def test_a_text_that_is_json_arrives_parsed(ours: McpServers) -> None:
    assert await call(ours, "json_text") == {"emails": [{"id": "eml-0a1b2c"}]}


async def test_an_image_arrives_whole_beside_the_text(ours: McpServers) -> None:
    picture = base64.b64encode(b"x" * 1000).decode()
    assert await call(ours, "blocks") == ["a cat", {"type": "image", "mime_type": "image/png", "data": picture}]


async def test_a_result_marked_as_error_fails_with_its_text(ours: McpServers) -> None:
    with pytest.raises(ToolFailed, match="the mailbox is locked"):
        await call(ours, "refuse")


def test_an_error_that_says_why_in_its_structured_value_alone_fails_with_that() -> None:
    with pytest.raises(ToolFailed, match=r'\{"code":"no_such_mail"\}'):
        value_of(CallToolResult(content=[], structured_content={"code": "no_such_mail"}, is_error=True), wrapped=False)
    why = EmbeddedResource(resource=TextResourceContents(uri="a:b", text="no such mail"))
    with pytest.raises(ToolFailed, match="no such mail"):
        value_of(CallToolResult(content=[why], is_error=True), wrapped=False)
    with pytest.raises(ToolFailed, match="without a reason"):
        value_of(CallToolResult(content=[], is_error=True), wrapped=False)


def test_what_a_server_says_beside_its_structured_value_is_kept_and_what_it_repeats_of_it_is_not() -> None:
    def given(value: dict[str, Any], *texts: str, link: str = "") -> object:
        blocks: list[Any] = [TextContent(text=text) for text in texts]
        blocks += [ResourceLink(uri=link, name="b")] if link else []
        return value_of(CallToolResult(content=blocks, structured_content=value), wrapped="result" in value)

    about = {"path": "a.txt", "lines": 2}
    assert given(about, "one\ntwo") == {**about, "text": "one\ntwo"}
    linked = {"type": "resource_link", "uri": "file:///b", "name": "b", "mime_type": None, "size_bytes": None}
    assert given(about, "{}", link="file:///b") == {**about, "files": [linked]}
    assert given({"text": "a"}, "b") == [{"text": "a"}, "b"]
    for value, texts in (
        (about, json.dumps(about, indent=2)),
        ({"n": "perché\n"}, "perché"),
        ({"at": "file:///b"}, ""),
    ):
        assert given(value, texts, link="file:///b" if "at" in value else "") == value
    assert given({"result": ["a", 5]}, "a", "5") == ["a", 5]


async def test_annotations_and_config_become_the_spec(ours: McpServers) -> None:
    add, delete_all, find = (tool(ours, name).spec for name in ("add", "delete_all", "find"))
    assert (add.effect, add.source, add.original_name, add.timeout_s) == ("read_only", "mcp:ours", "add", 5)
    assert (delete_all.effect, delete_all.idempotent, delete_all.confirm) == ("destructive", True, None)
    assert (find.effect, find.idempotent, find.confirm) == ("write", False, True)
    assert set(find.input_schema["properties"]) == {"query"}


async def test_a_disabled_tool_is_not_offered(ours: McpServers) -> None:
    assert "mcp_secret" not in {tool.spec.name for tool in ours.tools()}


async def test_calls_of_one_server_run_side_by_side(ours: McpServers) -> None:
    hanging = asyncio.create_task(asyncio.wait_for(call(ours, "hang", note="side"), PATIENCE_S))
    assert await asyncio.gather(*(call(ours, "add", a=n, b=n) for n in range(20))) == [2 * n for n in range(20)]
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_a_cancelled_caller_cancels_the_remote_call(ours: McpServers) -> None:
    hanging = asyncio.ensure_future(call(ours, "hang", note="left"))
    await call(ours, "add", a=1, b=1)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert "left" in str(await call(ours, "wait_until_cancelled", note="left"))


async def test_a_timeout_says_how_long_and_the_session_survives(configure: Configure) -> None:
    async with McpServers(configure(ours={**STDIO, "timeout_s": 1}), start_timeout_s=PATIENCE_S) as servers:
        with pytest.raises(ToolFailed, match="hang did not answer within 1 s"):
            await call(servers, "hang", note="slow")
        assert await call(servers, "wait_until_cancelled", note="slow") == ["slow"]
        assert servers.states() == {"ours": "ready"}


@pytest.mark.sweep
async def test_a_large_answer_is_read_in_time_that_grows_with_its_size(ours: McpServers) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert len(str(await call(ours, "big", size=10_000_000))) == 10_000_000


# Three million small objects: to read them where other work goes on held that up for a second and a half.
@pytest.mark.sweep
async def test_an_answer_of_megabytes_holds_nothing_up(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.tools.run.READ_S", PATIENCE_S)
    settings = ToolSettings(tool_timeout_s=PATIENCE_S, tool_result_max_bytes=4_000_000)
    async with McpServers(configure(odd=ODD), timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as servers:
        with loop_kept_free():
            given = await run_tool(tool(servers, "large"), {"size": 3_000_000, "piece": "[]"}, WHO, settings=settings)
    assert (given.status, given.payload.kind, given.payload.size_bytes) == ("succeeded", "json", 3_000_000 + 12)
    assert given.summary == "Large: [] — 1000000 result"


@pytest.mark.sweep
async def test_a_child_that_floods_stderr_is_not_blocked(ours: McpServers) -> None:
    with capture_logs():
        assert await call(ours, "chatter") == "said"


async def test_a_server_that_ends_at_a_question_it_does_not_know_is_asked_as_before(configure: Configure) -> None:
    strict = {**SMALL, "args": [*SMALL["args"], "--strict"]}
    async with McpServers(configure(strict=strict, dead={"command": "false"}), start_timeout_s=PATIENCE_S) as servers:
        assert (servers.states()["strict"], servers.statuses()[0].last_error) == ("ready", None)
        assert servers.states()["dead"].startswith("failed: the process ended with exit code 1")


@pytest.mark.sweep
async def test_a_server_that_says_something_else_is_started_once_an_attempt(
    configure: Configure, tmp_path: Path
) -> None:
    """What is asked as before hears `initialize` first, and at the next attempt another question."""
    heard = tmp_path / "heard"
    code = f"import sys\nopen({str(heard)!r}, 'a').write(sys.stdin.readline())\nwhile True: print('Started!')"
    noisy = {"command": "python", "args": ["-c", code]}
    async with McpServers(configure(noisy=noisy), start_timeout_s=0.1):
        await until(lambda: heard.exists() and len(heard.read_text().splitlines()) >= 2)
    assert all('"server/discover"' in line for line in heard.read_text().splitlines())


@pytest.mark.sweep
async def test_a_server_that_ends_late_is_told_for_how_it_ended_and_not_waited_for_again(configure: Configure) -> None:
    late = {"command": "python", "args": ["-c", "import sys, time; time.sleep(5); sys.exit(7)"]}
    async with McpServers(configure(late=late), start_timeout_s=PATIENCE_S, handshake_timeout_s=8) as servers:
        assert servers.states()["late"].startswith("failed: the process ended with exit code 7")


async def test_a_server_may_end_each_message_with_an_empty_line(configure: Configure) -> None:
    async with McpServers(configure(small=SMALL), start_timeout_s=PATIENCE_S) as servers:
        assert await call(servers, "pid", notes=150) == await call(servers, "pid")


async def test_a_server_that_dies_in_a_call_fails_it_and_comes_back_while_others_work(configure: Configure) -> None:
    async with McpServers(
        configure(ours=ODD, other={**ODD, "prefix": "mcp_other_"}), start_timeout_s=PATIENCE_S
    ) as servers:
        with pytest.raises(ToolFailed, match="was lost before it answered"):
            await call(servers, "die")
        assert await call(servers, "other_add", a=1, b=2) == "3"
        await until(lambda: servers.states()["ours"] != "failed: the connection ended")
        assert servers.states()["ours"] == f"failed: {ENDED}"
        assert servers.away() == {}
        assert await call(servers, "add", a=1, b=2) == "3"


@pytest.mark.sweep  # one that dies in a call is started again in CI
async def test_a_stdio_server_killed_while_idle_is_started_again(configure: Configure) -> None:
    before = children()
    async with McpServers(configure(ours=ODD), start_timeout_s=PATIENCE_S) as servers:
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        await until(lambda: servers.states()["ours"] == "failed: " + KILLED)
        assert "mcp_add" in {tool.spec.name for tool in servers.tools()}
        await until(lambda: servers.states()["ours"] == "ready")
        assert await call(servers, "add", a=1, b=2) == "3"
    assert children() == before


@pytest.mark.sweep
async def test_a_server_that_hangs_is_replaced(configure: Configure) -> None:
    before = children()
    async with McpServers(configure(ours={**ODD, "timeout_s": 0.5}), start_timeout_s=PATIENCE_S) as servers:
        (pid,) = children() - before
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ToolFailed, match="did not answer"):
            await call(servers, "add", a=1, b=2)
        await until(lambda: servers.states()["ours"] == "failed: it stopped answering; look into its own log")
        await until(lambda: servers.states()["ours"] == "ready")
    assert children() == before


async def test_a_reconnection_lets_calls_end_and_new_ones_wait_and_two_at_once_are_one(configure: Configure) -> None:
    before = children()
    with capture_logs() as logged:
        async with McpServers(configure(ours=STDIO), timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as servers:
            (old,) = children() - before
            hanging = asyncio.create_task(call(servers, "hang", note="kept"))
            await until(lambda: bool(servers.statuses()[0].stderr))
            [(_, _, pid)] = [line.split() for line in servers.statuses()[0].stderr]
            assert all([servers.reconnect("ours"), servers.reconnect("ours")])
            late = asyncio.create_task(call(servers, "add", a=1, b=2))
            assert not servers.reconnect("nobody")
            os.kill(int(pid), signal.SIGUSR1)
            assert (await hanging, await late) == ("kept", 3)
            (new,) = children() - before
            assert new != old
            [status] = servers.statuses()
            assert (status.state, status.last_error, "mcp_add" in status.tools) == ("ready", None, True)
    assert [log["event"] for log in logged].count("mcp_server_ready") == 2


async def test_a_call_that_waits_for_its_server_does_not_run_what_has_become_of_the_tool(configure: Configure) -> None:
    ran: list[str] = []
    server = MCPServer("ours", log_level="CRITICAL")
    reads, writes = ToolAnnotations(read_only_hint=True), ToolAnnotations(destructive_hint=False)

    def offer(name: str, description: str, hints: ToolAnnotations) -> None:
        server.add_tool(lambda: ran.append(name), name=name, description=description, annotations=hints)

    offer("write", "Writes it down.", writes)
    offer("look", "Looks at it.", reads)
    async with serving(server.streamable_http_app()) as url:
        config = configure(ours={"url": f"{url}/mcp"})
        async with McpServers(config, timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as servers:
            write, look = (tool(servers, name) for name in ("write", "look"))
            for name, description, hints in (("write", "Sends it to everybody.", writes), ("look", "Peeks.", reads)):
                server.remove_tool(name)
                offer(name, description, hints)
            assert servers.reconnect("ours")
            with pytest.raises(ToolRetry, match="has changed mcp_write"):
                await write.run({}, WHO)
            await look.run({}, WHO)
            await tool(servers, "write").run({}, WHO)
    assert ran == ["look", "write"]


@pytest.mark.sweep
async def test_a_server_that_waits_to_be_tried_again_is_tried_at_once_if_asked_for(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.mcp.supervisor._FIRST_PAUSE_S", 3600)
    async with McpServers(configure(ours=ODD), start_timeout_s=PATIENCE_S) as servers:
        with pytest.raises(ToolFailed, match="was lost"):
            await call(servers, "die")
        await until(lambda: servers.states()["ours"] == f"failed: {ENDED}")
        servers.reconnect("ours")
        assert await call(servers, "add", a=1, b=2) == "3"
        [status] = servers.statuses()
        assert (status.last_error, status.state) == (ENDED, "ready")


def test_of_what_a_server_says_on_stderr_the_last_lines_are_kept_without_its_secrets() -> None:
    stderr = Stderr({"canary-4711", "-----KEY-----\ncanary-4712\n"})
    stderr.add(b"".join(b"line %d\n" % number for number in range(10_000)))
    assert stderr.lines() == [f"line {number}" for number in range(9_950, 10_000)]
    for chunk in (b"it is cana", b"ry-4711\ncanary-4712\n", b"\x1b[31mred\xff\n", b"x" * 20_000, b"canary-4711\nhalf"):
        stderr.add(chunk)
    secret, part, red, long = stderr.lines()[-4:]
    assert (secret, part, red) == ("it is [redacted]", "[redacted]", "‹U+001B›[31mred�")
    assert (long, "canary" in str(stderr.lines())) == ("x" * 500, False)
    stderr.child_starts()
    assert (stderr.lines()[-1], stderr.of_child(10)) == ("half", [])
    stderr.add(b"new\n")
    assert stderr.of_child(10) == ["new"]


async def test_an_http_server_that_dies_and_returns_is_found_again(configure: Configure) -> None:
    async with http_server() as (port, first):
        config = configure(ours={"url": f"http://127.0.0.1:{port}/mcp"})
        async with McpServers(config, start_timeout_s=PATIENCE_S) as servers:
            assert await call(servers, "add", a=1, b=2) == 3
            hanging = asyncio.ensure_future(call(servers, "hang", note="http"))
            await call(servers, "add", a=1, b=2)
            first.kill()
            with pytest.raises(ToolFailed, match="was lost before it answered"):
                await asyncio.wait_for(hanging, PATIENCE_S)
            await until(lambda: servers.states()["ours"].startswith("failed: nothing listens"))
            with pytest.raises(ToolFailed, match="is not connected"):
                await call(servers, "add", a=1, b=2)
            await first.wait()
            async with http_server(port):
                assert await until_answered(servers, "add", a=1, b=2) == 3


async def test_a_cancelled_caller_cancels_the_remote_call_over_http(configure: Configure) -> None:
    async with http_server() as (port, _):
        config = configure(ours={"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "k"}})
        async with McpServers(config, start_timeout_s=PATIENCE_S) as servers:
            hanging = asyncio.ensure_future(call(servers, "hang", note="web"))
            await call(servers, "add", a=1, b=1)
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            assert await call(servers, "wait_until_cancelled", note="web") == ["web"]


async def test_an_http_answer_that_is_not_mcp_names_its_status(configure: Configure) -> None:
    async with (
        http_server() as (port, _),
        McpServers(configure(ours={"url": f"http://127.0.0.1:{port}/no"}), start_timeout_s=PATIENCE_S) as servers,
    ):
        assert servers.states() == {
            "ours": "failed: it answered HTTP 404; correct its url in mcp.json: the path of many ends in /mcp"
        }


@pytest.mark.sweep
async def test_servers_that_never_come_up_do_not_hold_up_the_others(configure: Configure) -> None:
    before = children()
    config = configure(
        mute=MUTE,
        deaf={"command": "python", "args": ["-c", "import time; time.sleep(3600)"]},
        noisy={"command": "python", "args": ["-c", "while True: print('Server started!')"]},
        dead={"command": "python", "args": ["-c", "import sys; sys.exit(7)"]},
        absent={"command": "no-such-program"},
        nowhere={"url": "http://127.0.0.1:9/mcp"},
        ours=ODD,
    )
    expected = {
        "mute": "connecting",
        "deaf": "connecting",
        "noisy": "failed: it prints something other than MCP on its stdout; let it write its log to stderr",
        "dead": "failed: the process ended with exit code 7; its last lines on stderr say why",
        "absent": f"failed: there is no program no-such-program in PATH ({os.environ['PATH'][:300]}); install it, or "
        "write its whole path",
        "nowhere": "failed: nothing listens at its address (connection refused); start it, or correct its url in "
        "mcp.json",
        "ours": "ready",
    }
    async with McpServers(config, start_timeout_s=2) as servers:
        await until(lambda: servers.states() == expected)
        assert await call(servers, "add", a=1, b=2) == "3"
    assert children() == before


@pytest.mark.sweep
async def test_a_server_that_never_shakes_hands_is_given_up_in_the_end(configure: Configure) -> None:
    async with McpServers(configure(mute=MUTE), start_timeout_s=3, handshake_timeout_s=0.5) as servers:
        assert servers.states() == {
            "mute": "failed: it did not shake hands in time: nothing came; start its command by hand, or correct its "
            "url in mcp.json, to see what it says"
        }


@pytest.mark.sweep
async def test_leaving_ends_a_child_that_ignores_every_polite_request(configure: Configure) -> None:
    before = children()
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)"
    async with McpServers(configure(stubborn={"command": "python", "args": ["-c", stubborn]}), start_timeout_s=0.5):
        assert len(children() - before) == 1
    assert children() == before


async def test_a_new_tool_appears_when_the_server_says_so(configure: Configure) -> None:
    async with McpServers(configure(ours=STDIO), start_timeout_s=PATIENCE_S) as servers:
        await call(servers, "learn")
        await until(lambda: "mcp_learned" in {tool.spec.name for tool in servers.tools()})
        assert await call(servers, "learned", query="x") == {"query": "x", "emails": [{"id": "eml-0a1b2c"}]}


@pytest.mark.sweep
async def test_two_servers_claiming_one_name_is_an_error_that_names_both(configure: Configure) -> None:
    before = children()
    with pytest.raises(AppError) as caught:
        async with McpServers(configure(work=ODD, home=ODD), start_timeout_s=PATIENCE_S):
            pass
    assert caught.value.code == "mcp_name_collision"
    assert all(word in caught.value.detail for word in ("work", "home", "mcp_", "prefix"))
    assert children() == before


@pytest.mark.sweep
async def test_a_pattern_that_results_are_declared_by_holds_nothing_up(configure: Configure) -> None:
    async with McpServers(configure(odd=ODD), start_timeout_s=PATIENCE_S) as servers:
        with loop_kept_free():
            assert await call(servers, "match") == {"text": "a" * 27 + "!"}


@pytest.mark.parametrize("size", [100, 400_000], ids=["small", "large"])
async def test_a_text_that_was_cut_within_a_character_is_read(configure: Configure, size: int) -> None:
    async with McpServers(configure(odd=ODD), start_timeout_s=PATIENCE_S) as servers:
        found: Any = await call(servers, "large", size=size, piece=json.dumps("\U0001f600 \\ud83d \ud83d"))
    assert set(found["result"]) == {"\U0001f600 \\ud83d \ufffd"}


async def test_odd_tools_are_skipped_and_the_rest_is_bounded(configure: Configure) -> None:
    with capture_logs() as logs:
        async with McpServers(configure(odd=ODD), start_timeout_s=PATIENCE_S) as servers:
            tools = {tool.spec.name: tool.spec for tool in servers.tools()}
            with pytest.raises(ToolRetry, match="eml- and six digits"):
                await call(servers, "loose")
        left_out = {each.name: each.reason for each in servers.statuses()[0].left_out}
    assert [left_out[name] for name in ("?", "no schema", "wordy")] == ["malformed or over 64 kB"] * 3
    assert "mcp_lire_le_courrier" in tools
    assert "mcp_loose" in tools
    assert tools["mcp_bare"].input_schema == {"type": "object"}
    assert not {"mcp_list", "mcp_wrong", "mcp_away", "mcp_vast", "mcp_huge", "mcp_wordy", "mcp_no_schema"} & set(tools)
    assert len(tools) <= 1000
    reading = tools["mcp_lire_le_courrier"]
    assert (reading.original_name, len(reading.description)) == ("lire le courrier", 2000)
    assert reading.description.startswith("reads mail!")
    shown = {"description": "the id", "examples": ["ab"], "x-note": "seen", "pattern": "a\u200bb"}
    assert reading.input_schema["properties"]["id"] == {"type": "string", **shown}
    said = {
        "x": {"type": "string", "default": None},
        "default": {"const": {"a": None, "b": "\u200b"}, "description": "the id"},
        "required": {"enum": [{"a": None}], "default": {"a": None}},
    }
    assert tools["mcp_nulls"].input_schema == {"type": "object", "properties": said}
    reasons = {log["reason"] for log in logs if log["event"] == "mcp_tool_skipped"}
    assert any("another document" in reason for reason in reasons)
    assert any(log["event"] == "mcp_tools_cut" for log in logs)


@pytest.mark.sweep
def test_of_tools_over_two_megabytes_the_first_are_offered_and_it_is_said_where_they_end() -> None:
    async def never(*_: object, **__: object) -> object:
        raise AssertionError("no tool is called")

    schema = {"type": "object", "description": "x" * 30_000}
    listed = [McpTool(name=f"t{number}", input_schema=schema) for number in range(100)]
    tools, left_out = tools_of("ours", McpServerConfig(command="python"), listed, never, 1)
    assert [each.spec.original_name for each in tools] == [f"t{number}" for number in range(len(tools))]
    assert 0 < len(tools) < 100
    assert left_out == [LeftOut(f"t{len(tools)}", "with it, and all after it, the list is over 2 MB")]


def test_tools_whose_names_have_other_letters_than_a_model_may_call_are_all_offered() -> None:
    async def never(*_: object, **__: object) -> object:
        raise AssertionError("no tool is called")

    names = ["搜索邮件", "删除邮件", "بحث", "حذف", "mail.get", "read file", "写", "n" * 128]
    listed = [McpTool(name=name, input_schema={"type": "object"}) for name in names]
    config = McpServerConfig(command="python", depends_on={"删除邮件": (DependencyGroup("any", ("搜索邮件",)),)})
    tools, left_out = tools_of("ours", config, listed, never, 1)
    offered = {each.spec.original_name: each.spec for each in tools}
    assert (list(offered), left_out) == (names, [])
    assert len({spec.name for spec in offered.values()}) == len(names)
    assert all(TOOL_NAME.fullmatch(spec.name) for spec in offered.values())
    assert offered["写"].name != "mcp__"
    assert [offered[name].name for name in names[4:6]] == ["mcp_mail_get", "mcp_read_file"]
    assert offered["删除邮件"].depends_on[0].tools == (offered["搜索邮件"].name,)


@pytest.mark.parametrize("names", [["mail.get", "mail_get", "mail get"], ["mail get", "mail_get", "mail.get"]])
def test_tools_whose_names_come_to_one_are_all_offered_in_whatever_order_they_are_listed(names: list[str]) -> None:
    async def never(*_: object, **__: object) -> object:
        raise AssertionError("no tool is called")

    depends_on = {name: (DependencyGroup("any", ("mail.get",)),) for name in ("mail get", "mail_get")}
    listed = [McpTool(name=name, input_schema={"type": "object"}) for name in [*names, names[0]]]
    tools, left_out = tools_of("ours", McpServerConfig(command="python", depends_on=depends_on), listed, never, 1)
    offered = {each.spec.original_name: each.spec for each in tools}
    assert (list(offered), left_out) == (names, [LeftOut(names[0], "a second tool of this name")])
    assert offered["mail_get"].name == "mcp_mail_get"
    assert len({spec.name for spec in offered.values()}) == len(names)
    assert offered["mail_get"].depends_on[0].tools == offered["mail get"].depends_on[0].tools
    assert offered["mail_get"].depends_on[0].tools == (offered["mail.get"].name,)
    others = McpServerConfig(command="python", disabled=frozenset({"mail_get", "mail get"}))
    alone, _ = tools_of("ours", others, listed, never, 1)
    assert [each.spec.name for each in alone] == ["mcp_mail_get"]


async def test_secrets_reach_the_child_and_no_log_or_repr(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "canary-4711")
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-children")
    show = "import os, sys; print(os.environ['SECRET'], os.environ.get('OPENAI_API_KEY'), file=sys.stderr)"
    config = configure(
        ours={**STDIO, "env": {"SECRET": "${CANARY}"}},
        leaky={"command": "python", "args": ["-c", show], "env": {"SECRET": "${CANARY}"}},
        web={"url": "http://127.0.0.1:9/${CANARY}", "headers": {"Authorization": "Bearer ${CANARY}"}},
    )
    with capture_logs() as logs:
        async with McpServers(config, start_timeout_s=PATIENCE_S) as servers:
            assert await call(servers, "secret") == "canary-4711"
            await until(lambda: any(log.get("stderr") == ["[redacted] None"] for log in logs))
            seen = f"{servers.states()} {servers.statuses()} {logs} {config!r}"
    assert "canary" not in seen


def test_a_missing_file_is_an_empty_config(tmp_path: Path) -> None:
    assert read_mcp_config(tmp_path / "mcp.json").servers == {}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"mcpServers": {"a": {"command": "x",}}}', "line 1, column"),
        ("[]", "the file"),
        ("{}", "mcpServers: Field required"),
        ('{"mcpServers": {"a": {}}}', "mcpServers.a: give either command"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://y"}}}', "give either command"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "mcpServers.a.args"),
        ('{"mcpServers": {"a": {"command": "x", "timeout_s": 0}}}', "mcpServers.a.timeout_s"),
        ('{"mcpServers": {"a": {"command": "x", "prefix": "mail."}}}', "mcpServers.a.prefix"),
        ('{"mcpServers": {"a": {"url": "file:///etc/passwd"}}}', "http:// or https://"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": "${UNSET_HERE}"}}}}', "UNSET_HERE at mcpServers.a.env.K"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": ["hunter2"]}}}}', "mcpServers.a.env.K"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_a_broken_config_names_the_file_and_what_to_correct(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(AppError) as caught:
        read_mcp_config(path)
    assert (caught.value.code, caught.value.status) == ("mcp_config_invalid", 500)
    assert str(path) in caught.value.detail
    assert hint in caught.value.detail
    assert "hunter2" not in str(caught.value)


def test_the_documented_config_is_read_as_documented(configure: Configure, tmp_path: Path) -> None:
    depends = {"get_email": [{"type": "any", "tools": ["search_emails"]}]}
    config = configure(
        mail={"command": "python", "args": ["mail.py"], "confirm": ["delete_email"], "depends_on": depends},
        docs={"url": "http://127.0.0.1:9000/mcp", "disabled": ["search"]},
        away={"command": "./away", "env": {"K": "${UNSET_HERE}"}, "disabled": True},
    )
    mail, docs, away = config.servers["mail"], config.servers["docs"], config.servers["away"]
    assert (mail.command, mail.cwd, mail.prefix, mail.timeout_s) == (sys.executable, str(tmp_path), "mcp_", None)
    assert mail.confirm == {"delete_email": True}
    assert mail.depends_on == {"get_email": (DependencyGroup("any", ("search_emails",)),)}
    assert docs.disabled == {"search"}
    assert (docs.off, away.off) == (False, True)
    assert McpServers(config).states() == {"mail": "connecting", "docs": "connecting"}


@pytest.fixture(scope="module")
async def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Installs the official server; the path of its program."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed: the official server-everything is not tried")
    folder = tmp_path_factory.mktemp("everything")
    quiet = ("--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    install = await asyncio.create_subprocess_exec(npm, "install", "--prefix", str(folder), *quiet, EVERYTHING)
    try:
        code = await asyncio.wait_for(install.wait(), 120)
    except TimeoutError:
        install.kill()
        code = await install.wait()
    if code != 0:
        pytest.skip(f"npm could not install {EVERYTHING}: the official server is not tried")
    return str(folder / "node_modules" / ".bin" / "mcp-server-everything")


@pytest.mark.sweep  # `make mcp-servers` calls every tool of the official ones
async def test_the_official_server_everything_works(everything: str, configure: Configure) -> None:
    async with McpServers(configure(all={"command": everything, "args": ["stdio"]}), start_timeout_s=15) as servers:
        assert servers.states() == {"all": "ready"}
        assert await call(servers, "echo", message="ciao") == "Echo: ciao"
        assert "42" in str(await call(servers, "get-sum", a=40, b=2))
        assert "'type': 'image', 'mime_type': 'image/png'" in str(await call(servers, "get-tiny-image"))
        with pytest.raises((ToolRetry, ToolFailed)):
            await call(servers, "get-sum", a="x", b=[])
        structured = await call(servers, "get-structured-content", location="New York")
        assert isinstance(structured, dict)
