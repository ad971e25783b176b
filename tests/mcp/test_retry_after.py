"""An MCP server that asks to be left alone for a while (Retry-After) gets no request until then, and it is said why."""

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from segue.config import Settings
from segue.mcp import supervisor
from segue.tools.run import run_tool
from segue.tools.tool_settings import ToolSettings
from tests.support import logs
from tests.support.health import state
from tests.support.mcp_peer import TOOL, WHO, Peer, call, connected, listening, said, tool, until
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running

SETTINGS = ToolSettings(tool_timeout_s=10, tool_result_max_bytes=1000)
READS = {**TOOL, "annotations": {"readOnlyHint": True}}
WRITES = {"name": "stamp", "inputSchema": {"type": "object"}}
AN_HOUR = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)


class Limited(Peer):
    """Refuses the next request of each method in `limits` with that status and Retry-After. `asked` are the methods of
    all requests, `hasty` those that came before the seconds that it had asked for were over.
    """

    def __init__(self, **limits: tuple[int, str]) -> None:
        super().__init__(lambda body: said(body, {"content": [{"type": "text", "text": "seen"}]}), [READS, WRITES])
        self.limits = {name.replace("_", "/"): limit for name, limit in limits.items()}
        self.asked: list[str] = []
        self.hasty: list[str] = []
        self._rests_until = 0.0

    async def serve(self, request: Request) -> Response:
        method = json.loads(await request.body() or b"{}").get("method") or request.method
        self.asked.append(method)
        if time.monotonic() < self._rests_until:
            self.hasty.append(method)
        if (limit := self.limits.pop(method, None)) is None:
            return await super().serve(request)
        status, wait = limit
        self._rests_until = time.monotonic() + (float(wait) if wait.isdecimal() else 3600.0)
        return Response(status_code=status, headers={"retry-after": wait})


@pytest.mark.parametrize("name", ["look", "stamp"])
async def test_a_call_that_is_to_come_a_second_later_is_made_once_more_then(name: str, tmp_path: Path) -> None:
    peer = Limited(tools_call=(429, "1"))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await call(servers, name) == "seen"
    assert (peer.asked.count("tools/call"), peer.hasty) == (2, [])


async def test_a_call_that_may_have_run_is_made_again_after_the_second_only_if_it_reads(tmp_path: Path) -> None:
    peer = Limited(tools_call=(503, "1"))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await call(servers, "look") == "seen"
        peer.limits["tools/call"] = 503, "1"
        stamped = await run_tool(tool(servers, "stamp"), {}, WHO, settings=SETTINGS)
        assert (stamped.status, peer.asked.count("tools/call"), peer.hasty) == ("unknown", 3, [])


@pytest.mark.parametrize("wait", ["3600", AN_HOUR], ids=["seconds", "a date"])
async def test_a_tool_is_unavailable_until_its_server_wants_to_be_asked_again(
    wait: str, settings: Settings, provider: Provider
) -> None:
    async with listening(peer := Limited(tools_call=(429, wait))) as port:
        servers = {"peer": {"url": f"http://127.0.0.1:{port}/mcp"}}
        settings.mcp_config.write_text(json.dumps({"mcpServers": servers}))
        async with running(settings) as client:
            session = await client.new_session()
            provider.will(calls(("mcp_look", {})), says("Not now."), calls(("mcp_look", {"again": 1})), says("Later."))
            [first] = (await client.chat(session, "Look for it."))["tool_calls"]
            offered = [each["function"]["name"] for each in provider.requests[-1]["tools"]]
            there = await state(client, session, "mcp_look")
            other = await state(client, await client.new_session(), "mcp_stamp")
            [second] = (await client.chat(session, "Look again."))["tool_calls"]
            assert (await client.http.post("/mcp/servers/peer/reconnect")).status_code == 202
            await logs.until(lambda: _is_there(client, session), logged="mcp_server_ready")
    reason = f"Its MCP server asks to be left alone until {there['retry_at'][:19]}Z."
    assert (there["available"], there["reason_code"], there["reason"]) == (False, "server_away", reason)
    assert (other["available"], other["reason"], there["consecutive_failures"]) == (False, reason, 0)
    assert first["error"] == f"The call did not run. {reason}"
    assert reason.rstrip(".") in second["error"]
    assert "mcp_look" not in offered
    assert (peer.asked.count("tools/call"), peer.hasty[:-4]) == (1, [])  # those of the operator's new connection


@pytest.mark.parametrize("method", ["server_discover", "initialize", "tools_list"])
async def test_a_server_that_cannot_be_connected_now_is_tried_when_it_wants_to_be(method: str, tmp_path: Path) -> None:
    peer = Limited(**{method: (503, "1")})
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        await until(lambda: servers.states()["peer"] == "ready")
        assert await call(servers, "look") == "seen"
    assert [each for each in peer.hasty if each != "DELETE"] == []


async def test_a_server_that_is_too_busy_for_a_sign_of_life_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_QUIET_S", 0.05)
    peer = Limited(ping=(429, "1"))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        await until(lambda: peer.asked.count("ping") >= 2)
        assert servers.states() == {"peer": "ready"}
    assert (peer.asked.count("initialize"), peer.hasty) == (1, [])


async def _is_there(client: Client, session: str) -> bool:
    return bool((await state(client, session, "mcp_look"))["available"])
