"""Routes for the files of a session. Nothing is fetched, and a file's content alone decides its type."""

import asyncio
import binascii
import hashlib
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from fastapi import Request, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from segue.api.chat import Client
from segue.api.deps import Caller, FileId, Parts, Services, SessionId, UploadRoute, router_of
from segue.api.problems import OF_FILES, problems
from segue.api.schemas import BINARY, Page, Paged, Responses, row_position
from segue.domain.errors import AppError, InvalidRequest, app_error
from segue.domain.session import LEFT_OUT, MAX_ATTACHMENTS, NO_WORDS, Attached, Attachment
from segue.log import log
from segue.memory import short_term
from segue.memory.history import replace_result
from segue.memory.session_store import check_session
from segue.memory.summary import forget_reference
from segue.tools import attachment_store
from segue.tools.attachment_texts import SERVED, WORDS
from segue.tools.normalize import IMAGES
from segue.turns.chat_request import ChatRequest
from segue.turns.queries import turn_of_key

router = router_of("attachments", "/sessions/{session_id}/attachments", UploadRoute)

MULTIPART_BYTES: Final = 65_536  # of a body beside the file
MAX_END_CHARS: Final = 4000  # of a message that is too long, whose middle is attached
MAX_WORD_CHARS: Final = 200
NOT_ONE_FILE: Final = "Send the file as multipart/form-data, in one part called `file` with a name, and no other."
_GAP: Final = f"\n{LEFT_OUT}\n"
_KINDS: Final = {"image_url", "input_image", "file", "input_file", "binary", "image", "document", "audio", "video"}
_POSITION = row_position("att")
_FILE = {**BINARY, "description": "The file to store. `filename` of the part is its name."}
_FORM = {"schema": {"type": "object", "required": ["file"], "properties": {"file": _FILE}}}
_UPLOAD: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": {"multipart/form-data": _FORM}}}
_BYTES: Final[Responses] = {200: {"content": {each: {"schema": BINARY} for each in sorted(SERVED)}}}


@router.post("", status_code=201, openapi_extra=_UPLOAD, responses=problems(*OF_FILES))
async def upload_attachment(session_id: SessionId, services: Parts, caller: Caller, http: Request) -> Attachment:
    """Uploads a file to a session, for `attachments` of a message. Its type is known by its content. Models that take
    images see an image as it is; the text of any other file is read once, when it is stored.
    """
    await services.read(check_session, caller, session_id)  # before the body is read
    try:
        async with http.form(max_files=1, max_fields=0) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise InvalidRequest(NOT_ONE_FILE)
            if (file.size or 0) > services.settings.attachment_max_bytes:
                raise too_large("The", services.settings.attachment_max_bytes)
            async with services.attachments.place(caller):
                return await services.attachments.add(caller, session_id, file.filename or "", await file.read())
    except HTTPException as error:
        if error.status_code != 400:  # noqa: PLR2004 (what Starlette raises for another form than this)
            raise
        raise InvalidRequest(NOT_ONE_FILE) from None


def too_large(which: str, max_bytes: int) -> HTTPException:
    return HTTPException(413, f"{which} file is larger than {max_bytes} bytes.")


@router.get("")
async def list_attachments(session_id: SessionId, services: Parts, caller: Caller, paging: Paged) -> Page[Attachment]:
    """Lists the files of a session. Newest first."""
    of = caller, session_id
    found = await services.read_in(*of, attachment_store.list_attachments, *of, **paging.behind(_POSITION))
    return paging.page_of_placed(found)


