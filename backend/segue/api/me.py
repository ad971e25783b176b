"""Who the caller is, all that is stored of them, and the end of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query
from starlette.responses import StreamingResponse

from segue.api.deps import Caller, IdentityDep, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.db.engine import Database
from segue.db.erasure import ErasedRows, erase_user
from segue.db.personal_data import line_of, rows_of_user
from segue.domain.doc import doc
from segue.domain.errors import AppError

router = router_of("me", "/me")

LINES = "text/plain"  # generators of clients know nothing of application/x-ndjson


@dataclass(frozen=True, slots=True)
class Me:
    """The caller."""

    user: Annotated[str, doc("The id that rows of the caller's belong to.")]
    scopes: Annotated[list[str], doc("As the token has them, also words that mean nothing to Segue.")]
    groups: Annotated[list[str], doc("As the token or the key has them.")]


Confirm = Annotated[str, Query(max_length=200, description="The caller's `user`, as `GET /me` tells it.")]


@router.get("")
async def get_me(identity: IdentityDep) -> Me:
    """Shows who the caller is."""
    return Me(identity.user, sorted(identity.scopes), sorted(identity.groups))


@router.get(
    "/export", response_class=StreamingResponse, responses={200: {"content": {LINES: {"schema": {"type": "string"}}}}}
)
async def export_me(services: ServicesDep, caller: Caller) -> StreamingResponse:
    """Exports every row that is stored of the caller, as `segue export` does: `{"table": …, "row": …}` a line. Without
    the hashes of secrets.
    """
    headers = {"Content-Disposition": 'attachment; filename="segue.ndjson"'}
    return StreamingResponse(_lines(services.database, caller), media_type=LINES, headers=headers)


@router.delete("", responses=problems("not_confirmed"))
async def erase_me(services: ServicesDep, caller: Caller, confirm: Confirm) -> ErasedRows:
    """Removes all that is stored of the caller, API keys too, as `segue erase` does, and revokes logins at MCP servers.
    It cannot be undone. One that was cut off goes on when it is repeated.
    """
    if confirm != caller:
        raise AppError(
            "not_confirmed",
            status=422,
            title="Not confirmed",
            detail="Nothing was removed: `confirm` is not your user.",
        )
    if services.mcp_logins is not None:
        await services.mcp_logins.end_all(caller)
    return await erase_user(services.database, services.cache, caller)


async def _lines(database: Database, owner: str) -> AsyncIterator[str]:
    async for table, row in rows_of_user(database, owner):
        yield line_of(table, row)
