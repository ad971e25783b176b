"""The session that a client calls by an id of its own: of the caller and the id, whichever door it comes through."""

from structlog.contextvars import bind_contextvars

from segue.api.deps import Services
from segue.domain.errors import AppError, NotFound
from segue.domain.ids import is_id
from segue.domain.session import Session
from segue.events import user_feed
from segue.memory import sessions

MAX_CLIENT_ID_CHARS = 200
_OURS = "ses_"


class _NameTaken(Exception):
    """Another request has given the name to a session of its own just now."""


async def session_of_client(services: Services, caller: str, client_id: str, *, agent: str | None = None) -> Session:
    """Returns the caller's session of this id, and makes one on first use. An id of ours is that session.

    `agent` answers in it from its next turn on; None leaves it its agent, a new one the default. Raises NotFound for an
    id of ours that is not the caller's, AppError `invalid_request` for a client's that is empty, long or not printable,
    `unknown_agent`.
    """
    if agent is not None:
        services.agents.check(agent, status=404)
    if client_id.startswith(_OURS):
        session = await _ours(services, caller, client_id)
    else:
        _check(client_id)
        session = await _named(services, caller, client_id, agent)
    bind_contextvars(session_id=session.id)
    if agent is None or session.agent == agent:
        return session
    async with services.database.autocommit() as connection:
        return await sessions.update_session(connection, caller, session.id, changes={"agent": agent})


async def known_session_of_client(services: Services, caller: str, client_id: str) -> Session | None:
    """Returns the caller's session of this id, None if a client's has not been used. Raises NotFound as the other."""
    if client_id.startswith(_OURS):
        return await _ours(services, caller, client_id)
    _check(client_id)
    async with services.database.read_only() as connection:
        return await sessions.find_named(connection, caller, client_id)


async def _ours(services: Services, caller: str, session_id: str) -> Session:
    if not is_id("ses", session_id):
        raise NotFound("session")
    async with services.database.read_only() as connection:
        return await sessions.get_session(connection, caller, session_id)


def _check(client_id: str) -> None:
    if not (0 < len(client_id) <= MAX_CLIENT_ID_CHARS and client_id.isprintable()):
        raise AppError(
            "invalid_request",
            status=422,
            title="The request is not valid",
            detail=f"The id of a conversation is one printable line of 1 to {MAX_CLIENT_ID_CHARS} characters.",
        )


async def _named(services: Services, caller: str, client_id: str, agent: str | None) -> Session:
    while True:
        async with services.database.read_only() as connection:
            found = await sessions.find_named(connection, caller, client_id)
        if found is not None:
            return found
        try:
            return await _made(services, caller, client_id, agent)
        except _NameTaken:  # committed by now: it is found, unless it is deleted again
            continue


async def _made(services: Services, caller: str, client_id: str, agent: str | None) -> Session:
    given = {"agent": agent} if agent is not None else {}
    async with services.database.transaction() as connection:
        session = await sessions.create_session(
            connection, caller, title=None, metadata={}, now=services.clock(), time_zone=services.time_zone, **given
        )
        if not await sessions.name_session(connection, caller, client_id, session.id):
            raise _NameTaken
    services.events.tell(caller, user_feed.session_created(session))
    return session
