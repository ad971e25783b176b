"""An MCP server that sends without end is disconnected with a reason, and nothing else waits for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from structlog.testing import capture_logs

from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import McpServers
from tests.support.logs import until
from tests.support.mcp_peer import WHO, Peer, connected, listening
from tests.support.patience import PATIENCE_S

HERE = Path(__file__).parent
BYTES = "it sends more bytes than were asked for; look into its own log"
MESSAGES = "it sends more messages than were asked for; look into its own log"
ASKS = "it asks on without reading the answers; look into its own log"
FLOODS = {
    "asks": MESSAGES,
    "announces": MESSAGES,
    "answers": MESSAGES,
    "logs": BYTES,
    "spins": BYTES,
    "complains": BYTES,
}


def event(**message: object) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


CHANGED = event(method="notifications/tools/list_changed")
SEEN = event(id=0, result={"content": [{"type": "text", "text": "seen"}]})


class FloodingPeer(Peer):
    """An MCP server over HTTP whose event stream says `stream`, without end unless it `closes`.

    If `is_rude` it never answers a goodbye.
    """

    def __init__(self, stream: bytes, *, closes: bool = False, is_rude: bool = False) -> None:
        super().__init__()
        self.stream = stream
        self.closes = closes
        self.is_rude = is_rude
        self.listed_at: list[float] = []

    async def serve(self, request: Request) -> Response:
        if request.method == "GET":
            return StreamingResponse(self.says(), media_type="text/event-stream")
        if request.method == "DELETE" and self.is_rude:
            await request.receive()
            await request.receive()  # until the client leaves
        if b"tools/list" in await request.body():
            self.listed_at.append(asyncio.get_running_loop().time())
        answer = await super().serve(request)
        answer.headers["mcp-session-id"] = "s"  # without one no stream is asked for
        return answer

    async def says(self) -> AsyncIterator[bytes]:
        yield self.stream
        while not self.closes:
            await asyncio.sleep(0)  # a reader that has left is told apart by the loop only
            yield self.stream


@pytest.mark.sweep
async def test_servers_that_flood_are_left_for_longer_each_time_while_the_tools_of_others_work(tmp_path: Path) -> None:
    flooding = {
        kind: {"command": "python", "args": [str(HERE / "mcp_flood_server.py"), kind], "prefix": f"{kind}_"}
        for kind in FLOODS
    }
    odd = {"command": "python", "args": [str(HERE / "mcp_odd_server.py")]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {**flooding, "odd": odd}}))
    with capture_logs() as lines:

        async def failures() -> dict[str, list[tuple[str, float]]]:
            failed: dict[str, list[tuple[str, float]]] = {name: [] for name in FLOODS}
            for line in lines:
                if line["event"] == "mcp_server_failed":
                    failed[line["server"]].append((line["reason"], line["retry_in_s"]))
            return failed if all(failed.values()) and len(failed["complains"]) > 1 else {}

        async with McpServers(read_mcp_config(file), start_timeout_s=PATIENCE_S) as servers:
            [add] = [tool for tool in servers.tools() if tool.spec.name == "mcp_add"]
            assert await add.run({"a": 1, "b": 2}, WHO) == "3"
            left = await until(failures)
            assert await add.run({"a": 1, "b": 2}, WHO) == "3"
    assert {kind: each[0] for kind, each in left.items()} == {kind: (reason, 0.5) for kind, reason in FLOODS.items()}
    assert left["complains"][1] == (BYTES, 1.0)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        pytest.param(FloodingPeer(CHANGED * 100), MESSAGES, id="notifications"),
        pytest.param(FloodingPeer(event(id=7, method="ping") * 100), ASKS, id="requests"),
        pytest.param(FloodingPeer(b"data: no message\n\n" * 100), MESSAGES, id="garbage"),
        pytest.param(FloodingPeer(b":\n" * 10_000), BYTES, id="comments"),
        pytest.param(FloodingPeer(b"x" * 100_000, is_rude=True), BYTES, id="one line"),
        pytest.param(FloodingPeer(b"retry: 0\n\n", closes=True), BYTES, id="streams that close at once"),
    ],
)
async def test_an_http_server_that_floods_is_disconnected_whether_it_takes_the_goodbye_or_not(
    peer: FloodingPeer, reason: str, tmp_path: Path
) -> None:
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:

        async def is_left() -> bool:
            return servers.states() == {"peer": f"failed: {reason}"}

        await until(is_left)


async def test_a_stream_of_events_is_utf_8_whatever_it_is_said_to_be(tmp_path: Path) -> None:
    peer = Peer(lambda _: Response(SEEN, media_type="text/event-stream; charset=punycode"))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        [look] = servers.tools()
        assert await look.run({}, WHO) == "seen"


@pytest.mark.sweep
async def test_tools_that_change_all_the_time_are_listed_less_and_less_often(tmp_path: Path) -> None:
    peer = FloodingPeer(b"retry: 50\n" + CHANGED, closes=True)
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}):

        async def are_four() -> bool:
            return len(peer.listed_at) > 4

        await until(are_four)
    assert peer.listed_at[4] - peer.listed_at[1] > 0.2 + 0.4 + 0.6
