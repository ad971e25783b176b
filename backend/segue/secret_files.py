"""Secrets in the files of a folder, as orchestrators mount them, each named after a setting or a variable of mcp.json;
read again when they change. Also the keys that one lists, of which a refused one is left out for a while.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from segue.domain.redaction import is_recognisable
from segue.log import log, never_log
from segue.watch import Watch

MAX_BYTES = 65_536

Look = Callable[[], Awaitable[None]]


def read_secrets(folder: Path | None) -> dict[str, str]:
    """Returns the texts of the files by name in upper case; leaves out those that are empty or cannot be read."""
    found = {}
    with suppress(OSError):
        for path in folder.expanduser().iterdir() if folder else ():
            with suppress(OSError, UnicodeDecodeError):
                if not path.name.startswith(".") and path.is_file() and path.stat().st_size <= MAX_BYTES:
                    found[path.name.upper()] = path.read_text("utf-8-sig").strip()
    return {name: text for name, text in found.items() if text}


def listed(secrets: str) -> list[str]:
    """Returns the secrets of a text, between commas or blanks."""
    return secrets.replace(",", " ").split()


class LiveKeys:
    """The keys of a provider, as the setting or the file called `name` lists them now, tried in their order. `seen`
    holds every key that there was; `never_told` may hold other secrets too. `look` reads the file. `refusals`: by key.
    """

    def __init__(
        self, name: str, text: str, look: Look | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.seen: set[str] = set()
        self.never_told: set[str] = set()
        self._look = look
        self._clock = clock
        self.refusals: dict[str, tuple[float, str]] = {}
        self.renew(text)

    def renew(self, text: str) -> None:
        """Those that stay keep their health."""
        self.all = tuple(dict.fromkeys(listed(text))) or (text,)
        self.seen.update(self.all)
        self.never_told.update(self.all)
        self.refusals = {key: left for key, left in self.refusals.items() if key in self.all}

    @property
    def value(self) -> str:
        """The first key that is not left out; if all are, the one that comes back first."""
        if not self.refusals:
            return self.all[0]
        return min(self.all, key=lambda key: max(self.refusals.get(key, (0.0, ""))[0], self._clock()))

    def left_out(self) -> dict[int, str]:
        """Returns why keys are left out now, by their places in the list, from 1."""
        return {self.all.index(key) + 1: why for key, (until, why) in self.refusals.items() if until > self._clock()}

    async def refused(self, key: str, why: str, seconds: float) -> int:
        """Leaves a key out for these seconds, and reads the file at once. Returns its place in the list, 0 if none."""
        place = self.all.index(key) + 1 if key in self.all else 0
        if place:
            self.refusals[key] = self._clock() + seconds, why
        if self._look is not None:
            await self._look()
        return place


class SecretFiles(Watch):
    """The secrets in the files. Enter it to keep them current; the secret of a file that is deleted stays."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__("the files of secrets", self.look)
        self.secrets: Mapping[str, str] = read_secrets(folder)
        self._first = self.secrets
        self._folder = folder
        self._keys: dict[tuple[str, str], LiveKeys] = {}
        self._listeners: list[Look] = []

    def keys(self, name: str, text: str) -> LiveKeys:
        """Returns the keys of this setting, shared by all that ask: a file's, if its `text` is from there."""
        if (name, text) not in self._keys:
            is_of_file = text == self._first.get(name)
            self._keys[name, text] = LiveKeys(name, *((self.secrets[name], self.look) if is_of_file else (text,)))
        return self._keys[name, text]

    def on_change(self, listener: Look) -> None:
        self._listeners.append(listener)

    async def __aenter__(self) -> Self:
        return self if self._folder is None else await super().__aenter__()

    async def look(self) -> None:
        found = {**self.secrets, **await asyncio.to_thread(read_secrets, self._folder)}
        changed = sorted(name for name, value in found.items() if self.secrets.get(name) != value)
        if not changed:
            return
        never_log(found[name] for name in changed if is_recognisable(found[name]))
        for (name, text), keys in self._keys.items():
            if name in changed and text == self._first.get(name):
                never_log(filter(is_recognisable, listed(found[name])))
                keys.renew(found[name])
        self.secrets = found
        log.info("secrets_read", names=changed)
        for listener in self._listeners:
            await listener()
