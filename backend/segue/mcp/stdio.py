"""An MCP server as a child process, spoken to over its stdin and stdout.

The SDK's own stdio client re-joins its whole buffer at every 64 kB (a 30 MB answer took 20 s), has no size limit and
writes each unreadable line to the log with a traceback; this one reads lines, bounded. A server that ends or talks
nonsense raises `McpServerGone` into whoever holds the transport; on leaving, the whole process group is ended.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

MESSAGE_LIMIT_BYTES: Final = 32 * 1024 * 1024
_STEP_S: Final = 1.0
_POLL_S: Final = 0.01
_NOISE_LIMIT: Final = 100
_QUEUED_MESSAGES: Final = 64
_STDERR_CHUNK: Final = 2000
_STDERR_CHUNKS_LOGGED: Final = 100

Incoming = SessionMessage | Exception
_Readers = tuple[asyncio.StreamReader, asyncio.StreamReader]
StdioStreams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


class McpServerGone(Exception):
    """The connection is over; the message says why in words that may be shown to anyone."""


@dataclass(frozen=True, slots=True)
class StdioCommand:
    """`env` is added to the few variables a child may inherit (PATH, HOME, …): Segue's own secrets stay here."""

    program: str
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None


@dataclass(frozen=True, slots=True)
class _Child:
    process: Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader


@asynccontextmanager
async def stdio_transport(command: StdioCommand, log_stderr: Callable[[str], None]) -> AsyncIterator[StdioStreams]:
    """Runs the command for as long as the context is held.

    Raises McpServerGone (in a group) when it cannot be started, ends, prints 100 lines that are not MCP or sends a
    message over 32 MiB.
    """
    child = await _start(command)
    to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](_QUEUED_MESSAGES)
    try:
        async with to_session, incoming, outgoing, from_session, anyio.create_task_group() as pumps:
            pumps.start_soon(_read_messages, child, to_session)
            pumps.start_soon(_write_messages, from_session, child.stdin)
            pumps.start_soon(_read_stderr, child.stderr, log_stderr)
            yield incoming, outgoing
            pumps.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(child)


async def _start(command: StdioCommand) -> _Child:
    try:
        process = await asyncio.create_subprocess_exec(
            command.program,
            *command.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=get_default_environment() | dict(command.env),
            cwd=command.cwd,
            limit=MESSAGE_LIMIT_BYTES,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a NUL in its command line"
        raise McpServerGone(f"{command.program} cannot be started: {reason}") from None
    stdin, readers = process.stdin, (process.stdout, process.stderr)
    return _Child(process, cast("asyncio.StreamWriter", stdin), *cast("_Readers", readers))


async def _read_messages(child: _Child, to_session: MemoryObjectSendStream[Incoming]) -> None:
    noise = 0
    async with to_session:
        while line := await _line(child.stdout):
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                noise += 1
                if noise >= _NOISE_LIMIT:
                    raise McpServerGone("it prints something other than MCP on its stdout") from None
                continue
            try:
                await to_session.send(SessionMessage(message))
            except anyio.BrokenResourceError:
                return  # the session has left
        # What was read last reaches its caller before this error cancels the call.
        await anyio.sleep(_POLL_S)
        await _ended_within(child.process, _STEP_S)
        code = child.process.returncode
        raise McpServerGone("it closed its stdout" if code is None else f"the process ended with exit code {code}")


async def _line(stdout: asyncio.StreamReader) -> bytes:
    try:
        return await stdout.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return b""
    except asyncio.LimitOverrunError:
        raise McpServerGone(f"it sent a message over {MESSAGE_LIMIT_BYTES // 1024**2} MiB") from None


async def _write_messages(from_session: MemoryObjectReceiveStream[SessionMessage], stdin: asyncio.StreamWriter) -> None:
    # A closed pipe closes `from_session`: senders hear of it at once, and the reader knows the reason.
    with suppress(OSError):
        async with from_session:
            async for item in from_session:
                stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()


async def _read_stderr(stderr: asyncio.StreamReader, log_stderr: Callable[[str], None]) -> None:
    chunks = 0
    while chunk := await stderr.read(_STDERR_CHUNK):
        chunks += 1
        if chunks <= _STDERR_CHUNKS_LOGGED:
            log_stderr(chunk.decode(errors="replace").rstrip())


async def _end(child: _Child) -> None:
    """Asks (closed stdin), terminates, kills, one second each; the kill also sweeps children left in the group."""
    process = child.process
    try:
        child.stdin.close()
        if not await _ended_within(process, _STEP_S):
            _signal(process, force=False)
            await _ended_within(process, _STEP_S)
    finally:
        _signal(process, force=True)
    await _ended_within(process, _STEP_S)
    # A grandchild that left the group may hold the pipes open; nothing public closes our ends of them.
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
    await asyncio.sleep(0)


async def _ended_within(process: Process, seconds: float) -> bool:
    # Not process.wait(): it also waits for the pipes, which a grandchild may hold.
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110 (nothing signals the exit alone)
            await anyio.sleep(_POLL_S)
    return process.returncode is not None


def _signal(process: Process, *, force: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL if force else signal.SIGTERM)
