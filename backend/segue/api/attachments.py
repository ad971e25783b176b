"""Routes for the files of a session: upload, list, load, delete. A file is typed by its content alone."""

from typing import Any, Final
from urllib.parse import quote

from fastapi import Request, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from segue.api.deps import AttachmentId, Caller, ServicesDep, SessionId, UploadRoute, router_of
from segue.api.problems import OF_FILES, problems
from segue.api.schemas import Page, PagingDep, id_position
from segue.domain.errors import AppError, InvalidRequest
from segue.domain.session import Attachment
from segue.memory.session_store import check_session
from segue.tools import attachment_store
from segue.tools.attachment_texts import SERVED
from segue.tools.normalize import IMAGES

router = router_of("attachments", "/sessions/{session_id}/attachments", UploadRoute)

MULTIPART_BYTES: Final = 65_536  # of a body beside the file
_POSITION = id_position("att")
_FILE = {"type": "string", "format": "binary", "description": "The file; its name is the part's `filename`."}
_UPLOAD: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "required": ["file"], "properties": {"file": _FILE}}}
        },
    }
}
_BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {each: {"schema": {"type": "string", "format": "binary"}} for each in sorted(SERVED)}}
}


@router.post("", status_code=201, openapi_extra=_UPLOAD, responses=problems(*OF_FILES))
async def upload_attachment(
    session_id: SessionId, services: ServicesDep, caller: Caller, request: Request
) -> Attachment:
    """Stores a file of the session, for `attachments` of a message. An image is shown to models that take them; of any
    other file the text is read once. What the file is, its content decides.
    """
    attachments = services.attachments
    async with services.database.read_only() as connection:  # before the body is read
        await check_session(connection, caller, session_id)
    try:
        async with request.form(max_files=1, max_fields=0) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise _not_one_file()
            if (file.size or 0) > services.settings.attachment_max_bytes:
                raise too_large("The", services.settings.attachment_max_bytes)
            async with attachments.places:
                return await attachments.add(caller, session_id, file.filename or "", await file.read())
    except ClientDisconnect:
        raise HTTPException(400, "The client left before the file had come whole.") from None
    except HTTPException as error:
        if error.status_code != 400:  # noqa: PLR2004 (what Starlette raises for another form than this)
            raise
        raise _not_one_file() from None


def too_large(which: str, max_bytes: int) -> HTTPException:
    return HTTPException(413, f"{which} file is larger than {max_bytes} bytes.")


def _not_one_file() -> AppError:
    detail = "Send the file as multipart/form-data, in one part called `file` with a file name, and nothing else."
    return InvalidRequest(detail)


@router.get("")
async def list_attachments(
    session_id: SessionId, services: ServicesDep, caller: Caller, paging: PagingDep
) -> Page[Attachment]:
    """Lists the files of a session. Newest first."""
    before = paging.after(_POSITION)
    async with services.database.read_only() as connection:
        await check_session(connection, caller, session_id)
        found = await attachment_store.list_attachments(
            connection, caller, session_id, before=before, limit=paging.limit + 1
        )
    return paging.page(found, lambda each: each.id)


@router.get("/{attachment_id}", response_class=Response, responses=_BYTES)
async def get_attachment(
    session_id: SessionId, attachment_id: AttachmentId, services: ServicesDep, caller: Caller
) -> Response:
    """Loads a file as it was uploaded. An image may be shown, anything else is a download."""
    async with services.database.read_only() as connection:
        file, content = await attachment_store.get_file(connection, caller, session_id, attachment_id)
    shown = "inline" if file.media_type in IMAGES else "attachment"
    headers = {
        "Content-Disposition": f"{shown}; filename*=UTF-8''{quote(file.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return Response(content, media_type=file.media_type, headers=headers)


@router.delete("/{attachment_id}", status_code=204)
async def delete_attachment(
    session_id: SessionId, attachment_id: AttachmentId, services: ServicesDep, caller: Caller
) -> None:
    """Deletes a file and what was read from it. Messages still name it; what was said of it stays said."""
    async with services.database.transaction() as connection:
        await attachment_store.delete_attachment(connection, caller, session_id, attachment_id)
