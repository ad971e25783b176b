"""Routes to list, search, add and delete the caller's durable facts."""

from typing import Annotated

from fastapi import Query
from pydantic import Field, TypeAdapter

from segue.api.deps import Caller, MemoryId, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import (
    Cursor,
    Limit,
    MemoryChanges,
    NewMemory,
    Page,
    Seq,
    decode_cursor,
    invalid_cursor,
    page_of_placed,
)
from segue.domain.errors import AppError
from segue.domain.ids import id_pattern
from segue.domain.memory import Memory, NewFact, UnreadableMemory
from segue.jobs.fact_extraction import cancel_extraction
from segue.memory import facts

router = router_of("memories", "/memories")

ToldIn = Annotated[str, Query(max_length=200, description="Of this session, also if it has been deleted.")]

_POSITION: TypeAdapter[facts.FactPosition] = TypeAdapter(tuple[Seq, Annotated[str, Field(pattern=id_pattern("mem"))]])


@router.get("", responses=problems("query_in_session"))
async def list_memories(
    services: ServicesDep,
    caller: Caller,
    query: Annotated[str | None, Query(max_length=500, description="What they are to be about.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    session_id: Annotated[str | None, Query(max_length=200, description="Only those that were told in it.")] = None,
) -> Page[Memory | UnreadableMemory]:
    """Lists the caller's facts. Newest first; with a query those it finds, best first, on one page."""
    if query:
        if session_id is not None:
            detail = "Ask for the facts of a session or for those that a query finds, not for both."
            raise AppError("query_in_session", status=422, title="No query in a session", detail=detail)
        if cursor is not None:
            raise invalid_cursor()
        return Page(await services.long_term.search(caller, query, now=services.clock(), limit=limit), None)
    before = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        found = await facts.list_facts(connection, caller, before=before, limit=limit + 1, session_id=session_id)
    return page_of_placed(found, limit)


@router.post("", status_code=201)
async def add_memory(body: NewMemory, services: ServicesDep, caller: Caller) -> Memory:
    """Notes a fact. One that is known already is given as it is."""
    async with services.database.autocommit() as connection:
        fact = await facts.add_fact(connection, caller, NewFact(body.content, body.kind), now=services.clock())
    services.long_term.noted(caller, fact)
    return fact


@router.delete("", status_code=204)
async def delete_memories(session_id: ToldIn, services: ServicesDep, caller: Caller) -> None:
    """Deletes the facts that were told in a session. Also notes nothing more of what has been said in it so far."""
    async with services.database.transaction() as connection:
        await cancel_extraction(connection, caller, session_id)
        await facts.delete_facts_of_session(connection, caller, session_id)


@router.patch("/{memory_id}", responses=problems("memory_exists"))
async def change_memory(
    memory_id: MemoryId, body: MemoryChanges, services: ServicesDep, caller: Caller
) -> Memory | UnreadableMemory:
    """Changes a fact."""
    async with services.database.autocommit() as connection:
        return await facts.change_fact(connection, caller, memory_id, content=body.content, kind=body.kind)


@router.delete("/{memory_id}", status_code=204)
async def delete_memory(memory_id: MemoryId, services: ServicesDep, caller: Caller) -> None:
    """Deletes a fact."""
    async with services.database.autocommit() as connection:
        await facts.delete_fact(connection, caller, memory_id)
