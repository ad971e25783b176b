"""`segue chat` as somebody sits before it: a process on a terminal of its own, read and written while it runs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass

from tests.support.commands import ROOT, python, surroundings

CTRL_C = "\x03"
PATIENCE_S = 40
CHAT = ("-m", "segue", "chat")
# Ctrl-C is deaf in what a shell runs in the background, and in its children: not on a terminal of its own.
ON_A_TERMINAL = """
import os, pty, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""


@dataclass(slots=True)
class Seat:
    process: asyncio.subprocess.Process
    seen: str = ""

    async def until(self, text: str) -> str:
        """What came before this text, and after what was waited for last."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.seen:
                more = await self.process.stdout.read(4096)
                assert more, f"it ended without {text!r}: {self.seen}"
                self.seen += more.decode()
        before, _, self.seen = self.seen.partition(text)
        return before

    def types(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())

    async def presses(self, key: str, text: str = "") -> None:
        """Until this text comes, or with none until it has gone: a signal just before a wait for input may be lost."""
        async with asyncio.timeout(PATIENCE_S):
            while self.process.returncode is None:
                self.types(key)
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await (self.until(text) if text else self.process.wait())
                        return

    async def left(self) -> int:
        """The exit code, once it has gone because there is no more to read."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            rest, _ = await self.process.communicate()
        self.seen += rest.decode()
        code = self.process.returncode
        assert code is not None
        return code


def on_a_terminal(*arguments: str, command: str = "chat", **environment: str) -> AbstractAsyncContextManager[Seat]:
    segue = (sys.executable, "-m", "segue", command)
    return _seated(sys.executable, "-c", ON_A_TERMINAL, *segue, *arguments, **environment)


def through_pipes(*arguments: str, **environment: str) -> AbstractAsyncContextManager[Seat]:
    return _seated(*python(), *CHAT, *arguments, **environment)


@asynccontextmanager
async def _seated(*program: str, **environment: str) -> AsyncIterator[Seat]:
    process = await asyncio.create_subprocess_exec(
        *program,
        cwd=ROOT,
        env=surroundings({"TERM": "xterm", **environment}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Seat(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
