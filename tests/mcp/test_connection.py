"""Where an HTTP MCP server may lead us, what goes along, and how much of it is read."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from segue.domain.tool import ToolFailed
from segue.mcp.budget import MESSAGE_LIMIT_BYTES
from segue.mcp.mcp_servers import McpServers
from segue.tools.normalize import Unread
from tests.support.mcp_peer import TOOL, WHO, Peer, call, configured, connected, listening, said
from tests.support.server import serving

SECRET = "canary-8f3a91"  # noqa: S105 (made up for the test)
PRIVATE = 'failed: its host is a private address; if that is meant, set "allow_private": true for it in mcp.json'


async def state_of(folder: Path, server: dict[str, Any]) -> str:
    async with connected(folder, server) as servers:
        return servers.states()["peer"]


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "0x7f.1",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "0.0.0.0",  # noqa: S104 (an address, not a binding)
    ],
)
async def test_a_host_that_leads_inside_takes_only_its_own_tools_down_and_says_how_to_go_on(
    host: str, tmp_path: Path
) -> None:
    peer = Peer()
    async with listening(peer) as port:
        assert await state_of(tmp_path, {"url": f"http://{host}:{port}/mcp"}) == PRIVATE
    assert peer.headers == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_private_address_that_is_written_out_is_the_operators_word(host: str, tmp_path: Path) -> None:
    async with listening(Peer()) as port:
        assert await state_of(tmp_path, {"url": f"http://{host}:{port}/mcp"}) == "ready"


async def test_a_name_inside_may_be_allowed_for_one_server(tmp_path: Path) -> None:
    async with listening(Peer()) as port:
        assert await state_of(tmp_path, {"url": f"http://127.1:{port}/mcp", "allow_private": True}) == "ready"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_is_not_followed_and_gets_no_header(status: int, tmp_path: Path) -> None:
    elsewhere = Peer()
    async with listening(elsewhere) as other:

        def away(_: Request) -> Response:
            return RedirectResponse(f"http://127.0.0.1:{other}/mcp", status)

        async with listening(Peer(), Route("/away", away, methods=["GET", "POST"])) as port:
            server = {"url": f"http://127.0.0.1:{port}/away", "headers": {"X-Api-Key": SECRET}}
            assert (await state_of(tmp_path, server)).startswith("failed:")
    assert elsewhere.headers == []


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_text_that_was_cut_within_a_character_is_read(tmp_path: Path, kind: str) -> None:
    def answer(body: Any) -> Response:
        result = {"content": [{"type": "text", "text": "\ud83d"}]}
        written = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": result})
        return Response(written if kind == "application/json" else f"data: {written}\n\n", media_type=kind)

    async with listening(Peer(answer)) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await call(servers, "look") == "\ufffd"


class OlderPeer(Peer):
    """A server of 2024-11-05: it streams what it answers, and takes messages at an address that the stream names."""

    def __init__(self, endpoint: str = "/messages?session_id=s") -> None:
        super().__init__(lambda body: said(body, {"content": [{"type": "text", "text": "seen"}]}))
        self.endpoint = endpoint
        self.events: asyncio.Queue[str] = asyncio.Queue()

    async def stream(self, _: Request) -> Response:
        self.events.put_nowait(f"event: endpoint\ndata: {self.endpoint}\n\n")

        async def events() -> AsyncIterator[str]:
            while True:
                yield await self.events.get()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def take(self, request: Request) -> Response:
        answer = bytes((await self.serve(request)).body).decode()
        if answer:
            self.events.put_nowait(f"event: message\ndata: {answer}\n\n")
        return Response(status_code=202)


@asynccontextmanager
async def streaming(peer: OlderPeer) -> AsyncIterator[str]:
    routes = [Route("/sse", peer.stream), Route("/messages", peer.take, methods=["POST"])]
    async with serving(Starlette(routes=routes)) as url:
        yield f"{url}/sse"


@pytest.mark.parametrize("kind", [{"type": "sse"}, {}], ids=["named", "found out"])
async def test_a_server_of_the_older_transport_works_and_gets_the_headers(kind: dict[str, str], tmp_path: Path) -> None:
    peer = OlderPeer()
    async with (
        streaming(peer) as url,
        connected(tmp_path, {"url": url, "headers": {"X-Api-Key": SECRET}, **kind}) as servers,
    ):
        assert servers.states() == {"peer": "ready"}
        [look] = servers.tools()
        assert await look.run({}, WHO) == "seen"
    assert {headers["x-api-key"] for headers in peer.headers} == {SECRET}


async def test_an_older_server_leads_to_no_other_origin(tmp_path: Path) -> None:
    elsewhere = Peer()
    async with listening(elsewhere) as port:
        peer = OlderPeer(f"http://127.0.0.1:{port}/mcp")
        async with streaming(peer) as url:
            config = configured(tmp_path, {"url": url, "type": "sse"})
            async with McpServers(config, start_timeout_s=0.5) as servers:
                assert servers.states() == {"peer": "connecting"}
                assert peer.events.empty()
    assert elsewhere.headers == []


async def test_an_older_server_is_checked_for_its_address_and_its_refusals_are_said(tmp_path: Path) -> None:
    async with streaming(OlderPeer("/nowhere")) as url:
        state = await state_of(tmp_path, {"url": url, "type": "sse"})
        assert state.startswith("failed: it answered HTTP 404;")
        inside = url.replace("127.0.0.1", "127.1")
        assert await state_of(tmp_path, {"url": inside, "type": "sse"}) == PRIVATE


async def test_a_redirect_within_the_origin_is_followed(tmp_path: Path) -> None:
    async def moved(_: Request) -> Response:
        return RedirectResponse("/mcp", 307)

    peer = Peer()
    async with listening(peer, Route("/mcp/", moved, methods=["GET", "POST"])) as port:
        server = {"url": f"http://127.0.0.1:{port}/mcp/", "headers": {"X-Api-Key": SECRET}}
        assert await state_of(tmp_path, server) == "ready"
    assert {headers["x-api-key"] for headers in peer.headers} == {SECRET}


async def test_a_result_arrives_also_if_it_is_not_as_its_tool_declares(tmp_path: Path) -> None:
    declared = {"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"]}
    peer = Peer(lambda body: said(body, {"content": [{"type": "text", "text": "seen"}]}))
    peer.tools = [{**TOOL, "outputSchema": declared}]
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await call(servers, "look") == "seen"


TEXT = {"type": "text", "text": "seen"}
LINK = {"type": "resource_link", "uri": "a:b", "name": "b", "mime_type": None, "size_bytes": None}
LEFT_OUT = {
    "null for what is not said": (
        {"content": [TEXT], "isError": None, "structuredContent": None, "_meta": None},
        "seen",
    ),
    "no content beside a value": ({"structuredContent": {"seen": 1}}, {"seen": 1}),
    "a value that is no object": ({"structuredContent": [1, 2], "content": None}, [1, 2]),
    "such a value beside its text": ({"structuredContent": 5, "content": [TEXT]}, "seen"),
    "icons of a draft": (
        {"content": [{"type": "resource_link", "uri": "a:b", "name": "b", "icons": [{"src": "c", "sizes": "48x48"}]}]},
        LINK,
    ),
    "a kind that the SDK does not know": (
        {"content": [TEXT, {"type": "dance", "steps": 2}]},
        ["seen", {"type": "dance", "steps": 2}],
    ),
    "a text with odd annotations": ({"content": [{**TEXT, "annotations": {"priority": 5}}]}, "seen"),
    "a text that is no list": ({"content": "seen"}, "seen"),
    "an empty text": ({"content": ""}, ""),
    "an empty value": ({"structuredContent": {}}, {}),
    "a text without its kind": ({"content": [{"text": "seen"}]}, "seen"),
    "a link with more about it": (
        {"content": [{"type": "resource_link", "uri": "a:b", "name": "b", "description": "of May", "title": None}]},
        {**LINK, "description": "of May"},
    ),
    "large, without content": (
        {"structuredContent": {"seen": "x" * 200_000}, "isError": None},
        {"seen": "x" * 200_000},
    ),
}


class Sparing(Peer):
    """Of 2026-07-28 or before; says no more than it has to, and less: no result has its type or how long it keeps."""

    def __init__(self, result: dict[str, Any], *, is_new: bool) -> None:
        super().__init__(lambda body: said(body, result), [{**TOOL, "icons": [{"src": "look.png", "sizes": "any"}]}])
        self.is_new = is_new

    async def serve(self, request: Request) -> Response:
        body = json.loads(await request.body() or b"{}")
        if self.is_new and body.get("method") == "server/discover":
            return said(body, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
        return await super().serve(request)


@pytest.mark.parametrize("is_new", [True, False], ids=["2026-07-28", "before"])
@pytest.mark.parametrize(("result", "expected"), LEFT_OUT.values(), ids=list(LEFT_OUT))
async def test_what_a_server_leaves_out_of_a_result_is_what_it_means_and_no_doubt_about_the_call(
    result: dict[str, Any], expected: object, tmp_path: Path, *, is_new: bool
) -> None:
    peer = Sparing(result, is_new=is_new)
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert await call(servers, "look") == expected


async def test_a_result_that_only_says_that_it_failed_is_no_doubt_about_the_call(tmp_path: Path) -> None:
    peer = Peer(lambda body: said(body, {"isError": True}))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        with pytest.raises(ToolFailed, match="says that it failed"):
            await call(servers, "look")


class PagingPeer(Peer):
    """Lists a page for each of its cursors, and the last one for ever."""

    def __init__(self, *cursors: str, pages: int) -> None:
        super().__init__()
        self.cursors, self.pages = cursors, pages
        self.listed = 0

    async def serve(self, request: Request) -> Response:
        body = json.loads(await request.body() or b"{}")
        if body.get("method") != "tools/list":
            return await super().serve(request)
        if self.listed:
            assert body["params"]["cursor"] == self.cursors[self.listed - 1]
        self.listed += 1
        tools = [{**TOOL, "name": f"look_{min(self.listed, self.pages)}"}]
        return said(body, {"tools": tools, "nextCursor": [*self.cursors, None][self.listed - 1]})


@pytest.mark.parametrize("cursor", ["again", ""])
async def test_a_page_that_leads_back_to_itself_is_the_last(tmp_path: Path, cursor: str) -> None:
    peer = PagingPeer(*[cursor] * 5, pages=1)
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        assert ([tool.spec.name for tool in servers.tools()], peer.listed) == (["mcp_look_1"], 2)
        assert servers.statuses()[0].left_out == []


async def test_an_empty_text_leads_to_the_next_page_as_any_cursor(tmp_path: Path) -> None:
    url = "http://127.0.0.1:{}/mcp".format
    async with listening(PagingPeer("", pages=2)) as port, connected(tmp_path, {"url": url(port)}) as servers:
        assert [tool.spec.name for tool in servers.tools()] == ["mcp_look_1", "mcp_look_2"]


def as_event(body: Any, result: Any) -> Response:
    """An answer in an event stream, its data in two lines, behind an event that is small."""
    answer = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": result})
    before, after = answer.split(": ", 1)
    events = f": hello\r\n\r\nevent: message\r\ndata: {before}:\r\ndata: {after}\r\n\r\n"
    return Response(events, media_type="text/event-stream")


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("answer", [said, as_event], ids=["json", "events"])
async def test_an_answer_of_megabytes_arrives_unread(answer: Callable[[Any, Any], Response], tmp_path: Path) -> None:
    text = json.dumps([[]] * 100_000)
    peer = Peer(lambda body: answer(body, {"content": [{"type": "text", "text": text}]}))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        [tool] = servers.tools()
        found = await tool.run({}, WHO)
    assert isinstance(found, Unread)
    assert len(found.text) < len(text) // 10
    assert found.read(found.text) == [[]] * 100_000


async def test_a_body_without_end_fails_its_call_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MESSAGE_LIMIT_BYTES // 2**20 + 2):
            yield b" " * 2**20
        await asyncio.Event().wait()

    peer = Peer(lambda _: StreamingResponse(endless(), media_type="application/json"))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        [tool] = servers.tools()
        with pytest.raises(ToolFailed, match="larger than 32 MiB"):
            await tool.run({}, WHO)
        assert servers.states() == {"peer": "ready"}


async def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(b" " * 100_000_000)
    headers = {"Content-Encoding": "gzip"}
    peer = Peer(lambda _: Response(bomb, headers=headers, media_type="application/json"))
    async with listening(peer) as port, connected(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as servers:
        [tool] = servers.tools()
        with pytest.raises(ToolFailed, match="lost before it answered"):
            await tool.run({}, WHO)
    assert {headers["accept-encoding"] for headers in peer.headers} == {"identity"}
