"""A foreign session looks like a missing one, to every statement that reads or writes it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.domain.errors import NotFound
from segue.memory import history, session_store
from segue.tools import results
from segue.turns import admission
from segue.turns.chat_request import ChatRequest
from tests.support.provider import Provider, calls, says
from tests.support.service import Client

OWNER, OTHER = "local", "mallory"
NOW = datetime(2030, 1, 1, tzinfo=UTC)

Attempt = Callable[[AsyncConnection, str], Awaitable[object]]


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[AsyncConnection]:
    database = Database(database_url)
    async with database.autocommit() as opened:
        yield opened
    await database.close()


async def test_another_owner_can_neither_read_nor_change_nor_write_to_a_session(connection: AsyncConnection) -> None:
    made = await session_store.create_session(connection, OWNER, title="mine", metadata={}, now=NOW)
    attempts: dict[str, Attempt] = {
        "get": lambda at, owner: session_store.get_session(at, owner, made.id),
        "update": lambda at, owner: session_store.update_session(at, owner, made.id, changes={"title": "ours"}),
        "delete": lambda at, owner: session_store.delete_session(at, owner, made.id),
        "lock": lambda at, owner: session_store.lock_session(at, owner, made.id),
    }
    for name, attempt in attempts.items():
        with pytest.raises(NotFound) as refused:
            await attempt(connection, OTHER)
        assert refused.value.code == "session_not_found", name
    assert await admission.begin_turn(connection, OTHER, made.id, ChatRequest("hello"), now=NOW, room=1) is None
    assert await session_store.get_session(connection, OWNER, made.id) == made


async def test_a_list_holds_only_the_owners_sessions(connection: AsyncConnection) -> None:
    mine = await session_store.create_session(connection, OWNER, title=None, metadata={}, now=NOW)
    theirs = await session_store.create_session(connection, OTHER, title=None, metadata={}, now=NOW)
    assert await session_store.list_sessions(connection, OWNER, before=None, limit=10) == [mine]
    assert await session_store.list_sessions(connection, OTHER, before=None, limit=10) == [theirs]
    after = (theirs.updated_at, theirs.id)
    assert await session_store.list_sessions(connection, OTHER, before=after, limit=10) == []


async def test_another_owner_sees_neither_messages_nor_tool_calls_nor_results(
    client: Client, provider: Provider, connection: AsyncConnection
) -> None:
    provider.will(calls(("current_time", {})), says("noon"))
    session = await client.new_session()
    call = (await client.chat(session, "what time is it?"))["tool_calls"][0]["tool_call_id"]
    seen = {
        owner: (
            len(await history.list_messages(connection, owner, session, after=0, limit=10)),
            len(await results.list_calls(connection, owner, session, limit=10)),
        )
        for owner in (OWNER, OTHER)
    }
    assert seen == {OWNER: (4, 1), OTHER: (0, 0)}
    _, value = await results.load_result(connection, OWNER, session, call, now=NOW.replace(year=2000))
    assert value.content
    with pytest.raises(NotFound):
        await results.load_result(connection, OTHER, session, call, now=NOW.replace(year=2000))
    elsewhere = await client.new_session()
    with pytest.raises(NotFound):
        await results.load_result(connection, OWNER, elsewhere, call, now=NOW.replace(year=2000))
