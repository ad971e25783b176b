"""Recordings of a share of the sessions, for `segue rehearse`. RECORD_SAMPLE is the operator's consent to them.

A session's id decides whether it is in the sample, in every process alike. The process that answered writes its file,
without secrets. Each process drops from its folder what is not in the sample any more, so that 0 empties it.
"""

import asyncio
import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from segue.db.engine import Database
from segue.domain.errors import AppError
from segue.domain.ids import Clock
from segue.domain.recording import RecordedSettings, recording_text
from segue.history.export import load_conversation, make_recording
from segue.memory.session_store import those_there
from segue.tools.availability import ToolAvailability

MAX_BYTES: Final = 2_000_000  # of a file: a longer session stays as it was recorded last
MAX_FILES: Final = 500  # the oldest go first
MAX_RESULT_BYTES: Final = 20_000
EVERY_S: Final = 10.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Samples:
    """Writes the sampled ones of the sessions that `note` is given, a file for each in `folder`, when `look` is called.
    `share` is of all sessions, from 0 to 1.
    """

    folder: Path
    share: float
    database: Database
    tools: ToolAvailability
    settings: RecordedSettings
    clock: Clock
    due: dict[str, tuple[str, Collection[str]]] = field(default_factory=dict)

    def note(self, owner: str, groups: Collection[str], session_id: str) -> None:
        if self._is_in(session_id):
            self.due[session_id] = owner, groups

    def _is_in(self, session_id: str) -> bool:
        return int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:6]) < self.share * 2**48

    async def look(self) -> None:
        work = [partial(self._write, *self.due.pop(session_id), session_id) for session_id in list(self.due)]
        for each in (*work, partial(self._drop)):
            try:
                await each()
            except (AppError, OSError) as error:
                log.warning("sample_failed", error=str(error))

    async def _write(self, owner: str, groups: Collection[str], session_id: str) -> None:
        """With the definition of every tool that was offered: another model may call others."""
        async with self.database.read_only() as connection:
            conversation = await load_conversation(
                connection, owner, session_id, max_result_bytes=MAX_RESULT_BYTES, now=self.clock()
            )
        tools = self.tools.tools_for(owner, groups)
        offered = {name for name, tool in tools.items() if tool.spec.source != "builtin"}
        made = await asyncio.to_thread(make_recording, conversation, tools, self.settings, offered=offered)
        if len(text := recording_text(made).encode()) <= MAX_BYTES:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # so that no other account reads them
            part = self.folder / f"{session_id}.{os.getpid()}"
            part.write_bytes(text)
            part.replace(part.with_suffix(".json"))

    async def _drop(self) -> None:
        files = sorted(self.folder.glob("ses_*"), key=lambda file: file.stat().st_mtime)
        async with self.database.read_only() as connection:
            there = await those_there(connection, [file.stem for file in files])
        kept = [file for file in files if file.stem in there and self._is_in(file.stem)][-MAX_FILES:]
        for file in set(files).difference(kept):
            file.unlink(missing_ok=True)