@router.get("/{attachment_id}", response_class=Response, responses=_BYTES)
async def get_attachment(session_id: SessionId, attachment_id: FileId, services: Parts, caller: Caller) -> Response:
    """Downloads a file as it was uploaded. Images are sent to be shown (`inline`), other files to be saved."""
    file, content = await services.read(attachment_store.get_file, caller, session_id, attachment_id)
    named = f"{'inline' if file.media_type in IMAGES else 'attachment'}; filename*=UTF-8''{quote(file.name, safe='')}"
    headers = {"Content-Disposition": named, "Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(content, media_type=file.media_type, headers=headers)


@router.delete("/{attachment_id}", status_code=204)
async def delete_attachment(session_id: SessionId, attachment_id: FileId, services: Parts, caller: Caller) -> None:
    """Deletes a file and the text read from it. Messages still name it, and answers that used it stay."""
    async with services.database.transaction() as connection:
        for left in await attachment_store.delete_attachment(connection, caller, session_id, attachment_id):
            await replace_result(connection, left.tool_call_id, asdict(left))
            await forget_reference(connection, session_id, left.tool_call_id)
    await short_term.forget(services.cache, session_id)


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file, or with a `mark` a text that stood in the message (`Attached`). `digest` is of its name and content."""

    name: str
    content: bytes
    digest: str = ""
    mark: str | None = None


def is_file(part: object) -> bool:
    return isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind in _KINDS


def words_of(text: str, content: object) -> str:
    """Returns what the user says in a message with this text, perhaps only files. Empty if it has neither."""
    only_files = isinstance(content, list) and any(map(is_file, content))
    return text.strip() or (NO_WORDS if only_files else "")


async def sent_files(content: object) -> tuple[SentFile, ...]:
    """Returns the files among the parts of a message. Raises AppError `invalid_request`, `parts_unsupported`."""
    parts = [part for part in content if is_file(part)] if isinstance(content, list) else []
    if len(parts) > MAX_ATTACHMENTS:
        raise InvalidRequest(f"A message has at most {MAX_ATTACHMENTS} files.")
    return await asyncio.to_thread(_read, parts) if parts else ()


async def with_files(client: Client, session_id: str, request: ChatRequest, files: Sequence[SentFile]) -> ChatRequest:
    """Returns the request as it can be accepted: what is too much for a message becomes one of its files, and these are
    stored, unless its turn has been accepted before: a request that comes again stores none twice. Sources for which
    there is no room are left out. Raises what an upload raises.
    """
    services, caller = client.services, client.caller
    text, rest = _fitting(request.message, services.settings.max_message_chars)
    files = [*files, *rest]
    if not files:
        return request
    if request.once is not None and await services.read(turn_of_key, caller, session_id, request.once.key) is not None:
        return request
    attached = []
    for file in files:
        try:
            attached.append(await _stored(services, caller, session_id, file))
        except AppError as error:
            if error.code != "attachment_quota_exceeded" or file.mark in (None, LEFT_OUT):
                raise
            log.warning("source_left_out", size_bytes=len(file.content))
    return replace(request, message=text, attachments=tuple(dict.fromkeys(attached)))


async def _stored(services: Services, caller: str, session_id: str, file: SentFile) -> Attached:
    if len(file.content) > services.settings.attachment_max_bytes:
        raise too_large("A", services.settings.attachment_max_bytes)
    async with services.attachments.place(caller):
        kind = WORDS if file.mark is not None else None
        stored = await services.attachments.add(caller, session_id, file.name, file.content, kind=kind, again=True)
    return Attached(stored.id, stored.name, stored.media_type, stored.size_bytes, file.mark)


def _fitting(text: str, at_most: int) -> tuple[str, Sequence[SentFile]]:
    """Returns the beginning and the end of a text that is longer, which often is the question, and what is between."""
    if len(text) <= at_most:
        return text, ()
    end = min(MAX_END_CHARS, at_most // 4)
    begin = at_most - end - len(_GAP)
    near = begin - MAX_WORD_CHARS, begin
    # After the last line or word that is whole, if one ends near there.
    begin = max(text.rfind("\n", *near), text.rfind(" ", *near)) + 1 or begin
    end = len(text) - end
    return f"{text[:begin]}{_GAP}{text[end:]}", [SentFile("message.txt", text[begin:end].encode(), mark=LEFT_OUT)]


def _read(parts: Sequence[dict[str, Any]]) -> tuple[SentFile, ...]:
    files = []
    for part in parts:
        named = part["file"] if isinstance(part.get("file"), dict) else part
        name = given if isinstance(given := named.get("filename"), str) else ""
        content = _content(part)
        digest = hashlib.sha256(b"%d:%b%b" % (len(name), name.encode(), content)).hexdigest()
        files.append(SentFile(name, content, digest))
    return tuple(files)


def _content(part: dict[str, Any]) -> bytes:
    match part:
        case (
            {"type": "image_url", "image_url": {"url": str(given)}}
            | {"type": "input_image", "image_url": str(given)}
            | {"type": "file", "file": {"file_data": str(given)}}
            | {"type": "input_file", "file_data": str(given)}
            | {"type": "file", "url": str(given)}
            | {"type": "binary", "data": str(given)}
            | {"source": {"type": "data", "value": str(given)}}
        ):
            return _decoded(given)
    raise app_error("parts_unsupported", why=f"The part of the type {part['type']!r} has no file in it.")


def _decoded(given: str) -> bytes:
    """`given` is a `data:` URL, or base64."""
    head, comma, rest = given.partition(",")
    if comma and head.lower().startswith("data:"):
        if not head.lower().endswith(";base64"):
            return unquote_to_bytes(rest)
    elif ":" in head:
        raise app_error("parts_unsupported", why="A part names a file elsewhere.")
    try:
        return b64decode(rest if comma else given, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("The content of a file is not valid base64.") from None
