"""Files that come as parts of a message: each is stored as a file of the session, as an upload is.

Only what is in the request is read; nothing is fetched.
"""

import asyncio
import binascii
import hashlib
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException

from segue.api.chat import Asking
from segue.domain.attachment import MAX_ATTACHMENTS
from segue.domain.errors import AppError, InvalidRequest
from segue.turns.queries import turn_of_key
from segue.turns.store import ChatRequest

_KINDS: Final = frozenset(
    {"image_url", "input_image", "file", "input_file", "binary", "image", "document", "audio", "video"}
)


@dataclass(frozen=True, slots=True)
class SentFile:
    """`digest` is of its name and content."""

    name: str
    content: bytes
    digest: str


def is_file(part: object) -> bool:
    return isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind in _KINDS


async def sent_files(content: object) -> tuple[SentFile, ...]:
    """Returns the files among the parts of a message. Raises AppError `invalid_request`, `parts_unsupported`."""
    parts = [part for part in content if is_file(part)] if isinstance(content, list) else []
    if len(parts) > MAX_ATTACHMENTS:
        raise InvalidRequest(f"A message has at most {MAX_ATTACHMENTS} files.")
    return await asyncio.to_thread(_read, parts) if parts else ()


async def with_files(asking: Asking, session_id: str, request: ChatRequest, files: Sequence[SentFile]) -> ChatRequest:
    """Stores the files with the message, unless its turn has been accepted before: a request that comes again stores
    none twice. Raises what an upload raises.
    """
    if not files:
        return request
    services, caller = asking.services, asking.caller
    if request.once is not None:
        async with services.database.read_only() as connection:
            if await turn_of_key(connection, caller, session_id, request.once.key) is not None:
                return request
    stored, attachments = [], services.attachments
    for file in files:
        if len(file.content) > attachments.limits.max_bytes:
            raise HTTPException(413, f"A file is larger than {attachments.limits.max_bytes} bytes.")
        async with attachments.places:
            stored.append(await attachments.add(caller, session_id, file.name, file.content, again=True))
    return replace(request, attachment_ids=tuple(each.id for each in stored))


def _read(parts: Sequence[dict[str, Any]]) -> tuple[SentFile, ...]:
    files = []
    for part in parts:
        name, content = _name(part), _content(part)
        digest = hashlib.sha256(b"%d:%b%b" % (len(name), name.encode(), content)).hexdigest()
        files.append(SentFile(name, content, digest))
    return tuple(files)


def _name(part: dict[str, Any]) -> str:
    about = part["file"] if isinstance(part.get("file"), dict) else part
    name = about.get("filename")
    return name if isinstance(name, str) else ""


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
    raise parts_unsupported(f"The part of the type {part['type']!r} has no file in it.")


def _decoded(given: str) -> bytes:
    """`given` is a `data:` URL, or base64."""
    head, comma, rest = given.partition(",")
    if comma and head.lower().startswith("data:"):
        if not head.lower().endswith(";base64"):
            return unquote_to_bytes(rest)
    elif ":" in head:
        raise parts_unsupported("A part names a file elsewhere.")
    try:
        return b64decode(rest if comma else given, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("The content of a file is not valid base64.") from None


def parts_unsupported(why: str) -> AppError:
    detail = f"Nothing was accepted: {why} Send text, and files in the message as `data:` URLs: nothing is fetched."
    return AppError("parts_unsupported", status=422, title="A part of the message cannot be read", detail=detail)
