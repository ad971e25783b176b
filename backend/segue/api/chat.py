"""Routes to say something, and to read, cancel, redo or fork turns. A client that disconnects stops no turn."""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from structlog.contextvars import bind_contextvars

from segue.api import deps
from segue.api.deps import Caller, IdempotencyKey, MessageId, OriginDep, Parts, SessionId, TurnId, router_of
from segue.api.event_streams import MEDIA_TYPE, OR_EVENTS, EventStream, framed
from segue.api.problems import problems
from segue.api.schemas import BY_SEQ, Answerer, ChatBody, Delivery, EditedMessage, NewFork, Page, Paged, id_position
from segue.domain.errors import InvalidRequest
from segue.domain.field_types import doc
from segue.domain.ids import OF_BODY, OF_KEY, Prefix, digest_of_json
from segue.domain.plan import Button
from segue.domain.session import NO_OPTIONS, ChatAnswer, Session, Turn, TurnOptions, TurnStatus
from segue.domain.tool import canonical_args
from segue.events import user_feed
from segue.history.fork_and_import import fork_session, forked_before
from segue.tools.attachment_store import check_fork
from segue.tools.input_schema import schema_text
from segue.turns import queries
from segue.turns.admission import Admitted
from segue.turns.branches import Branch, list_branches
from segue.turns.chat_request import ChatRequest, Origin, once

router = router_of("chat", "/sessions")
turns_router = router_of("turns", "/sessions/{session_id}/turns")

WAIT, AGAIN = Delivery(), Answerer()
OF_EDITS = ("not_in_history", "not_the_users", "cannot_edit_steer", "unknown_attachment", "option_not_allowed")
OF_FORKS = ("message_not_found", "not_in_history", "turn_in_progress", "attachment_quota_exceeded")
_POSITION = id_position("turn")


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """The turn that an event has begun."""

    turn_id: Annotated[str, doc("The id of the turn; begins with `turn_`.")]


@dataclass(frozen=True, slots=True)
class AcceptedTurn(BegunTurn):
    """A turn that was accepted and whose answer the request does not wait for."""

    status: Annotated[TurnStatus, doc("The status of the turn when the request was accepted.")]
    events_url: Annotated[str, doc("The path at which the turn's events can be followed.")]


ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"model": AcceptedTurn, "description": "The turn was accepted: with `background` the request does not wait"}
}


def accepted(http: Request, admitted: Admitted) -> AcceptedTurn:
    turn = admitted.turn
    url = f"{http.scope.get('root_path', '')}/sessions/{turn.session_id}/turns/{turn.turn_id}/events"
    return AcceptedTurn(turn.turn_id, admitted.status, url)


