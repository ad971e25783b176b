"""Who asks at a door, or is spoken for, in which session; and the words, files and buttons that all doors share."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import Depends
from pydantic import Field
from structlog.contextvars import bind_contextvars

from segue.api.attachments import SentFile, is_file, with_files, words_of
from segue.api.chat import Client, ClientRequest
from segue.api.deps import IdentityDep, Services
from segue.api.schemas import Json
from segue.api.sessions import NameTaken, make_session
from segue.db.engine import Connection
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError, InvalidRequest, NotFound, app_error, existing
from segue.domain.identity import Identity, is_user, user_of_gateway
from segue.domain.ids import is_id
from segue.domain.plan import Button, Plan
from segue.domain.session import NO_OPTIONS, Session, TurnKey, TurnOptions
from segue.memory import session_store
from segue.tools.page_tools import OfferedTools, about_page, given_tools
from segue.turns.admission import Admitted
from segue.turns.chat_request import ChatRequest, Once
from segue.turns.queries import find_turn, first_open_turn
from segue.turns.turn_deps import Speaker

MAX_CLIENT_ID_CHARS = 200
NAMED_USERS: Final = ("x-openwebui-user-id", "x-openwebui-user-email")  # the first that is there counts
# A plan and its version; and a step, perhaps for one message.
INTERRUPT_ID: Final = re.compile(r"(plan_[0-9a-hjkmnp-tv-z]{26}):([1-9]\d{0,8})", re.ASCII)
CALL_ID: Final = re.compile(rf"{INTERRUPT_ID.pattern}:([1-9])(?::\w{{1,40}})?", re.ASCII)
ClientId = Annotated[str, Field(min_length=1, max_length=MAX_CLIENT_ID_CHARS)]


async def session_of_client(client: Client, client_id: str, *, agent: str | None = None) -> Session:
    """Returns the caller's session of this id, and makes one on first use. An id of ours is that session. `agent`
    answers in it from its next turn on; None leaves it its agent, a new one the default. Raises what `find_session`
    raises, AppError `unknown_agent`.
    """
    if agent is not None:
        agent_of(client, agent)
    while (session := await find_session(client, client_id)) is None:
        with suppress(NameTaken):  # committed by now: it is found, unless it is deleted again
            return await with_agent(
                client, await make_session(client, {client_id: None}, agent=agent or DEFAULT_AGENT), agent
            )
    return await with_agent(client, session, agent)


async def known_session(client: Client, client_id: str) -> Session:
    """Raises what `find_session` raises, and NotFound."""
    session = existing("session", await find_session(client, client_id))
    bind_contextvars(session_id=session.id)
    return session


async def find_session(client: Client, client_id: str) -> Session | None:
    """Returns None if the caller has used this id for no session yet. Raises NotFound for an id of ours that is not the
    caller's, AppError `invalid_request` for a client's that is empty, long or not printable.
    """
    if client_id.startswith("ses_"):
        if not is_id("ses", client_id):
            raise NotFound("session")
        return await client.services.read(session_store.get_session, client.caller, client_id)
    if not (0 < len(client_id) <= MAX_CLIENT_ID_CHARS and client_id.isprintable()):
        raise InvalidRequest(f"A conversation's id is one printable line of 1 to {MAX_CLIENT_ID_CHARS} characters.")
    return await client.services.read(session_store.find_named, client.caller, client_id)


async def with_agent(client: Client, session: Session, agent: str | None) -> Session:
    """Returns the session with this agent, which answers from its next turn on. Its log lines have its id."""
    bind_contextvars(session_id=session.id)
    if agent is None or session.agent == agent:
        return session
    given = client.caller, session.id
    return await client.services.database.write(session_store.update_session, *given, changes={"agent": agent})


def agents_of(client: Client) -> Mapping[str, Speaker]:
    """Returns the agents that the caller may speak to, by id."""
    return client.services.agents.of(client.caller, client.origin.groups)


def agent_of(client: Client, agent: str) -> Speaker:
    """Raises AppError `unknown_agent`."""
    return client.services.agents.check(agent, client.caller, client.origin.groups, status=404)


async def _client(client: Client, identity: IdentityDep) -> ClientRequest:
    caller = await spoken_for(client.services, identity, client.http.headers)
    origin = client.origin if caller == identity.user else replace(client.origin, groups=())
    return replace(client, caller=caller, origin=origin)


DoorClient = Annotated[ClientRequest, Depends(_client)]


async def spoken_for(services: Services, identity: Identity, headers: Mapping[str, str]) -> str:
    """Returns the caller or, if the request names a user of a gateway with the scope `act_as`, that user. A caller
    without the scope is refused: the gateway's users would share all that the agent remembers. Without AUTH all callers
    are one user anyway. Raises AppError `may_not_speak_for`, Unauthorized.
    """
    signed = headers.get("x-openwebui-user-jwt")
    named = next((headers[name] for name in NAMED_USERS if headers.get(name)), None)
    if identity.is_everybody or (signed is None and named is None):
        return identity.user
    if "act_as" not in identity.scopes:
        raise app_error("may_not_speak_for")
    if services.gateway is not None:
        if signed is None:
            raise app_error("user_not_signed")
        return user_of_gateway(identity, (await services.gateway.identify(signed)).user).user
    if named is None:
        raise app_error("signed_user_unchecked")
    if not is_user(named):
        raise app_error("no_user_name")
    return user_of_gateway(identity, named).user


def turn_headers(turn: TurnKey) -> dict[str, str]:
    """Returns the headers of an answer that name its turn. Its log lines have the id."""
    bind_contextvars(turn_id=turn.turn_id)
    return {"X-Session-Id": turn.session_id, "X-Turn-Id": turn.turn_id}


def on_disconnect(client: Client, turn: TurnKey, *, asked: bool = False) -> dict[str, Any]:
    """Returns the options of a stream whose client has `asked`, here or in a header, to cancel the turn by leaving."""
    if not asked and client.http.headers.get("x-on-disconnect") != "cancel":
        return {}

    async def left(_: object) -> None:
        with suppress(AppError):  # its session is gone, or Postgres is away: the client has left and hears no error
            await client.services.turns.cancel(client.caller, turn.session_id, turn.turn_id)

    return {"client_close_handler_callable": left}


def interrupt_id(plan: Plan) -> str:
    return f"{plan.id}:{plan.version}"


def plan_asked(interrupt: str) -> tuple[str, int] | None:
    """Returns the id and the version of the plan whose question it is; None if it is none of ours."""
    found = INTERRUPT_ID.fullmatch(interrupt)
    return (found[1], int(found[2])) if found else None


def text_of(content: object) -> str:
    """Returns the words of a message. Raises AppError `invalid_request`, `parts_unsupported`."""
    text = content
    if isinstance(content, list):
        text = "\n".join(_text_of_part(part) for part in content if not is_file(part))
    if not isinstance(text, str) or not (text := words_of(text, content)):
        raise InvalidRequest("The user's newest message has no text.")
    return text


def _text_of_part(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise app_error("parts_unsupported", why=f"A part of the type {kind[:40]!r} cannot be read.")
    raise InvalidRequest("A part of the user's newest message is neither text nor a file.")


def nothing_new() -> AppError:
    return InvalidRequest("Nothing in `messages` is new: the user has said nothing after the assistant's last message.")


async def say(client: Client, session_id: str, request: ChatRequest, files: Sequence[SentFile] = ()) -> Admitted:
    """Accepts a message of any length with its files. Raises what `accept` and `with_files` raise."""
    request = await with_files(client, session_id, replace(request, origin=client.origin), files)
    return await client.services.turns.accept(client.caller, session_id, request)


def button_of_page(results: Sequence[tuple[str, Json]]) -> Button | None:
    """Returns the decision with these results, by the ids of calls, on the plan that waited last for one, or None."""
    found = [(match, result) for call_id, result in results if (match := CALL_ID.fullmatch(call_id))]
    if not found:
        return None
    plan_id, version = found[-1][0].group(1, 2)
    answer = {match[3]: result for match, result in found if match.group(1, 2) == (plan_id, version)}
    return Button("confirm", int(version), plan_id=plan_id, answer=answer)


def page_key(button: Button) -> str:
    """Returns the idempotency key of what the page gave: it counts once, though several runs may bring it."""
    return f"page:{button.plan_id}:{button.version}"


async def open_turn(connection: Connection, client: Client, session_id: str) -> TurnKey | None:
    """Returns the first turn of a session that has not ended."""
    running = await first_open_turn(connection, session_id)
    return None if running is None else await find_turn(connection, client.caller, session_id, running)


def options_of(
    client: Client,
    tools: OfferedTools | None,
    context: Sequence[Mapping[str, Any]] | None,
    state: object = None,
    *,
    model: str | None = None,
) -> TurnOptions:
    """Returns what a client's page asks of a turn. Raises AppError `client_tools`."""
    taken = client.services.tools.tools_for(client.caller, client.origin.groups) if tools else ()
    return TurnOptions(model=model, page_tools=given_tools(tools, taken), page=about_page(context or (), state))


async def decide(
    client: Client, session_id: str, button: Button, known: Once | None, options: TurnOptions = NO_OPTIONS
) -> TurnKey:
    """Raises what `TurnService.decide` raises."""
    request = ChatRequest("", once=known, stream=True, origin=client.origin, options=options)
    return await client.services.turns.decide(client.caller, session_id, button, request)
