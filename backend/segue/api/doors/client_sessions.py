"""The session that a client calls by an id of its own: of the caller and the id, whichever door it comes through."""

from collections.abc import Collection, Mapping, Sequence

from structlog.contextvars import bind_contextvars

from segue.api.deps import Services
from segue.domain.errors import InvalidRequest, NotFound
from segue.domain.ids import is_id
from segue.domain.session import Session
from segue.events import user_feed
from segue.memory import sessions
from segue.turns.imports import Said, import_history

MAX_CLIENT_ID_CHARS = 200
_OURS = "ses_"


class NameTaken(Exception):
    """Another request has given the name to a session of its own just now."""


async def session_of_client(
    services: Services, caller: str, client_id: str, *, agent: str | None = None, groups: Collection[str] = ()
) -> Session:
    """Returns the caller's session of this id, and makes one on first use. An id of ours is that session.

    `agent` answers in it from its next turn on; None leaves it its agent, a new one the default. Raises what
    `find_session` raises, AppError `unknown_agent`.
    """
    if agent is not None:
        services.agents.check(agent, caller, groups, status=404)
    while (session := await find_session(services, caller, client_id)) is None:
        try:
            session = await make_session(services, caller, {client_id: None}, agent=agent)
            break
        except NameTaken:  # committed by now: it is found, unless it is deleted again
            continue
    return await with_agent(services, caller, session, agent)


async def find_session(services: Services, caller: str, client_id: str) -> Session | None:
    """Returns None if the caller has used this id for no session yet. Raises NotFound for an id of ours that is not the
    caller's, AppError `invalid_request` for a client's that is empty, long or not printable.
    """
    if client_id.startswith(_OURS):
        if not is_id("ses", client_id):
            raise NotFound("session")
        async with services.database.read_only() as connection:
            return await sessions.get_session(connection, caller, client_id)
    if not (0 < len(client_id) <= MAX_CLIENT_ID_CHARS and client_id.isprintable()):
        raise InvalidRequest(
            f"The id of a conversation is one printable line of 1 to {MAX_CLIENT_ID_CHARS} characters."
        )
    async with services.database.read_only() as connection:
        return await sessions.find_named(connection, caller, client_id)


async def make_session(
    services: Services,
    caller: str,
    names: Mapping[str, str | None],
    *,
    agent: str | None = None,
    said: Sequence[Said] = (),
    key: str = "",
) -> Session:
    """Makes a session with these names: of each, the id of the session that has it until now. With what was `said` as
    its first turns, the last under the idempotency `key`. Raises NameTaken if another session has a name.
    """
    given = {"agent": agent} if agent is not None else {}
    async with services.database.transaction() as connection:
        session = await sessions.create_session(
            connection, caller, title=None, metadata={}, now=services.clock(), time_zone=services.time_zone, **given
        )
        for name, before in names.items():
            if not await sessions.name_session(connection, caller, name, session.id, instead_of=before):
                raise NameTaken
        if said:
            await import_history(connection, session.id, said, key=key, now=services.clock())
    services.events.tell(caller, user_feed.session_created(session))
    return session


async def with_agent(services: Services, caller: str, session: Session, agent: str | None) -> Session:
    """Returns the session with this agent, which answers from its next turn on. Its log lines have its id."""
    bind_contextvars(session_id=session.id)
    if agent is None or session.agent == agent:
        return session
    async with services.database.autocommit() as connection:
        return await sessions.update_session(connection, caller, session.id, changes={"agent": agent})