def check_length(services: deps.Services, message: str, advice: str = "") -> None:
    """Raises AppError `invalid_request`."""
    if len(message) > (at_most := services.settings.max_message_chars):
        detail = f"The message has {len(message)} characters, and may have {at_most} (MAX_MESSAGE_CHARS).{advice}"
        raise InvalidRequest(detail)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request for a turn, and whose it is: what every route takes that answers as `chat` does."""

    caller: str
    services: deps.Services
    http: Request
    origin: Origin
    idempotency_key: str | None = None

    async def request(self, message: str, how: Delivery, *fingerprint: str | int, **more: Any) -> ChatRequest:
        """`fingerprint` is the same in a second request with the same key, `more` are fields. Raises InvalidRequest."""
        check_length(self.services, message, " Attach a longer text as a file.")
        options = NO_OPTIONS
        if isinstance(how, EditedMessage) and how.output_schema is not None:
            options = TurnOptions(await schema_text(how.output_schema))
            fingerprint = (*fingerprint, *options.fingerprint)
        if isinstance(how, Answerer) and how.model is not None:
            options = replace(options, model=how.model)
            fingerprint = (*fingerprint, "model", how.model)
        key = once(self.idempotency_key, *fingerprint)
        streams = self._streams(how)
        return ChatRequest(message, once=key, stream=streams, origin=self.origin, options=options, **more)

    def id_of(self, prefix: Prefix, body: BaseModel, *of: str) -> str | None:
        """Returns the id of what the request makes: if it is sent again, the same. None without an Idempotency-Key."""
        asked = self.caller, self.idempotency_key, body.model_dump(mode="json", exclude_unset=True), *of
        same = f"{prefix}_{digest_of_json(asked[:2])[:OF_KEY]}{digest_of_json(asked)[:OF_BODY]}"
        return same if self.idempotency_key is not None else None

    async def accept(self, session_id: str, request: ChatRequest, how: Delivery) -> Response:
        return await self.answer(await self.services.turns.accept(self.caller, session_id, request), how)

    async def answer(self, admitted: Admitted, how: Delivery) -> Response:
        """Answers with a turn as it was asked for: its ChatAnswer, its events as they happen, or where to find them.
        Raises the AppError that the turn ended with.
        """
        turn, events = admitted.turn, self.services.events
        bind_contextvars(turn_id=turn.turn_id)
        if how.background:
            return JSONResponse(asdict(accepted(self.http, admitted)), status_code=202)
        if self._streams(how):
            return EventStream(framed(events.follow(turn)), headers={"X-Turn-Id": turn.turn_id})
        return Response(await events.answer(turn), media_type="application/json")

    def _streams(self, how: Delivery) -> bool:
        accepted = self.http.headers.get("accept", "").lower()
        return how.stream or (MEDIA_TYPE in accepted and "application/json" not in accepted)


def fingerprint_of(button: Button) -> tuple[str | int, ...]:
    """Returns what has to be the same in a second request with the same idempotency key."""
    more = canonical_args(button.args) if button.args is not None else button.message or None
    answer = f"answer {canonical_args(button.answer)}" if button.answer is not None else None
    details = (each for each in (more, button.remember, answer) if each is not None)
    return (button.decision, button.version, *details, *sorted(button.chosen or ()))


async def _client(
    services: Parts, caller: Caller, http: Request, origin: OriginDep, idempotency_key: IdempotencyKey = None
) -> ClientRequest:
    return ClientRequest(caller, services, http, origin, idempotency_key)


Client = Annotated[ClientRequest, Depends(_client)]


def as_chat(*codes: str) -> dict[str, Any]:
    """The options of a route that answers as `chat` does."""
    responses = {**OR_EVENTS, **ACCEPTED, **problems("turn_in_progress", *codes)}
    return {"response_model": ChatAnswer, "responses": responses}


@router.post("/{session_id}/chat", **as_chat("too_many_queued", "unknown_attachment", "option_not_allowed"))
async def chat(session_id: SessionId, body: ChatBody, client: Client) -> Response:
    """Sends a message to the agent. Answers with a ChatAnswer once the turn has ended, with `"stream": true` or
    `Accept: text/event-stream` with its events as they happen, or with `background` with a 202 at once. A client that
    disconnects does not stop the turn.
    """
    files, unlike = tuple(body.attachments), () if body.approves else ("approves_nothing",)
    fingerprint = (body.message, body.force_web_search, body.on_busy, *files, *unlike)
    more = {"force_web_search": body.force_web_search, "on_busy": body.on_busy, "approves": body.approves}
    request = await client.request(body.message, body, *fingerprint, attachment_ids=files, **more)
    return await client.accept(session_id, request, body)


@turns_router.get("")
async def list_turns(session_id: SessionId, services: Parts, caller: Caller, paging: Paged) -> Page[Turn]:
    """Lists the turns of a session. Newest first."""
    of = caller, session_id
    found = await services.read_in(*of, queries.list_turns, *of, **paging.behind(_POSITION))
    return paging.page(found, lambda turn: turn.turn_id)


@turns_router.get("/{turn_id}")
async def get_turn(session_id: SessionId, turn_id: TurnId, services: Parts, caller: Caller) -> Turn:
    """Shows a turn: its status, and its answer or error once it has ended."""
    return await services.read(queries.get_turn, caller, session_id, turn_id)


@turns_router.post("/{turn_id}/cancel")
async def cancel_turn(session_id: SessionId, turn_id: TurnId, services: Parts, caller: Caller) -> Turn:
    """Cancels a turn, and messages that it was still to read. Answers once it has ended; an ended turn stays so."""
    return await services.turns.cancel(caller, session_id, turn_id)


@router.post("/{session_id}/messages/{message_id}/edit", **as_chat(*OF_EDITS))
async def edit_message(session_id: SessionId, message_id: MessageId, body: EditedMessage, client: Client) -> Response:
    """Replaces one of the user's messages and answers the new one. Answers as `chat` does. What came after the old
    message leaves the history and stays readable as a branch. The new message has only the files that it names. The
    open plan is cancelled; what tools had done is not undone, and the model is told of it.
    """
    files = tuple(body.attachments)
    fingerprint, more = ("edit", message_id, body.message, *files), {"instead_of": message_id, "attachment_ids": files}
    request = await client.request(body.message, body, *fingerprint, **more)
    return await client.accept(session_id, request, body)


@router.post("/{session_id}/messages/{message_id}/regenerate", **as_chat("not_in_history", "option_not_allowed"))
async def regenerate(session_id: SessionId, message_id: MessageId, client: Client, body: Answerer = AGAIN) -> Response:
    """Answers the user's message of a turn again. Works as an edit of that message that changes nothing in it."""
    request = await client.request("", body, "regenerate", message_id, instead_of=message_id)
    return await client.accept(session_id, request, body)


@router.post("/{session_id}/turns/{turn_id}/retry", **as_chat("cannot_retry"))
async def retry_turn(session_id: SessionId, turn_id: TurnId, client: Client, body: Delivery = WAIT) -> Response:
    """Runs the last turn again if it failed or was cancelled. Answers as `chat` does. The turn goes on as after a
    crash: it keeps its plan and what its tools had done.
    """
    request = await client.request("", body, "retry", turn_id)
    return await client.answer(await client.services.turns.retry(client.caller, session_id, turn_id, request), body)


@router.post("/{session_id}/fork", status_code=201, responses=problems(*OF_FORKS))
async def fork(session_id: SessionId, body: NewFork, client: Client) -> Session:
    """Creates a session with a copy of the history up to and including a message. The copied messages, turns and tool
    results have ids of their own, and `metadata.forked_from` names the origin. No plan is open in it. If the message
    is not the last of its turn, that turn is cancelled in the copy and can be run again with `retry`.
    """
    services, caller, fork_id = client.services, client.caller, client.id_of("ses", body, session_id)
    if (made := await services.read(forked_before, caller, fork_id)) is not None:
        return made
    at_most, now = services.settings.attachment_user_bytes, services.clock()
    async with services.database.transaction() as connection:
        session = await fork_session(connection, caller, session_id, body.message_id, fork_id, now=now)
        await check_fork(connection, caller, session.id, at_most=at_most)
    services.events.tell(caller, user_feed.session_event("session_created", session))
    return session


@router.get("/{session_id}/branches")
async def get_branches(session_id: SessionId, services: Parts, caller: Caller, paging: Paged) -> Page[Branch]:
    """Lists the branches of a session: what has left its history. Newest first. `GET …/messages?branch=` reads one."""
    found = await services.read_in(caller, session_id, list_branches, session_id, **paging.behind(BY_SEQ))
    return paging.page_of_placed(found)
