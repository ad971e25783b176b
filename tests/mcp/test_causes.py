"""Why an MCP server cannot be used and what helps, which calls are made once more, and an end that no call notices."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from segue.config import Settings
from segue.domain.tool import ToolFailed
from segue.mcp import server_connection, supervisor
from segue.mcp.budget import McpServerGone
from segue.mcp.call_failures import CallDelivery, as_tool_error
from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import McpServers
from segue.tools.run import run_tool
from segue.tools.tool_settings import ToolSettings
from tests.support import logs
from tests.support.health import state, states
from tests.support.mcp_peer import SMALL, TOOL, WHO, Peer, call, connected, listening, said, tool, until
from tests.support.patience import PATIENCE_S
from tests.support.service import Client, process, running

WRITES = {"name": "stamp", "inputSchema": {"type": "object"}}
READS = {**TOOL, "annotations": {"readOnlyHint": True}}
SETTINGS = ToolSettings(tool_timeout_s=10, tool_result_max_bytes=1000)


class Sick(Peer):
    """Answers all with `status` once it has one. `asked` are the tools that were called."""

    status = 0
    asked: tuple[str, ...] = ()

    async def serve(self, request: Request) -> Response:
        body = json.loads(await request.body() or b"{}")
        if body.get("method") == "tools/call":
            self.asked += (body["params"]["name"],)
        return Response(status_code=self.status) if self.status else await super().serve(request)


def sick(answer: Callable[[Any], Response] | None = None) -> Sick:
    return Sick(answer, tools=[READS, WRITES])


def first_time(broken: Response) -> Callable[[Any], Response]:
    """Answers the first call of a tool so, and the next as it should."""
    asked: set[str] = set()

    def answer(body: Any) -> Response:
        name = body["params"]["name"]
        if name in asked:
            return said(body, {"content": [{"type": "text", "text": "seen"}]})
        asked.add(name)
        return broken

    return answer


def nothing() -> Response:
    return StreamingResponse(iter(()), media_type="text/event-stream")


async def test_each_cause_says_what_helps(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    (plain := tmp_path / "plain").write_text("")
    pages = [
        Route("/page", lambda _: HTMLResponse("<p>welcome"), methods=["POST"]),
        Route("/away", lambda _: RedirectResponse("http://127.0.0.2/mcp", 307), methods=["POST"]),
        *(Route(f"/{code}", lambda _, code=code: Response(status_code=code), methods=["POST"]) for code in (401, 503)),
    ]
    async with listening(Peer(), *pages) as port:
        script.chmod(0o755)
        servers = {
            "tls": ({"url": f"https://127.0.0.1:{port}/mcp"}, "TLS failed"),
            "page": ({"url": f"http://127.0.0.1:{port}/page"}, "a web page; correct its url"),
            "away": ({"url": f"http://127.0.0.1:{port}/away"}, "redirects to elsewhere (HTTP 307); write the address"),
            "unauthorized": ({"url": f"http://127.0.0.1:{port}/401"}, "HTTP 401; give it a token"),
            "broken": ({"url": f"http://127.0.0.1:{port}/503"}, "HTTP 503; look into its own log"),
            "nobody": ({"url": "http://no-such-host.invalid/mcp"}, "there is no host of its name; correct its url"),
            "refused": ({"url": "http://127.0.0.1:1/mcp"}, "nothing listens at its address (connection refused)"),
            "folder": ({"command": "python", "cwd": "gone"}, f"no folder {tmp_path}/gone to start it in; correct its"),
            "program": ({"command": "./gone"}, f"there is no program {tmp_path}/gone; correct its command"),
            "closed": ({"command": str(plain)}, "may not be run; make it executable"),
            "interpreter": ({"command": str(script)}, "names an interpreter that is not there; correct its first line"),
            "killed": (
                {"command": "sh", "args": ["-c", "kill -KILL $$"]},
                "was ended by SIGKILL; if no person did that",
            ),
        }
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {name: server for name, (server, _) in servers.items()}}))
        async with McpServers(read_mcp_config(file)) as started:
            await until(lambda: all(server.last_error for server in started.statuses()))
            said_of = {each.name: f"{each.last_error}" for each in started.statuses()}
    assert {name: said_of[name] for name, (_, why) in servers.items() if why not in said_of[name]} == {}


@pytest.mark.sweep
async def test_the_service_on_its_own_event_loop_says_how_a_server_ended(settings: Settings) -> None:
    servers = {"killed": {"command": "sh", "args": ["-c", "kill -KILL $$"]}, "small": SMALL}
    settings.mcp_config.write_text(json.dumps({"mcpServers": servers}))
    async with process(settings) as (served, client):
        await asyncio.to_thread(served.wait_for, "mcp_server_failed")
        [killed] = [each for each in (await client.get("/mcp/servers"))["items"] if each["name"] == "killed"]
    assert "was ended by SIGKILL" in killed["last_error"]


async def test_with_keys_the_open_health_check_names_no_path_of_the_machine(settings: Settings) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"gone": {"command": "no-such-program"}}}))
    async with logs.awaiting("mcp_server_failed") as failed, running(settings) as client:
        async with asyncio.timeout(PATIENCE_S):
            await failed.wait()
        assert (await client.get("/health/ready"))["mcp"]["gone"].startswith("failed: there is no program")
    keyed = settings.model_copy(update={"auth": "api_key"})
    async with logs.awaiting("mcp_server_failed") as failed, running(keyed) as client:
        async with asyncio.timeout(PATIENCE_S):
            await failed.wait()
        assert (await client.get("/health/ready"))["mcp"] == {"gone": "failed"}


@pytest.mark.parametrize("broken", [nothing(), Response(status_code=502)])
async def test_a_call_that_was_lost_is_made_once_more_if_it_only_reads(broken: Response, tmp_path: Path) -> None:
    peer = sick(first_time(broken))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await tool(servers, "look").run({}, WHO) == "seen"
        stamped = await run_tool(tool(servers, "stamp"), {}, WHO, settings=SETTINGS)
    assert (stamped.status, "whether the call took effect is unknown" in str(stamped.error)) == ("unknown", True)
    assert peer.asked == ("look", "look", "stamp")


class Forgetful(Sick):
    """Does not know the first session any more, once a tool is called in it."""

    sessions = 0

    async def serve(self, request: Request) -> Response:
        is_forgotten = self.sessions == 1 and b"tools/call" in await request.body()
        self.status = 404 if self.status or is_forgotten else 0
        if b'"initialize"' in await request.body():
            self.status, self.sessions = 0, self.sessions + 1
        answer = await super().serve(request)
        answer.headers["mcp-session-id"] = f"session-{self.sessions}"
        return answer


async def test_a_call_in_a_session_that_has_expired_is_made_in_the_next(tmp_path: Path) -> None:
    peer = Forgetful(lambda body: said(body, {"content": [{"type": "text", "text": "seen"}]}), [READS, WRITES])
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await call(servers, "stamp") == "seen"
    assert (peer.sessions, peer.asked) == (2, ("stamp", "stamp"))


UNREADABLE = {
    "JSON that broke off": Response('{"jsonrpc": ', media_type="application/json"),
    "events that are none": Response("data: {x\n\n", media_type="text/event-stream"),
    "a page": HTMLResponse("<p>welcome"),
    "nothing yet": Response(status_code=202),
}


@pytest.mark.parametrize("broken", UNREADABLE.values(), ids=list(UNREADABLE))
async def test_of_a_call_whose_answer_cannot_be_read_it_is_unknown_what_it_did(
    broken: Response, tmp_path: Path
) -> None:
    async with listening(sick(lambda _: broken)) as port:
        await _assert_unknown(port, tmp_path)


@pytest.mark.parametrize("result", [{"content": None}, None], ids=["content", "result"])
async def test_a_result_that_is_null_says_nothing_and_is_one(result: Any, tmp_path: Path) -> None:
    peer = sick(lambda body: said(body, result))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await call(servers, "stamp") is None


async def test_a_result_of_null_is_told_at_once_over_a_pipe_and_null_within_a_result_stays(tmp_path: Path) -> None:
    async with connected(tmp_path, SMALL) as servers:
        assert await call(servers, "echo", result=None) is None
        assert await call(servers, "echo", result={"structuredContent": {"jsonrpc": "2.0", "result": None}}) == {
            "jsonrpc": "2.0",
            "result": None,
        }


@pytest.mark.parametrize("result", [{}, {"content": [], "_meta": 5}], ids=["none", "meta"])
async def test_of_a_call_whose_answer_breaks_the_protocol_it_is_unknown_what_it_did(
    result: dict[str, Any], tmp_path: Path
) -> None:
    async with listening(sick(lambda body: said(body, result))) as port:
        await _assert_unknown(port, tmp_path)


async def _assert_unknown(port: int, folder: Path) -> None:
    async with connected(folder, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        stamped = await run_tool(tool(servers, "stamp"), {}, WHO, settings=SETTINGS)
    assert (stamped.status, "whether the call took effect is unknown" in str(stamped.error)) == ("unknown", True)


STAMP = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "stamp", "arguments": {}}}


def refusal(code: int, message: str, status: int = 400, of: str | int | None = None) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": of, "error": {"code": code, "message": message}}, status)


@pytest.mark.parametrize("said_of_it", ["No valid session ID provided", "Server not initialized"])
async def test_a_call_of_a_session_that_the_server_has_forgotten_is_made_once_more(
    said_of_it: str, tmp_path: Path
) -> None:
    peer = sick(first_time(refusal(-32000, f"Bad Request: {said_of_it}")))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await tool(servers, "look").run({}, WHO) == "seen"
        assert await tool(servers, "stamp").run({}, WHO) == "seen"
    assert peer.asked == ("look", "look", "stamp", "stamp")


OWN_ERRORS = [(-32000, "The store is closed"), (-32000, "Unexpected content type: a poem"), (-32603, "server answered")]


@pytest.mark.parametrize(("code", "message"), OWN_ERRORS)
@pytest.mark.parametrize("status", [200, 400])
async def test_an_error_is_the_servers_own_also_if_the_sdk_uses_its_code_or_words_for_another(
    code: int, message: str, status: int, tmp_path: Path
) -> None:
    peer = sick(lambda body: refusal(code, message, status, body["id"]))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        stamped = await run_tool(tool(servers, "stamp"), {}, WHO, settings=SETTINGS)
    assert (stamped.status, peer.asked) == ("failed", ("stamp",))
    assert "refused" in str(stamped.error)


async def test_a_call_for_which_segue_cannot_do_enough_does_not_count_against_its_tool(tmp_path: Path) -> None:
    peer = sick(lambda body: refusal(-32021, "Missing required client capability", 400, body["id"]))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        looked = await run_tool(tool(servers, "look"), {}, WHO, settings=SETTINGS)
    assert (looked.status, looked.fault) == ("failed", "arguments")
    assert "wanted something for this call that it does not get" in str(looked.error)


async def test_a_call_that_did_not_run_is_not_sent_afterwards() -> None:
    delivery, peer = CallDelivery(), sick()
    told = as_tool_error("peer", MCPError(CONNECTION_CLOSED, "Connection closed"), delivery)
    assert "the call did not run" in str(told)
    async with listening(peer) as port, httpx2.AsyncClient() as client:
        with pytest.raises(McpServerGone):
            await client.post(f"http://127.0.0.1:{port}/mcp", json=STAMP, extensions={"trace": delivery.trace})
    assert peer.asked == ()


async def test_a_call_that_was_never_sent_did_not_run(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with listening(sick()) as port:
            config = {"url": f"http://127.0.0.1:{port}/mcp"}
            servers = await stack.enter_async_context(connected(tmp_path, config))
        stamped = await run_tool(tool(servers, "stamp"), {}, WHO, settings=SETTINGS)
        with pytest.raises(ToolFailed, match=r"is not connected \(failed: nothing listens"):
            await tool(servers, "look").run({}, WHO)
    assert stamped.error == "The MCP server peer could not be reached: the call did not run."
    assert stamped.status == "failed"


async def test_tools_of_a_server_that_dies_or_returns_are_taken_away_and_given_back_without_a_call(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_QUIET_S", 0.1)
    async with listening(peer := sick()) as port:
        dead = {"command": "python", "args": ["-c", "import sys; sys.exit('no TOKEN is set')"]}
        servers = {"peer": {"url": f"http://127.0.0.1:{port}/mcp"}, "dead": dead}
        settings.mcp_config.write_text(json.dumps({"mcpServers": servers}))
        async with running(settings) as client:
            session = await client.new_session()
            assert (await state(client, session, "mcp_look"))["available"]
            peer.status = 503
            await logs.until(lambda: _is(client, session, available=False), logged="mcp_server_failed")
            away, ready = await state(client, session, "mcp_look"), await client.get("/health/ready")
            peer.status = 0
            await logs.until(lambda: _is(client, session, available=True), logged="mcp_server_ready")
    why = "failed: it answered HTTP 503; look into its own log"
    assert (away["reason_code"], away["reason"]) == ("server_away", f"Its MCP server is not connected ({why}).")
    assert (ready["mcp"]["peer"], set(ready["mcp_stderr"]["dead"].split("\n"))) == (why, {"no TOKEN is set"})
    assert peer.asked == ()


async def test_a_process_that_hangs_is_replaced_without_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_QUIET_S", 0.1)
    monkeypatch.setattr(server_connection, "_SIGN_S", 0.1)
    async with connected(tmp_path, {**SMALL, "timeout_s": 0.5}) as servers:
        pid = int(str(await tool(servers, "pid").run({}, WHO)))
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: servers.statuses()[0].last_error == "it stopped answering; look into its own log")
        await until(lambda: servers.states()["peer"] == "ready")
        assert await tool(servers, "pid").run({}, WHO) != str(pid)


class Slow(Peer):
    """Runs calls until `stop`, and answers pings meanwhile. `asked` are the methods since a call began."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.stop = asyncio.Event(), asyncio.Event()
        self.asked: list[str] = []

    async def serve(self, request: Request) -> Response:
        body = json.loads(await request.body() or b"{}")
        self.asked.append(body.get("method"))
        if body.get("method") == "tools/call":
            self.asked.clear()
            self.begun.set()
            await self.stop.wait()
            return said(body, {"content": []})
        return await super().serve(request)


@pytest.mark.sweep
async def test_a_server_that_runs_a_call_is_not_asked_for_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_QUIET_S", 0.05)
    busy, idle = Slow(), Slow()
    async with listening(busy) as of_busy, listening(idle) as of_idle, AsyncExitStack() as stack:
        servers = await stack.enter_async_context(connected(tmp_path, {"url": f"http://127.0.0.1:{of_busy}/mcp"}))
        await stack.enter_async_context(connected(tmp_path, {"url": f"http://127.0.0.1:{of_idle}/mcp"}))
        calling = asyncio.create_task(call(servers, "look"))
        await busy.begun.wait()
        idle.asked.clear()
        await until(lambda: idle.asked.count("ping") >= 5)
        assert busy.asked.count("ping") <= 1  # one may have been on its way
        busy.stop.set()
        await calling


async def _is(client: Client, session: str, *, available: bool) -> bool:
    return bool((await states(client, session))["mcp_look"]["available"]) == available
