"""Routes to list, search, add and delete the caller's durable facts."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, TypeAdapter

from segue.api.deps import Caller, MemoryId, ServicesDep, StrictJsonRoute
from segue.api.problems import PROBLEMS
from segue.api.schemas import Cursor, Limit, NewMemory, Page, decode_cursor, invalid_cursor, page
from segue.domain.ids import id_pattern
from segue.domain.memory import Memory, NewFact
from segue.memory import facts

router = APIRouter(prefix="/memories", tags=["memories"], route_class=StrictJsonRoute, responses=PROBLEMS)

_POSITION: TypeAdapter[facts.Position] = TypeAdapter(
    tuple[Annotated[int, Field(strict=True, ge=0, lt=2**63)], Annotated[str, Field(pattern=id_pattern("mem"))]]
)


@router.get("")
async def list_memories(
    services: ServicesDep,
    caller: Caller,
    query: Annotated[str | None, Query(max_length=500)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[Memory]:
    """Newest first; with a query those it finds, best first, on one page."""
    if query:
        if cursor is not None:
            raise invalid_cursor()
        return Page(await services.long_term.search(caller, query, now=services.clock(), limit=limit), None)
    before = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        found = await facts.list_facts(connection, caller, before=before, limit=limit + 1)
    listed = page(found, limit, lambda each: each[1])
    return Page([memory for memory, _ in listed.items], listed.next_cursor)


@router.post("", status_code=201)
async def add_memory(body: NewMemory, services: ServicesDep, caller: Caller) -> Memory:
    """A fact that is known already is given as it is."""
    async with services.database.autocommit() as connection:
        return await facts.add_fact(connection, caller, NewFact(body.content, body.kind), now=services.clock())


@router.delete("/{memory_id}", status_code=204)
async def delete_memory(memory_id: MemoryId, services: ServicesDep, caller: Caller) -> None:
    async with services.database.autocommit() as connection:
        await facts.delete_fact(connection, caller, memory_id)
