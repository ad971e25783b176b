"""Secrets in the files of a folder, as orchestrators mount them: read at the start, and again when they change.

A file is named after a setting or a variable of mcp.json. Which of them there are is not known here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

import structlog

from segue.domain.redaction import is_recognisable
from segue.log import never_log
from segue.watch import Watch

MAX_BYTES = 65_536

log = structlog.get_logger()


def read_secrets(folder: Path | None) -> dict[str, str]:
    """Returns the texts of the files by name in upper case; leaves out those that are empty or cannot be read."""
    found = {}
    with suppress(OSError):
        for path in folder.expanduser().iterdir() if folder else ():
            with suppress(OSError, UnicodeDecodeError):
                if not path.name.startswith(".") and path.is_file() and path.stat().st_size <= MAX_BYTES:
                    found[path.name.upper()] = path.read_text("utf-8-sig").strip()
    return {name: text for name, text in found.items() if text}


class LiveKey:
    """A key as its file has it now. `seen` holds every value it has had; `never_told` may hold other secrets too."""

    def __init__(self, value: str, look: Callable[[], Awaitable[None]]) -> None:
        self.value = value
        self.seen = {value}
        self.never_told = {value}
        self._look = look

    def renew(self, value: str) -> None:
        self.seen.add(value)
        self.never_told.add(value)
        self.value = value

    async def has_replaced(self, refused: str) -> bool:
        """Reads the file at once. Returns whether it has another key than the one that was refused."""
        await self._look()
        return self.value != refused


class SecretFiles:
    """The secrets in the files. Enter it to keep them current; the secret of a file that is deleted stays."""

    def __init__(self, folder: Path | None) -> None:
        self.secrets: Mapping[str, str] = read_secrets(folder)
        self._folder = folder
        self._keys: dict[str, LiveKey] = {}
        self._listeners: list[Callable[[], Awaitable[None]]] = []
        self._watch = AsyncExitStack()

    def follow(self, name: str, value: str | None) -> LiveKey | None:
        """Returns the key of this name if the setting has its `value` from a file, and None if from elsewhere."""
        if value is None or self.secrets.get(name) != value:
            return None
        return self._keys.setdefault(name, LiveKey(value, self.look))

    def on_change(self, listener: Callable[[], Awaitable[None]]) -> None:
        self._listeners.append(listener)

    async def __aenter__(self) -> Self:
        if self._folder is not None:
            await self._watch.enter_async_context(Watch("the files of secrets", self.look))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._watch.aclose()

    async def look(self) -> None:
        found = {**self.secrets, **await asyncio.to_thread(read_secrets, self._folder)}
        changed = sorted(name for name, value in found.items() if self.secrets.get(name) != value)
        if not changed:
            return
        never_log(found[name] for name in changed if is_recognisable(found[name]))
        self.secrets = found
        for name in changed:
            if name in self._keys:
                self._keys[name].renew(found[name])
        log.info("secrets_read", names=changed)
        for listener in self._listeners:
            await listener()
