"""The session behind an id that a client made: one of the caller's, whoever else uses the id."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from segue.api.deps import Services
from segue.api.doors.clients import MAX_CLIENT_ID_CHARS, session_of_client
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.ids import new_id, utc_now
from segue.main import create_app
from segue.memory import session_store


@pytest.fixture
async def services(settings: Settings) -> AsyncIterator[Services]:
    app = create_app(settings)
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        yield state["services"]


async def test_a_clients_id_is_one_session_of_each_caller_also_if_two_requests_come_at_once(services: Services) -> None:
    both = await asyncio.gather(*(session_of_client(services, "ada", "chat 1") for _ in range(2)))
    again = await session_of_client(services, "ada", "chat 1")
    assert {again.id} == {session.id for session in both}
    assert await list_of(services, "ada") == [again.id]
    assert (await session_of_client(services, "bob", "chat 1")).id != again.id
    assert (await session_of_client(services, "ada", again.id)).id == again.id
    await services.turns.delete_session("ada", again.id)
    assert (await session_of_client(services, "ada", "chat 1")).id != again.id


async def list_of(services: Services, owner: str) -> list[str]:
    async with services.database.read_only() as connection:
        return [each.id for each in await session_store.list_sessions(connection, owner, before=None, limit=9)]


async def test_an_id_of_ours_that_is_not_the_callers_is_not_found_and_a_bad_one_of_a_client_is_refused(
    services: Services,
) -> None:
    theirs = (await session_of_client(services, "bob", "chat 1")).id
    bad = ["", "x" * (MAX_CLIENT_ID_CHARS + 1), "a\nb", "\x00", "\ud800"]
    codes = {}
    for client_id in (theirs, new_id("ses", utc_now()), "ses_1", *bad):
        with pytest.raises(AppError) as refused:
            await session_of_client(services, "ada", client_id)
        codes[client_id] = refused.value.code
    assert codes == dict.fromkeys(codes.keys() - bad, "session_not_found") | dict.fromkeys(bad, "invalid_request")
    with pytest.raises(AppError, match="no agent"):
        await session_of_client(services, "ada", "chat 2", agent="nobody")
    assert await list_of(services, "ada") == []
