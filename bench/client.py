"""The load generator: just enough HTTP/1.1 on asyncio streams, since it shares the cores with what it measures."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import orjson

from bench.provider import MESSAGE

TIMEOUT_S = 60
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)


class Refused(Exception):
    """The status is not 2xx, or a stream was asked for and none came."""


@dataclass(slots=True)
class Connection:
    """One request at a time to a server on this machine, over one connection, renewed if the server has closed it."""

    port: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def get(self, path: str) -> Any:
        return orjson.loads(await self.text(path))

    async def text(self, path: str) -> bytes:
        return await self._answer("GET", path)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        return orjson.loads(await self._answer("POST", path, orjson.dumps(body)))

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yields the parts of an answer as they arrive."""
        head = await self._ask("POST", path, orjson.dumps(body))
        if b"text/event-stream" not in head.lower():
            raise Refused(b"".join([part async for part in self._parts(head)]).decode(errors="replace"))
        async for part in self._parts(head):
            yield part

    async def _answer(self, method: str, path: str, body: bytes = b"") -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            head = await self._ask(method, path, body)
            answer = b"".join([part async for part in self._parts(head)])
        if head[9:10] != b"2":
            raise Refused(f"{method} {path}: {head[9:12].decode()} {answer.decode(errors='replace')}")
        return answer

    async def _ask(self, method: str, path: str, body: bytes) -> bytes:
        if self.reader.at_eof():
            self.writer.close()
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return await self.reader.readuntil(b"\r\n\r\n")

    async def _parts(self, head: bytes) -> AsyncIterator[bytes]:
        if length := _LENGTH.search(head):
            yield await self.reader.readexactly(int(length[1]))
        elif _CHUNKED.search(head):
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    connection = Connection(port, *await asyncio.open_connection("127.0.0.1", port))
    try:
        yield connection
    finally:
        connection.writer.close()


@dataclass(slots=True)
class Session:
    """A session in which one message is sent when the last one has been answered."""

    connection: Connection
    id: str

    @classmethod
    async def new(cls, connection: Connection) -> Self:
        return cls(connection, (await connection.post("/sessions", {}))["id"])

    async def turn(self, message: str = MESSAGE, **options: Any) -> Any:
        return await self.connection.post(f"/sessions/{self.id}/chat", {"message": message, **options})

    async def timed_turn(self, message: str = MESSAGE) -> float:
        """Returns milliseconds."""
        started = time.perf_counter()
        await self.turn(message)
        return (time.perf_counter() - started) * 1000

    async def first_token(self) -> float:
        """Returns the milliseconds until the first words of a streamed answer. Raises Refused if it is not streamed."""
        started, came, parts = time.perf_counter(), 0.0, b""
        body = {"message": MESSAGE, "stream": True}
        async with asyncio.timeout(TIMEOUT_S):
            async for part in self.connection.stream(f"/sessions/{self.id}/chat", body):
                parts += part
                if not came and b"TEXT_MESSAGE_CONTENT" in parts:
                    came = time.perf_counter()
        if not came:
            raise RuntimeError(f"a stream without words: {parts.decode(errors='replace')}")
        return (came - started) * 1000


@asynccontextmanager
async def conversations(
    ports: Sequence[int], count: int, kind: type[Session] = Session
) -> AsyncIterator[list[Session]]:
    """Yields sessions that have had a turn, spread evenly over the processes that listen on `ports`."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(ports[index % len(ports)])) for index in range(count)]
        sessions = [await kind.new(connection) for connection in connections]
        await asyncio.gather(*(session.turn() for session in sessions))
        yield sessions


async def turns_of(sessions: Sequence[Session], *, seconds: float) -> tuple[float, list[float]]:
    """Lets all sessions talk at once. Returns how many turns were done in `seconds`, of the last ones the part that was
    done by then, and the milliseconds of all turns.
    """
    deadline = time.perf_counter() + seconds
    latencies: list[float] = []
    done = 0.0

    async def talk(session: Session) -> None:
        nonlocal done
        while (left_s := deadline - time.perf_counter()) > 0:
            latencies.append(await session.timed_turn())
            done += min(1, left_s * 1000 / latencies[-1])

    await asyncio.gather(*map(talk, sessions))
    return done, latencies
