"""Files of a session: bytes and text. Owns `attachments`; every statement for a user has the owner in its predicate."""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import orjson
from anyio import CapacityLimiter, to_thread
from sqlalchemy import Select, bindparam, case, delete, func, insert, select, update

from segue.db.engine import Connection, Database
from segue.db.models import attachments, sessions, tool_calls, tool_results
from segue.db.rows import OWNER_LOCK, Position, newest_first, older_than, readable, reader
from segue.domain.errors import NotFound, app_error, existing
from segue.domain.ids import Clock, new_id
from segue.domain.session import READ_ATTACHMENT, Attached, Attachment
from segue.domain.tool import Reference
from segue.tools import attachment_texts as texts
from segue.tools.child_process import LARGE, TooMuch, in_child_process
from segue.tools.normalize import IMAGES, PDF, BinaryPart, clean_text, payload_of
from segue.tools.results import StoredResult, payload_of_stored, reference_of
from segue.tools.run import CallOutcome, failed
from segue.tools.summaries import summary_line
from segue.tools.tool_settings import ToolSettings

MAX_NAME_CHARS = 200
MAX_SHOWN_BYTES = 6_000_000  # of an image or a PDF that models are shown
MAX_SHOWN_PAGES = 30  # of a message's PDFs: each takes a model as much as an image; of others it reads the text
AT_ONCE = 2  # files that a process reads and stores, each of them in memory

_SHOWN = (attachments.c.id, attachments.c.name, attachments.c.media_type, attachments.c.size_bytes)
_LISTED = (*_SHOWN, attachments.c.summary)
_MARKUP = re.compile(rb"<\s*(?:!doctype|html|head|body)|mime-version:", re.IGNORECASE)  # a mail may have some packed


