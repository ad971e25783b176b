"""Who the caller is, all that is stored of them, and the end of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import StreamingResponse

from segue.api.deps import Caller, IdentityDep, Services, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.db.engine import Database
from segue.db.erasure import ErasedRows, erase_user
from segue.db.personal_data import line_of, rows_of_user
from segue.domain.doc import doc
from segue.domain.errors import AppError

router = router_of("me", "/me")

LINES = "text/plain"  # generators of clients know nothing of application/x-ndjson
AS_LINES: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {LINES: {"schema": {"type": "string"}}}}}


@dataclass(frozen=True, slots=True)
class Me:
    """The caller."""

    user: Annotated[str, doc("The id that rows of the caller's belong to.")]
    scopes: Annotated[list[str], doc("As the token has them, also words that mean nothing to Segue.")]
    groups: Annotated[list[str], doc("As the token or the key has them.")]


ConfirmedUser = Annotated[str, Query(max_length=500, description="The user again: of `/me`, as `GET /me` tells it.")]


@router.get("")
async def get_me(identity: IdentityDep) -> Me:
    """Shows who the caller is."""
    return Me(identity.user, sorted(identity.scopes), sorted(identity.groups))


@router.get("/export", response_class=StreamingResponse, responses=AS_LINES)
async def export_me(services: ServicesDep, caller: Caller) -> StreamingResponse:
    """Exports every row that is stored of the caller, as `segue export` does: `{"table": …, "row": …}` a line. Without
    the hashes of secrets.
    """
    return export_of(services, caller)


@router.delete("", responses=problems("not_confirmed"))
async def erase_me(services: ServicesDep, caller: Caller, confirm: ConfirmedUser) -> ErasedRows:
    """Removes all that is stored of the caller, API keys too, as `segue erase` does, and revokes logins at MCP servers.
    It cannot be undone. One that was cut off goes on when it is repeated.
    """
    check_confirmed(caller, confirm)
    return await erase_all(services, caller)


def export_of(services: Services, owner: str) -> StreamingResponse:
    return as_lines(_lines(services.database, owner))


def as_lines(lines: AsyncIterator[str]) -> StreamingResponse:
    headers = {"Content-Disposition": 'attachment; filename="segue.ndjson"'}
    return StreamingResponse(lines, media_type=LINES, headers=headers)


def check_confirmed(owner: str, confirm: str) -> None:
    """Raises AppError `not_confirmed`."""
    if confirm != owner:
        detail = "Nothing was removed: `confirm` is not the user whose rows these are."
        raise AppError("not_confirmed", status=422, title="Not confirmed", detail=detail)


async def erase_all(services: Services, owner: str) -> ErasedRows:
    if services.mcp_logins is not None:
        await services.mcp_logins.end_all(owner)
    return await erase_user(services.database, services.cache, owner)


async def _lines(database: Database, owner: str) -> AsyncIterator[str]:
    async for table, row in rows_of_user(database, owner):
        yield line_of(table, row)
