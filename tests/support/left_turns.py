"""Turns as a process leaves them that is gone or stopped: claimed, and looked after by no process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.identity import LOCAL_USER
from segue.domain.ids import utc_now
from segue.domain.session import NO_OPTIONS, TurnOptions
from segue.turns import admission, claims
from segue.turns.chat_request import ChatRequest
from segue.turns.claims import Claim
from tests.support.service import Client


async def left_running(settings: Settings, client: Client, *workers: str) -> dict[str, str]:
    """A session by worker, each with a turn whose message is the worker's name."""
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    sessions = {worker: await client.new_session() for worker in workers}
    async with database.autocommit() as connection:
        for worker, session in sessions.items():
            await admission.begin_turn(connection, LOCAL_USER, session, ChatRequest(worker), now=utc_now(), room=9)
            assert await claims.claim_next(connection, session, worker=worker, lease_s=500)
    await database.close()
    return sessions


@asynccontextmanager
async def abandoned(
    settings: Settings, session: str, *, lease_s: float = 0.0, options: TurnOptions = NO_OPTIONS
) -> AsyncIterator[tuple[Database, Claim]]:
    """A turn that a worker has claimed that is not there any more."""
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    async with database.autocommit() as connection:
        request = ChatRequest("hello?", options=options)
        await admission.begin_turn(connection, LOCAL_USER, session, request, now=utc_now(), room=9)
        claim = await claims.claim_next(connection, session, worker="gone", lease_s=lease_s)
    assert claim is not None
    try:
        yield database, claim
    finally:
        await database.close()
