"""Clients that send slowly, endlessly or not at all, over raw sockets, while the others are served."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import httpx2
import pytest
from structlog.testing import capture_logs

from segue.api.connection import TimedConnection
from segue.config import Settings
from segue.main import create_app
from tests.support.logs import awaiting
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, says
from tests.support.server import serving
from tests.support.service import Client
from tests.support.streams import replayed

SHORT_S = 0.3
LIMIT = 100_000
TOO_LARGE = f"413 {HTTPStatus(413).phrase.lower()}"  # in other words from Python 3.13 on
HEAD = b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Raw:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.headers: dict[str, str] = {}
        self.body = b""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> str:
        """The status line of the next answer; its `headers` and `body` are read too."""
        async with asyncio.timeout(PATIENCE_S):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
            self.headers = dict(line.split(": ", 1) for line in lines if line)
            self.body = await self.reader.readexactly(int(self.headers.get("content-length", 0)))
        return first.removeprefix("http/1.1 ")

    async def problem(self) -> dict[str, Any]:
        """The problem in the next answer, which is in the form of every other."""
        await self.status()
        problem: dict[str, Any] = json.loads(self.body)
        assert self.headers["x-request-id"] == problem["request_id"]
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["cache-control"] == "no-store"
        assert problem["title"]
        assert problem["detail"]
        return problem

    async def until_closed(self) -> bytes:
        with suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.read()
        return b""


class Counting(TimedConnection):
    """Counts what it reads, by the port of the client."""

    read: ClassVar[Counter[int]] = Counter()

    def data_received(self, data: bytes) -> None:
        assert self.client is not None
        self.read[self.client[1]] += len(data)
        super().data_received(data)


@asynccontextmanager
async def listening(
    settings: Settings, *, most: int = 100, keep_alive_s: float = 5, **options: Any
) -> AsyncIterator[Any]:
    """Opens connections to the service, for whom a request has to arrive within SHORT_S."""
    app = create_app(settings.model_copy(update={"max_body_bytes": LIMIT}))
    connection = partial(Counting, **{"read_timeout_s": SHORT_S, "max_connections": most, **options})
    async with serving(app, http=connection, timeout_keep_alive=keep_alive_s) as url:
        port = int(url.rpartition(":")[2])
        opened: list[Raw] = []

        async def connect(first: bytes = b"") -> Raw:
            raw = Raw(*await asyncio.open_connection("127.0.0.1", port))
            opened.append(raw)
            await raw.send(first)
            return raw

        try:
            yield connect
        finally:
            for raw in opened:
                raw.writer.close()


SLOW = {
    "line ends": b"\r\n\r\n",
    "half a path": b"GET /health/li",
    "half a header": GET[:-2] + b"X-Slow: ",
    "half a body": HEAD + b"Content-Length: 10\r\n\r\n{",
    "half of the chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
}
FLOODS = {
    "a path": b"GET /" + b"a" * 100_000,
    "a header": GET[:-2] + b"X-Big: " + b"a" * 100_000,
    "many headers": GET[:-2] + b"a: b\r\n" * 20_000,
    "line ends": b"\r\n" * 50_000,
    "a chunk extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 100_000,
    "trailers": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 20_000,
    "chunk extensions": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"1;" + b"a" * 5000 + b"\r\n \r\n") * 20,
}
WHOLE = {
    "a path": b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header": GET[:-2] + b"X-Big: " + b"a" * 66_000 + b"\r\n\r\n",
    "many headers": GET[:-2] + b"a: b\r\n" * 2000 + b"\r\n",
    "trailers": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
}
ENDLESS = {
    "announced": HEAD + b"Content-Length: 9000000000\r\n\r\n",
    "announced and asked about": HEAD + b"Content-Length: 9000000000\r\nExpect: 100-continue\r\n\r\n",
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    "chunked, to nothing": HEAD.replace(b"/sessions", b"/nothing") + b"Transfer-Encoding: chunked\r\n\r\n",
    "chunked, to what reads none": HEAD.replace(b"POST", b"GET") + b"Transfer-Encoding: chunked\r\n\r\n",
}
CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"


async def test_a_request_that_does_not_arrive_in_time_is_ended_and_nobody_else_notices(settings: Settings) -> None:
    with capture_logs() as logs:
        async with listening(settings) as connect:
            slow = {name: await connect(first) for name, first in SLOW.items()}
            unused = await connect()
            other = await connect(GET + GET[:20])
            assert await other.status() == "200 ok"
            ends = {name: await raw.status() for name, raw in {**slow, "half a second request": other}.items()}
            assert ends == dict.fromkeys(ends, "408 request timeout")
            assert [await raw.until_closed() for raw in (*slow.values(), unused)] == [b""] * (len(slow) + 1)
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


async def test_what_is_refused_before_a_route_sees_it_is_a_problem_that_the_log_has_by_its_id(
    settings: Settings,
) -> None:
    known = b"X-Request-Id: mine\r\nContent-Length: 10\r\n\r\n{"
    with capture_logs() as logs:
        async with listening(settings, most=3) as connect:
            slow, known_by_its_id = await connect(GET[:20]), await connect(HEAD + known)
            to_openai = await connect(HEAD.replace(b"/sessions", b"/v1/responses") + known)
            turned_away = await connect()
            problems = [await each.problem() for each in (turned_away, slow, known_by_its_id)]
            await to_openai.status()
            problems += [await (await connect(sent)).problem() for sent in (b"BREW coffee\r\n\r\n", WHOLE["a header"])]
    assert [(each["status"], each["code"]) for each in problems] == [
        (503, "service_unavailable"),
        *[(408, "request_timeout")] * 2,
        (400, "invalid_request"),
        (431, "request_header_fields_too_large"),
    ]
    assert turned_away.headers["retry-after"] == str(problems[0]["retry_after_s"])
    assert (problems[2]["request_id"], json.loads(to_openai.body)["error"]["code"]) == ("mine", "request_timeout")
    refused = {(entry["request_id"], entry["status"]) for entry in logs if entry["event"] == "request_refused"}
    assert refused == {(each["request_id"], each["status"]) for each in problems}


async def test_a_request_that_cannot_be_read_is_not_answered_within_the_answer_to_another(
    settings: Settings, provider: Provider
) -> None:
    asked, told = asyncio.Event(), asyncio.Event()

    async def slowly(_: Any) -> Any:
        asked.set()
        await told.wait()
        return says("at last")

    async with listening(settings, read_timeout_s=PATIENCE_S) as connect:
        client = await connect(HEAD + b"Content-Length: 2\r\n\r\n{}")
        await client.status()
        session = json.loads(client.body)["id"].encode()
        provider.will(slowly)
        body = b'{"message": "hi", "stream": true}'
        chat = HEAD.replace(b"/sessions", b"/sessions/%s/chat" % session)
        await client.send(chat + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await asked.wait()
        await client.send(b"BREW coffee\r\n\r\n")
        heard = await client.until_closed()
        told.set()
    assert heard.startswith(b"HTTP/1.1 200")
    assert b"400" not in heard


async def test_a_wish_for_another_protocol_is_answered_in_this_one_with_its_body(settings: Settings) -> None:
    """Java's client sends it with every request until it has an answer, and `curl --http2` too."""
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"
    async with listening(settings) as connect:
        client = await connect(GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert await client.status() == "200 ok"
        for _ in range(2):
            await client.send(HEAD + wish + b'Content-Length: 17\r\n\r\n{"title": "mine"}')
            assert await client.status() == "201 created"
            assert json.loads(client.body)["title"] == "mine"


@pytest.mark.sweep
async def test_a_trickle_of_bytes_does_not_buy_time(settings: Settings) -> None:
    async with listening(settings) as connect:
        slow = await connect(HEAD + b"Content-Length: 100000\r\n\r\n")

        async def trickle() -> None:
            while True:
                await slow.send(b" ")
                await asyncio.sleep(0.01)  # the pace is what is tried

        trickling = asyncio.create_task(trickle())
        assert await slow.status() == "408 request timeout"
        trickling.cancel()


async def test_a_connection_that_asks_for_nothing_more_is_closed(settings: Settings) -> None:
    async with listening(settings, keep_alive_s=0.1) as connect:
        idle = await connect(GET)
        assert await idle.status() == "200 ok"
        assert await idle.until_closed() == b""


@pytest.mark.sweep
async def test_an_answer_may_take_longer_than_a_request(settings: Settings, provider: Provider) -> None:
    told = asyncio.Event()

    async def slowly(_: Any) -> Any:
        await told.wait()
        return says("at last")

    async with listening(settings) as connect:
        client = await connect(HEAD + b"Content-Length: 2\r\n\r\n{}")
        assert await client.status() == "201 created"
        session = client.body.partition(b'"id":"')[2].partition(b'"')[0]
        provider.will(slowly)
        path = HEAD.replace(b"/sessions", b"/sessions/%s/chat" % session)
        await client.send(path + b'Content-Length: 17\r\n\r\n{"message": "hi"}' + b"\r\n" + GET[:20])
        late = await connect()
        assert await late.until_closed() == b""  # more than its time has passed for the other one too
        told.set()
        assert await client.status() == "200 ok"


async def test_what_is_no_body_is_bounded_too(settings: Settings) -> None:
    async with listening(settings) as connect:
        ends = {}
        for name, flood in FLOODS.items():
            client = await connect()
            with suppress(ConnectionError):
                for at in range(0, len(flood), 1000):
                    await client.send(flood[at : at + 1000])
            ends[name] = (await client.until_closed()).partition(b"\r\n")[0].removeprefix(b"HTTP/1.1 ")
        refused = (b"431 Request Header Fields Too Large", b"400 Bad Request", b"")
        assert {name: end for name, end in ends.items() if end not in refused} == {}
        assert await (await connect(GET)).status() == "200 ok"


async def test_a_head_that_comes_at_once_is_bounded_too(settings: Settings) -> None:
    async with listening(settings) as connect:
        ends = {name: await (await connect(whole)).status() for name, whole in WHOLE.items()}
        assert ends == dict.fromkeys(WHOLE, "431 request header fields too large")
        fits = GET[:-2] + b"X-Big: " + b"a" * 65_000 + b"\r\n\r\n"
        assert await (await connect(fits)).status() == "200 ok"


async def test_a_body_that_goes_on_after_its_answer_is_not_read_on(settings: Settings) -> None:
    async def flood(client: Raw) -> None:
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await client.send(CHUNK)

    async def answer(client: Raw) -> tuple[str, bool]:
        port = client.writer.get_extra_info("sockname")[1]
        flooding = asyncio.create_task(flood(client))
        status = await client.status()
        await flooding
        return status, Counting.read[port] < 2 * LIMIT + 600_000

    async with listening(settings, read_timeout_s=PATIENCE_S) as connect:
        clients = {name: await connect(head) for name, head in ENDLESS.items()}
        ends = dict(zip(clients, await asyncio.gather(*map(answer, clients.values())), strict=True))
        others = {"chunked, to nothing": ("404 not found", True), "chunked, to what reads none": ("200 ok", True)}
        assert ends == dict.fromkeys(ENDLESS, (TOO_LARGE, True)) | others


async def test_requests_that_follow_one_another_unasked_are_answered_in_order_up_to_a_bound(settings: Settings) -> None:
    async with listening(settings) as connect:
        some, many = await connect(GET * 5 + GET.replace(b"/health/live", b"/nothing")), await connect(GET * 18)
        assert [await some.status() for _ in range(6)] == ["200 ok"] * 5 + ["404 not found"]
        assert await many.until_closed() == b""


async def test_a_body_that_would_be_lost_to_another_protocol_is_refused(settings: Settings) -> None:
    async with listening(settings) as connect:
        client = await connect(
            b"\r\n\r\n" + HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert "Upgrade" in (await client.problem())["detail"]


async def test_a_body_without_a_length_is_read_up_to_the_limit_and_answered_before_it_ends(settings: Settings) -> None:
    async with listening(settings) as connect:
        client = await connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"2710\r\n" + b" " * 10_000 + b"\r\n"
        for _ in range(LIMIT // 10_000 + 2):
            await client.send(chunk)
        assert await client.status() == TOO_LARGE
        await client.until_closed()


async def test_beyond_the_most_connections_a_new_one_is_turned_away_and_the_others_go_on(settings: Settings) -> None:
    async with listening(settings, most=2) as connect:
        first, second, third = await connect(GET), await connect(), await connect()
        assert await third.status() == "503 service unavailable"
        assert await first.status() == "200 ok"
        await second.send(GET)
        assert await second.status() == "200 ok"


class Reader:
    """Reads an event stream only when it is told to."""

    def __init__(self, url: str, path: str, **options: int) -> None:
        self._socket = socket.socket()
        for name, value in options.items():
            self._socket.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        self._socket.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        self._socket.setblocking(False)

    async def rest(self, *, pause_s: float = 0) -> list[int]:
        """The ids of all whole events, once the connection is closed."""
        heard = b""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                while part := await asyncio.get_running_loop().sock_recv(self._socket, 65_536):
                    heard += part
                    await asyncio.sleep(pause_s)
        self._socket.close()
        events = heard.replace(b"\r\n", b"").split(b"\n\n")[:-1]
        return [int(event.rpartition(b"id: ")[2].partition(b"\n")[0]) for event in events]


async def test_a_reader_that_takes_nothing_is_cut_off_and_one_that_takes_little_gets_all(
    settings: Settings, provider: Provider
) -> None:
    provider.will(says("a" * 900_000), says("I am here."))
    connection = partial(TimedConnection, read_timeout_s=PATIENCE_S, max_connections=100, write_stall_s=SHORT_S)
    async with (
        serving(create_app(settings), http=connection) as url,
        httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as http,
        awaiting("slow_reader_dropped") as dropped,
    ):
        client = Client(http)
        session = await client.new_session()
        turn = (await client.chat(session, "hello"))["turn_id"]
        whole = [sent.id for sent in await replayed(client, session, turn)]
        path = f"/sessions/{session}/turns/{turn}/events"
        deaf, slow = Reader(url, path, SO_RCVBUF=4096), Reader(url, path)
        reading = asyncio.create_task(slow.rest(pause_s=SHORT_S / 8))
        assert (await client.chat(await client.new_session(), "hello"))["message"]["content"] == "I am here."
        async with asyncio.timeout(PATIENCE_S):
            await dropped.wait()
        heard = await deaf.rest()
        assert await reading == whole
        assert [*heard, *(sent.id for sent in await replayed(client, session, turn, after=heard[-1]))] == whole
        assert len(heard) < len(whole)
