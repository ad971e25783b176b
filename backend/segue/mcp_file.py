"""Follows mcp.json: a change reaches the servers it concerns; a file that cannot be used changes nothing."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from segue.domain.errors import AppError
from segue.log import log, never_log
from segue.mcp.mcp_config import McpConfig, read_mcp_config
from segue.mcp.mcp_servers import McpServers
from segue.watch import Watch

RESTLESS: Final = 5  # looks in a row that find the file changed, before it is refused

_Seen = tuple[object, ...]


class McpFile:
    """The file at `path`; `secrets` returns the values of its variables. Call `read` once, then enter `followed_by`. A
    change is applied once two looks in a row find the same file: none half-written. A deleted file is refused too.
    """

    def __init__(self, path: Path, secrets: Callable[[], Mapping[str, str]]) -> None:
        self._path = path
        self._secrets = secrets
        self._files: tuple[Path, ...] = (path,)
        self._taken: _Seen | None = None
        self._last: _Seen | None = None
        self._changes = 0

    def read(self) -> McpConfig:
        """Returns what the file says. Raises AppError `mcp_config_invalid`."""
        before = _seen((self._path,))
        config = read_mcp_config(self._path, self._secrets())
        self._files = (self._path, *config.files)
        self._last = _seen(self._files)
        self._taken = self._last if self._last[:1] == before else None
        never_log(config.never_logged)
        if config.ignored:
            log.info("mcp_config_ignored", keys=config.ignored)
        return config

    def followed_by(self, servers: McpServers) -> Watch:
        self._servers = servers
        self._watch = Watch("mcp.json", self.look)
        return self._watch

    async def secrets_changed(self) -> None:
        if self._last is None or self._last[0] is not None:  # else there is no file whose variables they could be
            self._taken = None
            self._watch.wake()

    async def look(self) -> None:
        seen = await asyncio.to_thread(_seen, self._files)
        rests, self._last = seen == self._last, seen
        self._changes = 0 if rests else self._changes + 1
        if self._changes == RESTLESS:
            self._taken = None
            self._refuse(f"{self._path} changes all the time: it is read once it rests")
        elif rests and seen != self._taken:
            await self._take(seen)

    async def _take(self, seen: _Seen) -> None:
        if seen[0] is None:
            self._taken = seen
            self._refuse(f"{self._path} is gone: put it back, without servers if there are to be none")
            return
        try:
            config = await asyncio.to_thread(self.read)
            if self._taken is None or self._taken[0] != seen[0]:
                return  # it was changed meanwhile
            await self._servers.apply(config)
        except AppError as error:
            self._taken = seen
            self._refuse(error.detail)
        else:
            self._servers.refused = None

    def _refuse(self, why: str) -> None:
        if why != self._servers.refused:
            log.warning("mcp_config_refused", detail=why)
        self._servers.refused = why


def _seen(files: tuple[Path, ...]) -> _Seen:
    return tuple(map(_state_of, files))


def _state_of(file: Path) -> object:
    """Returns a value that differs once the file, its permissions or the target of a link change; None for no file."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
