"""Secrets in the files of a folder, as orchestrators mount them: read at the start, and anew when they change.

A file has the name of a setting or of a variable in mcp.json. Knows neither: it is given a folder, and asked for names.
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
    """Returns the texts of the files by their names in upper case, without what cannot be read or is empty."""
    found = {}
    with suppress(OSError):
        for path in folder.expanduser().iterdir() if folder else ():
            with suppress(OSError, UnicodeDecodeError):
                if not path.name.startswith(".") and path.is_file() and path.stat().st_size <= MAX_BYTES:
                    found[path.name.upper()] = path.read_text("utf-8-sig").strip()
    return {name: text for name, text in found.items() if text}


class LiveKey:
    """A key as its file has it now. `seen` are all that it has been; `never_told` may have more than these."""

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
        """Whether there is another one than the one that was refused. Looks into the file at once."""
        await self._look()
        return self.value != refused


class SecretFiles:
    """What the files say. Enter it to look again and again; a file that is gone keeps what it said."""

    def __init__(self, folder: Path | None) -> None:
        self.secrets: Mapping[str, str] = read_secrets(folder)
        self._folder = folder
        self._keys: dict[str, LiveKey] = {}
        self._tell: list[Callable[[], Awaitable[None]]] = []
        self._watch = AsyncExitStack()

    def follow(self, name: str, value: str | None) -> LiveKey | None:
        """Returns the key of this name if that is what a setting has from here; None if it has it from elsewhere."""
        if value is None or self.secrets.get(name) != value:
            return None
        return self._keys.setdefault(name, LiveKey(value, self.look))

    def on_change(self, tell: Callable[[], Awaitable[None]]) -> None:
        self._tell.append(tell)

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
        for tell in self._tell:
            await tell()
