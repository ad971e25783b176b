"""Routes for callers' own data: who they are, all that is stored of them and its deletion, their facts and usage."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import AfterValidator, Field
from starlette.responses import StreamingResponse

from segue.api import schemas
from segue.api.deps import Caller, IdentityDep, MemoryId, Parts, Services, require_ops, router_of
from segue.api.problems import problems
from segue.api.schemas import MemoryChanges, NewMemory, Page, Paged, Paging
from segue.db.user_data import ErasedRows, erase_user, line_of, rows_of_user
from segue.domain.errors import InvalidRequest, app_error
from segue.domain.field_types import doc
from segue.domain.ids import is_id
from segue.domain.session import Memory, NewFact, UnreadableMemory
from segue.memory import fact_store
from segue.turns.jobs.learn_facts import cancel_extraction
from segue.users.usage import Group, UsageTotal, list_usage

router = router_of("me", "/me")
memories_router = router_of("memories", "/memories")
usage_router = router_of("usage")

DEFAULT_DAYS = 30
MAX_DAYS = 366
LINES = "text/plain"  # generators of clients know nothing of application/x-ndjson
AS_LINES: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {LINES: {"schema": {"type": "string"}}}}}

ConfirmedUser = Annotated[str, Query(max_length=500, description="The name of the user to erase, to confirm it.")]
_SesId = Annotated[str, AfterValidator(lambda each: each if is_id("ses", each) else "")]  # which no session has
OfSession = Annotated[_SesId, Query(max_length=200, description="The id of the session, which may be deleted.")]
Day = Annotated[date, Field(ge=date(2000, 1, 1))]
_MEMORY_POSITION = schemas.row_position("mem")


@dataclass(frozen=True, slots=True)
class Me:
    """The caller."""

    user: Annotated[str, doc("The caller's id, to which all their data belongs.")]
    scopes: Annotated[list[str], doc("The scopes of the key or token, also ones that Segue does not know.")]
    groups: Annotated[list[str], doc("The groups of the key or token.")]
    roles: Annotated[list[str], doc("The roles of the key, or those that JWT_ROLES gives to the groups of a token.")]


@router.get("")
async def get_me(identity: IdentityDep) -> Me:
    """Shows who the caller is, with their scopes, groups and roles."""
    return Me(identity.user, sorted(identity.scopes), sorted(identity.groups), sorted(identity.roles))


@router.get("/export", response_class=StreamingResponse, responses=AS_LINES)
async def export_me(services: Parts, caller: Caller) -> StreamingResponse:
    """Exports all that is stored about the caller, as `segue export` does. A line is `{"table": …, "row": …}`; hashes
    of secrets are left out.
    """
    return export_of(services, caller)


@router.delete("", responses=problems("not_confirmed"))
async def erase_me(services: Parts, caller: Caller, confirm: ConfirmedUser) -> ErasedRows:
    """Erases all that is stored about the caller, API keys too, as `segue erase` does. Also ends the caller's logins at
    MCP servers. It cannot be undone. If the request is cut off, repeat it to finish.
    """
    if confirm != caller:
        raise app_error("not_confirmed")
    return await erase_all(services, caller)


def export_of(services: Services, owner: str) -> StreamingResponse:
    """Returns every row of a user, a line each."""
    return as_lines(line_of(table, row) async for table, row in rows_of_user(services.database, owner))


def as_lines(lines: AsyncIterator[str]) -> StreamingResponse:
    headers = {"Content-Disposition": 'attachment; filename="segue.ndjson"'}
    return StreamingResponse(lines, media_type=LINES, headers=headers)


async def erase_all(services: Services, owner: str) -> ErasedRows:
    if services.mcp.logins is not None:
        await services.mcp.logins.end_all(owner)
    return await erase_user(services.database, services.cache, owner)


@memories_router.get("", responses=problems("query_in_session"))
async def list_memories(
    services: Parts,
    caller: Caller,
    paging: Paged,
    query: Annotated[str | None, Query(max_length=500, description="Words that say what the facts are about.")] = None,
    session_id: Annotated[_SesId | None, Query(max_length=200, description="Only facts told in this session.")] = None,
) -> Page[Memory | UnreadableMemory]:
    """Lists the facts known about the caller. Newest first; with `query` the best matches first, on one page."""
    if query:
        if session_id is not None:
            raise app_error("query_in_session")
        if paging.cursor is not None:
            raise app_error("invalid_cursor")
        return Page(
            await services.long_term.search((caller, ""), query, now=services.clock(), limit=paging.limit), None
        )
    found = await services.read(fact_store.list_facts, caller, session_id=session_id, **paging.behind(_MEMORY_POSITION))
    return paging.page_of_placed(found)


@memories_router.post("", status_code=201)
async def add_memory(body: NewMemory, services: Parts, caller: Caller) -> Memory:
    """Adds a fact about the caller. A fact that is known already is returned as it is."""
    new, now = NewFact(body.content, body.kind), services.clock()
    fact = await services.database.write(fact_store.add_fact, caller, new, now=now)
    services.long_term.noted(caller, fact)
    return fact


@memories_router.delete("", status_code=204)
async def delete_memories(session_id: OfSession, services: Parts, caller: Caller) -> None:
    """Deletes the facts that were told in a session. No more are noted of what was said in it so far."""
    async with services.database.transaction() as connection:
        await cancel_extraction(connection, caller, session_id)
        await fact_store.delete_facts_of_session(connection, caller, session_id)


@memories_router.patch("/{memory_id}", responses=problems("memory_exists"))
async def change_memory(
    memory_id: MemoryId, body: MemoryChanges, services: Parts, caller: Caller
) -> Memory | UnreadableMemory:
    """Changes a fact about the caller."""
    return await services.database.write(fact_store.change_fact, caller, memory_id, **body.model_dump())


@memories_router.delete("/{memory_id}", status_code=204)
async def delete_memory(memory_id: MemoryId, services: Parts, caller: Caller) -> None:
    """Deletes a fact about the caller."""
    async with services.database.transaction() as connection:
        if (told_in := await fact_store.delete_fact(connection, caller, memory_id)) is not None:
            await cancel_extraction(connection, caller, told_in)


class UsageQuery(Paging):
    """The usage to add up, and how to group it."""

    from_: Annotated[Day | None, Field(alias="from"), doc("The first UTC day, 29 days before `to` by default.")] = None
    to: Annotated[Day | None, doc("The last UTC day, today by default.")] = None
    group: Annotated[Group, doc("What to group by. `user` and `group` need the scope `ops`.")] = "day"
    user: Annotated[schemas.NameFilter, doc("The user whose usage to add up. Needs the scope `ops`.")] = None
    everyone: Annotated[bool, Field(strict=False), doc("Adds up all users together. Needs the scope `ops`.")] = False


@usage_router.get("/usage", responses=problems("forbidden"))
async def get_usage(services: Parts, identity: IdentityDep, query: Annotated[UsageQuery, Query()]) -> Page[UsageTotal]:
    """Adds up the usage of turns, summaries and facts. Of the caller; with the scope `ops` also of others, or all."""
    of_all = query.everyone or query.group in ("user", "group")
    if query.user is not None or of_all:
        require_ops(identity)
    last = query.to or services.clock().date()
    first = query.from_ or last - timedelta(days=DEFAULT_DAYS - 1)
    if not 0 <= (last - first).days < MAX_DAYS:
        detail = f"`from` has to be before `to` or the same day, and at most {MAX_DAYS} days are given at once."
        raise InvalidRequest(detail)
    owner = query.user if query.user is not None or of_all else identity.user
    position = query.behind(schemas.BY_NAME, "after")
    found = await services.read(list_usage, owner, first=first, last=last, by=query.group, **position)
    return query.page(found, lambda item: item.key or "")
