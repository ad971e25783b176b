"""An MCP server as a child process that speaks over its stdin and stdout, and the last lines of its stderr.

The SDK's client joins its whole buffer again at every 64 kB (a 30 MB answer took 20 s), has no size limit and logs each
unreadable line. This one reads bounded lines, raises McpServerGone, and ends the whole process group when it is left.
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from segue.domain.redaction import is_recognisable, without, without_secret_texts
from segue.domain.visible import visible
from segue.log import log
from segue.mcp.budget import MESSAGE_LIMIT_BYTES, Budget, McpServerGone, light
from segue.mcp.call_failures import ended, not_started
from segue.mcp.mcp_config import McpServerConfig

MAX_BYTES: Final = 8_000
MAX_LINE_CHARS: Final = 500
_LINE_BYTES: Final = 2_000  # a secret that is cut here is behind what is shown
_STEP_S: Final = 1.0
_UNREADABLE_LINES: Final = 100
_CHUNK: Final = 64 * 1024
_LAST_WORDS_S: Final = 0.2
_STDERR_CHUNKS_LOGGED: Final = 100


class Stderr:
    """A server's stderr, over all its children. Lines are kept as they came: a secret is found in whole lines only."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = frozenset[str]()
        self.hide(secrets)
        self._lines: deque[bytes] = deque(maxlen=50)
        self._of_child = 0
        self._begun = b""
        self._skips = False  # the rest of a line that is too long

    def hide(self, secrets: Iterable[str]) -> None:
        """Hides these texts, whenever they were written."""
        whole = frozenset(filter(None, secrets))
        self._secrets |= whole | {part for each in whole for part in each.splitlines() if is_recognisable(part)}

    def child_starts(self) -> None:
        self.end_line()
        self._of_child = 0

    def add(self, chunk: bytes) -> None:
        *ended, begun = chunk.split(b"\n")
        for part in ended:
            self._begun += part
            self.end_line()
        self._begun += begun
        if len(self._begun) > _LINE_BYTES:
            self.end_line()
            self._skips = True

    def lines(self) -> list[str]:
        texts = (without(line.decode(errors="replace"), self._secrets) for line in self._lines)
        return [visible(without_secret_texts(text).strip())[:MAX_LINE_CHARS] for text in texts]

    def of_child(self, at_most: int) -> list[str]:
        """Returns the last lines of the child that was started last."""
        kept = min(self._of_child, at_most)
        return self.lines()[-kept:] if kept else []

    def end_line(self) -> None:
        line, self._begun = self._begun, b""
        if self._skips:
            self._skips = False
        elif line.strip():
            self._lines.append(line[:_LINE_BYTES])
            self._of_child += 1
        while sum(map(len, self._lines)) > MAX_BYTES:
            self._lines.popleft()


Incoming = SessionMessage | Exception


class _Child(SubprocessStreamProtocol):
    """The child's pipes, and its exit as an event: `wait()` would wait for pipes that a grandchild holds open."""

    transport: asyncio.SubprocessTransport
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self) -> None:
        super().__init__(_CHUNK, asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()

    async def exits_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self.exited.wait()
        return self.exited.is_set()


@asynccontextmanager
async def stdio_transport(
    server: str, config: McpServerConfig, budget: Budget, stderr: Stderr
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]]:
    """Runs the server's command while the context is held. It inherits PATH, HOME and a few more variables only. Raises
    McpServerGone (in a group) if the command cannot be started, ends, prints 100 lines in a row that are not MCP, or
    sends a message over 32 MiB or more than `budget` allows.
    """
    child = await _start(config)
    stderr.child_starts()
    silent = anyio.Event()
    to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](64)
    try:
        async with to_session, incoming, outgoing, from_session, anyio.create_task_group() as pumps:
            pumps.start_soon(_read_messages, child, to_session, budget, silent)
            pumps.start_soon(_write_messages, from_session, child.stdin)
            pumps.start_soon(_read_stderr, child.stderr, server, stderr, budget, silent)
            yield incoming, outgoing
            pumps.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(child)


async def _start(config: McpServerConfig) -> _Child:
    program = config.command or ""
    env = get_default_environment() | {name: value.get_secret_value() for name, value in config.env.items()}
    try:
        start = partial(asyncio.get_running_loop().subprocess_exec, _Child, program, *config.args, env=env)
        transport, child = await start(stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=config.cwd, start_new_session=True)
    except (OSError, ValueError) as error:
        raise McpServerGone(not_started(program, config.cwd, env.get("PATH", os.defpath), error)) from None
    child.transport = transport
    return child


async def _read_messages(
    child: _Child, to_session: MemoryObjectSendStream[Incoming], budget: Budget, silent: anyio.Event
) -> None:
    unreadable = 0
    async with to_session:
        async for line in _lines(child.stdout, budget):
            if budget.skips(line):
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(await light(line), by_name=False)
            except ValueError:
                unreadable += 1
                if unreadable >= _UNREADABLE_LINES:
                    why = "it prints something other than MCP on its stdout; let it write its log to stderr"
                    raise McpServerGone(why) from None
                continue
            unreadable = 0  # a server may end each message with two line ends, or print a line at times
            try:
                await to_session.send(SessionMessage(message))
            except anyio.BrokenResourceError:
                return  # the session has left
        await anyio.sleep(0.01)  # the last answer has to reach its caller before this error cancels the call
        if await child.exits_within(_STEP_S):
            with anyio.move_on_after(_LAST_WORDS_S):  # a grandchild may hold its stderr open
                await silent.wait()
        code = child.transport.get_returncode()
        raise McpServerGone("it closed its stdout; it is started again" if code is None else ended(code), code or 0)


async def _lines(stdout: asyncio.StreamReader, budget: Budget) -> AsyncIterator[bytes]:
    line = bytearray()
    while chunk := await stdout.read(_CHUNK):
        budget.read(len(chunk))
        begun, *more = chunk.split(b"\n")
        line += begun
        if len(line) > MESSAGE_LIMIT_BYTES:
            raise McpServerGone(f"it sent a message over {MESSAGE_LIMIT_BYTES // 1024**2} MiB")
        for begun in more:
            yield bytes(line)
            line = bytearray(begun)


async def _write_messages(from_session: MemoryObjectReceiveStream[SessionMessage], stdin: asyncio.StreamWriter) -> None:
    # A closed pipe closes `from_session`, so senders fail at once; the reader raises the reason. For a pipe that the
    # server has just closed uvloop raises RuntimeError.
    with suppress(OSError, RuntimeError):
        async with from_session:
            async for item in from_session:
                stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()


async def _read_stderr(
    stream: asyncio.StreamReader, server: str, stderr: Stderr, budget: Budget, silent: anyio.Event
) -> None:
    chunks = 0
    while chunk := await stream.read(2000):
        budget.read(len(chunk))
        stderr.add(chunk)
        chunks += 1
        if chunks <= _STDERR_CHUNKS_LOGGED:
            log.debug("mcp_server_stderr", server=server, lines=stderr.of_child(chunk.count(b"\n") + 1))
    stderr.end_line()
    silent.set()


async def _end(child: _Child) -> None:
    """Closes stdin, terminates, kills, a second apart; the kill also ends children left in the process group."""
    try:
        child.stdin.close()
        if not await child.exits_within(_STEP_S):
            _signal(child.transport, signal.SIGTERM)
            await child.exits_within(_STEP_S)
    finally:
        _signal(child.transport, signal.SIGKILL)
    await child.exits_within(_STEP_S)
    child.transport.close()  # a grandchild that left the group may hold the pipes open
    await asyncio.sleep(0)


def _signal(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), number)
