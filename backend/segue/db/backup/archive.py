"""What a backup is as a file: a zip archive with a member for each table, as COPY writes it, and a manifest.

Nothing is read or written whole. Knows no database.
"""

import hashlib
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from pydantic import TypeAdapter, ValidationError

from segue.domain.errors import AppError

FORMAT: Final = 1
COMPRESSION: Final = 1  # of 9: a fifth larger than at 6, in a third of the time
_MANIFEST: Final = "manifest.json"
_MANIFEST_BYTES: Final = 1_000_000
_CHUNK_BYTES: Final = 262_144
# zipfile's NotImplementedError is of a compression or a version that it does not know.
_DAMAGED: Final = (BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, ValidationError, zlib.error)


@dataclass(frozen=True, slots=True)
class TableCopy:
    """`sequences` are the last numbers that were given out, by column. `size_bytes` and `sha256` are of the member."""

    columns: tuple[str, ...]
    rows: int
    size_bytes: int
    sha256: str
    sequences: dict[str, int]


@dataclass(frozen=True, slots=True)
class Manifest:
    """`tables` in the order in which they can be filled; `revision` is that of the schema, `version` of the release."""

    format: int
    version: str
    revision: str
    made_at: datetime
    tables: dict[str, TableCopy]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())


_manifests: Final = TypeAdapter(Manifest)


class Member:
    """A table on its way into the archive or out of it."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def count(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        self._digest.update(chunk)


@contextmanager
def new_archive(file: IO[bytes]) -> Iterator[ZipFile]:
    with ZipFile(file, "w", ZIP_DEFLATED, compresslevel=COMPRESSION) as archive:
        yield archive


def add_manifest(archive: ZipFile, manifest: Manifest) -> None:
    archive.writestr(_MANIFEST, _manifests.dump_json(manifest, indent=2))


@contextmanager
def opened_archive(path: Path) -> Iterator[tuple[ZipFile, Manifest]]:
    """Raises AppError `backup_unreadable`, also for what is found to be damaged in the block."""
    try:
        with ZipFile(path) as archive:
            with archive.open(_MANIFEST) as file:
                manifest = _manifests.validate_json(file.read(_MANIFEST_BYTES))
            if manifest.format != FORMAT:
                raise unreadable(path, f"its format is {manifest.format}, and this release reads {FORMAT}")
            yield archive, manifest
    except _DAMAGED as error:
        raise unreadable(path, "it is damaged, or no backup") from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise unreadable(path, error.strerror or "it cannot be opened") from error


async def chunks_of(archive: ZipFile, table: str, member: Member) -> AsyncIterator[bytes]:
    """Yields the member of a table, and counts it. The library checks it against its CRC at the end."""
    with archive.open(table) as file:
        while chunk := file.read(_CHUNK_BYTES):
            member.count(chunk)
            yield chunk


def unreadable(path: Path | str, why: str) -> AppError:
    title = "The backup cannot be read"
    return AppError("backup_unreadable", status=500, title=title, detail=f"{path} cannot be restored: {why}.")