@dataclass(eq=False, repr=False)
class Attachments:
    """Stores uploaded files. Hold a `place` while a file's content is in memory."""

    database: Database
    settings: ToolSettings
    clock: Clock
    _places: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(AT_ONCE), init=False)
    _of_owner: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Serves a user's files one by one, so that slow ones hold up no other user's."""
        async with self._of_owner.setdefault(owner, asyncio.Lock()), self._places:
            yield

    async def add(
        self, owner: str, session_id: str, name: str, content: bytes, *, kind: str | None = None, again: bool = False
    ) -> Attachment:
        """A file that may come `again` is not stored a second time. Its content says what `kind` it is, unless that is
        known. Raises NotFound, AppError `unsupported_attachment`, `unreadable_attachment`, `attachment_quota_exceeded`.
        """
        try:
            read = await _read(content, kind, max_bytes=self.settings.tool_result_max_bytes)
        except texts.UnsupportedFile as refused:
            raise app_error("unsupported_attachment", why=refused) from None
        except texts.UnreadableFile as refused:
            raise app_error("unreadable_attachment", why=refused) from None
        last = clean_text(name).replace("\\", "/").rpartition("/")[2]
        values: dict[str, Any] = {
            "id": new_id("att", self.clock()),
            "name": "".join(filter(str.isprintable, last))[:MAX_NAME_CHARS].strip() or "file",
            "media_type": read.media_type,
            "size_bytes": len(content),
            "summary": read.summary,
            "identifiers": list(read.identifiers),
            "text": read.text,
            "content": content,
        }
        async with self.database.transaction() as connection:
            await connection.execute(OWNER_LOCK, {"of_owner": f"attachments of {owner}"})
            alike = (attachments.c[column] == values[column] for column in ("size_bytes", "name", "content"))
            kept = _owned(owner, session_id, *_LISTED).where(*alike).limit(1)
            if again and (same := (await connection.execute(kept)).mappings().one_or_none()) is not None:
                return Attachment(**same)
            more = len(content) + len(read.text.encode())
            await _check_quota(connection, owner, more=more, at_most=self.settings.attachment_user_bytes)
            existing("session", (await connection.execute(_owned_session(owner, session_id))).one_or_none())
            await connection.execute(insert(attachments).values(session_id=session_id, created_at=func.now(), **values))
        return Attachment(**{column.name: values[column.name] for column in _LISTED})


async def check_fork(connection: Connection, owner: str, session_id: str, *, at_most: int) -> None:
    """Raises AppError `attachment_quota_exceeded` if the files of a new session, if it has any, are more than fit."""
    if (await connection.execute(_owned(owner, session_id, attachments.c.id).limit(1))).first() is not None:
        await _check_quota(connection, owner, at_most=at_most)


async def _check_quota(connection: Connection, owner: str, *, more: int = 0, at_most: int) -> None:
    stored = (await connection.execute(_STORED, {"of_owner": owner})).scalar_one()
    if stored + more > at_most:
        raise app_error("attachment_quota_exceeded", at_most=at_most)


async def list_attachments(
    connection: Connection, owner: str, session_id: str, *, before: Position | str | None, limit: int
) -> list[tuple[Attachment, Position]]:
    """Returns the newest first, each with its position."""
    statement = _owned(owner, session_id, *_LISTED, attachments.c.seq).where(older_than(attachments, before))
    found = await connection.execute(statement.order_by(*newest_first(attachments)).limit(limit))
    return [(Attachment(*listed), (seq, listed[0])) for *listed, seq in found]


async def get_file(connection: Connection, owner: str, session_id: str, attachment_id: str) -> tuple[Attachment, bytes]:
    """Raises NotFound."""
    statement = _owned(owner, session_id, *_LISTED, attachments.c.content).where(attachments.c.id == attachment_id)
    row = existing("attachment", (await connection.execute(statement)).mappings().one_or_none())
    return Attachment(**{column.name: row[column.name] for column in _LISTED}), row["content"]


async def delete_attachment(connection: Connection, owner: str, session_id: str, attachment_id: str) -> list[Reference]:
    """Deletes the file and its text in results. Returns the calls that read it, as they are then. Raises NotFound."""
    mine = _owned(owner, session_id, attachments.c.id).where(attachments.c.id == attachment_id)
    gone = await connection.execute(delete(attachments).where(attachments.c.id.in_(mine)))
    if not gone.rowcount:
        raise NotFound("attachment")
    calls = tool_calls.c
    of_file = (calls.tool_name == READ_ATTACHMENT, calls.args["attachment_id"].astext == attachment_id)
    read = (calls.session_id == session_id, *of_file)
    await connection.execute(delete(tool_results).where(tool_results.c.tool_call_id.in_(select(calls.id).where(*read))))
    emptied = update(tool_calls).where(*read).values(summary=_DELETED, preview="", identifiers=None)
    return [reference_of(row) for row in await connection.execute(emptied.returning(*calls))]


async def attached(connection: Connection, owner: str, session_id: str, ids: Sequence[str]) -> tuple[Attached, ...]:
    """Returns the files of these ids in their order. Raises AppError `unknown_attachment`, NotFound for the session."""
    found = _owned(owner, session_id, *_SHOWN).where(attachments.c.id.in_(ids))
    files = {row["id"]: Attached(**row) for row in (await connection.execute(found)).mappings()}
    if unknown := [each for each in ids if each not in files]:
        existing("session", (await connection.execute(_owned_session(owner, session_id, lock=False))).one_or_none())
        raise app_error("unknown_attachment", unknown=unknown[0][:64])
    return tuple(files[each] for each in dict.fromkeys(ids))


async def read_attached(
    connection: Connection, session_id: str, files: Sequence[Attached]
) -> Mapping[str, CallOutcome]:
    """Returns by id the outcome of reading each file: its text, and for images and PDFs a part, which is not stored."""
    shown = attachments.c.media_type.in_({*IMAGES, PDF}) & (attachments.c.size_bytes <= MAX_SHOWN_BYTES)
    columns = attachments.c.identifiers, attachments.c.text, case((shown, attachments.c.content)).label("shown")
    conditions = (attachments.c.session_id == session_id, attachments.c.id.in_([each.id for each in files]))
    rows = {row.id: row for row in await connection.execute(select(*_LISTED, *columns).where(*conditions))}
    outcomes, pages_left = dict[str, CallOutcome](), MAX_SHOWN_PAGES
    for row in filter(None, map(rows.get, (each.id for each in files))):
        pages = texts.pages_in(row.summary) if row.media_type == PDF else 0
        outcomes[row.id] = await _outcome(row, is_short=0 < pages <= pages_left)
        pages_left -= pages if pages <= pages_left else 0
    return {each.id: outcomes.get(each.id, GONE) for each in files}


async def kept_files(connection: Connection, ids: Sequence[str]) -> Collection[str]:
    """Returns those that still exist, and keeps them until the transaction ends."""
    found = select(attachments.c.id).where(attachments.c.id.in_(ids)).with_for_update(read=True, key_share=True)
    return (await connection.execute(found)).scalars().all()


_DELETED = "This file has been deleted."
GONE = failed(_DELETED)


async def _outcome(row: Any, *, is_short: bool) -> CallOutcome:
    summary = summary_line(f"{row.name}: {row.summary}")
    known: tuple[str, ...] = ()
    is_image = row.media_type in IMAGES
    if is_image:
        about = {"name": row.name, "media_type": row.media_type, "size_bytes": row.size_bytes}
        if row.shown is None:
            about["note"] = f"Images of more than {MAX_SHOWN_BYTES} bytes are not shown to you."
        payload = payload_of(about, orjson.dumps(about).decode())
    else:
        payload = await payload_of_stored(StoredResult("text", row.text))
        known = readable(reader(tuple[str, ...]), row.identifiers or (), "attachments", row.id) or ()
    if row.shown is not None and (is_image or is_short):
        encoded = (await to_thread.run_sync(b64encode, row.shown)).decode()
        payload = replace(payload, parts=(BinaryPart(row.media_type, encoded, row.media_type),))
    return CallOutcome("succeeded", payload, None, 0, None, summary, known, "" if is_image else row.summary)


def _owned(owner: str, session_id: str, *columns: Any) -> Select[Any]:
    statement = select(*columns).join(sessions, sessions.c.id == attachments.c.session_id)
    return statement.where(sessions.c.id == session_id, sessions.c.owner == owner)


def _owned_session(owner: str, session_id: str, *, lock: bool = True) -> Select[Any]:
    owned = select(sessions.c.id).where(sessions.c.id == session_id, sessions.c.owner == owner)
    return owned.with_for_update(read=True, key_share=True) if lock else owned


async def _read(content: bytes, kind: str | None, *, max_bytes: int) -> texts.ReadFile:
    if not content:
        raise texts.UnreadableFile("The file is empty.")
    kind = kind or await to_thread.run_sync(texts.kind_of, content)
    if kind in IMAGES:
        return texts.ReadFile(kind, "", f"{kind}, {len(content)} bytes", ())
    if len(content) <= LARGE and (kind == texts.WORDS or (kind == texts.TEXT and not _MARKUP.search(content))):
        return await to_thread.run_sync(texts.read_file, kind, content, max_bytes)
    try:
        return await in_child_process(texts.read_file, kind, content, max_bytes, deadline_s=texts.DEADLINE_S)
    except TooMuch as fault:
        raise texts.UnreadableFile(f"To read the file {fault}.") from None


_STORED = (
    select(func.coalesce(func.sum(attachments.c.size_bytes + func.octet_length(attachments.c.text)), 0))
    .join(sessions, sessions.c.id == attachments.c.session_id)
    .where(sessions.c.owner == bindparam("of_owner"))
)
