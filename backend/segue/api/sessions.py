"""Routes to sessions, their messages and memory, and to feedback on answers."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime, Field, Strict, TypeAdapter
from starlette.responses import Response

from segue.api import deps, schemas
from segue.api.chat import Client
from segue.api.deps import BranchId, Caller, IdentityDep, MessageId, Ops, OriginDep, Parts, SessionId, router_of
from segue.api.problems import problems
from segue.api.schemas import Page, Paged
from segue.domain import session as domain
from segue.domain.errors import InvalidRequest, app_error
from segue.domain.field_types import doc
from segue.domain.ids import id_pattern
from segue.domain.recording import RecordedSettings, Recording, recording_text
from segue.domain.session import Message, Session, UnreadableMessage, UnreadableSession
from segue.events import user_feed
from segue.history.export import as_markdown, load_conversation, make_recording
from segue.history.fork_and_import import Said, import_history
from segue.memory import fact_store, history, session_store
from segue.memory.session_search import SearchPosition, search_sessions
from segue.memory.short_term import ShortTermMemory
from segue.turns.queries import groups_of_last, with_metadata, with_turns
from segue.turns.snapshot import working_memory

_DIRECTIONS = dict.fromkeys([0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])  # copied along
AllWords = Annotated[schemas.NameFilter, Query(description="Words that are all in the title or in one message.")]
Order = Annotated[Literal["asc", "desc"], Query(description="Whether the oldest or the newest messages come first.")]
Before = Annotated[int, Query(ge=1, le=history.MAX_SEQ, description="Only messages whose `seq` is below this.")]
Around = Annotated[
    Annotated[str, Field(pattern=f"{id_pattern('msg')}|{id_pattern('turn')}")] | None,
    Query(description="The id of a message or turn in the middle of the page; not with `cursor` or `before`."),
]
WithText = Annotated[Literal["text"] | None, Query(description="`text`: also shows what each part says.")]
Format = Annotated[Literal["json", "markdown"], Query(description="A recording for `segue replay`, or a text to read.")]
MaxResultBytes = Annotated[int, Query(ge=0, le=1_000_000, description="The largest result to include, in bytes.")]
Rated = Annotated[domain.Rating | None, Query(description="Lists only answers with this rating.")]

_Moment = Annotated[AwareDatetime, Strict(), AfterValidator(lambda at: at.astimezone(UTC))]
_SessionId = Annotated[str, Field(pattern=id_pattern("ses"))]
_ACTIVITY: TypeAdapter[tuple[datetime, str]] = TypeAdapter(tuple[_Moment, _SessionId])
_SEARCHED: TypeAdapter[tuple[datetime, str] | tuple[datetime, str, int]] = TypeAdapter(
    tuple[_Moment, _SessionId] | tuple[_Moment, _SessionId, Annotated[int, Field(strict=True, gt=0, lt=2**63)]]
)

PLAIN = schemas.NewSession()
MARKDOWN: schemas.Responses = {200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}}
EXPORT = {**MARKDOWN, **problems("nothing_to_export", "conversation_too_long")}
router = router_of("sessions", "/sessions")
feedback_router = router_of("feedback")


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What the agent remembers in a session."""

    short_term: Annotated[ShortTermMemory | None, doc("What the latest turns left behind; null if no turn has ended.")]
    ttl_s: Annotated[int, doc("How many seconds the short-term memory is still kept if nothing is said.")]
    long_term: Annotated[list[domain.Memory | domain.UnreadableMemory], doc("The caller's newest facts, at most 50.")]


@router.post("", status_code=201, responses=problems("unknown_agent"))
async def create_session(client: Client, body: schemas.NewSession = PLAIN) -> Session:
    """Creates a session. A request sent again with its Idempotency-Key gets the same session, whatever its body."""
    client.services.agents.check(body.agent, client.caller, client.origin.groups, status=422)
    return await session_of_key(client, body)


async def session_of_key(client: Client, wishes: schemas.NewSession) -> Session:
    """Returns the session that the request's Idempotency-Key has made, or makes one."""
    given = {name: getattr(wishes, name) for name in ("title", "agent", "language", "metadata", "time_zone")}
    if (key := client.idempotency_key) is None:
        return await make_session(client, {}, **given)
    while (found := await client.services.read(session_store.find_named, client.caller, f"once:{key}")) is None:
        with suppress(NameTaken):  # by the same request, just now
            return await make_session(client, {f"once:{key}": None}, **given)
    return found


class NameTaken(Exception):
    """Another session of the caller's has the name. Another request may just have given it to its own."""


async def make_session(
    client: Client, names: Mapping[str, str | None], *, said: Sequence[Said] = (), key: str = "", **given: Any
) -> Session:
    """Makes a session with these names: of each, the id of the session that has it until now. With what was `said` as
    its first turns, the last under the idempotency `key`. Raises NameTaken if another session has a name.
    """
    database, caller, now = client.services.database, client.caller, client.services.clock()
    given = {"title": None, "metadata": {}, **given}
    given["time_zone"] = given.get("time_zone") or client.services.settings.session_time_zone
    async with database.transaction() if names else database.autocommit() as connection:
        session = await session_store.create_session(connection, caller, now=now, **given)
        for name, before in names.items():
            if not await session_store.name_session(connection, caller, name, session.id, instead_of=before):
                raise NameTaken
        if said:
            await import_history(connection, session.id, said, key=key, now=client.services.clock())
    client.services.events.tell(caller, user_feed.session_event("session_created", session))
    return session


@router.get("")
async def list_sessions(
    services: Parts,
    caller: Caller,
    paging: Paged,
    *,
    query: AllWords = None,
    archived: Annotated[bool, Query(description="Only archived sessions, or only the others.")] = False,
    pinned: Annotated[bool | None, Query(description="Only pinned sessions or only others; all if left out.")] = None,
) -> Page[Session | domain.FoundSession | UnreadableSession]:
    """Lists the caller's sessions, the latest active first. Archived sessions come only with `archived=true`. With
    `query` it lists the sessions that have all its words in the title or in one message, which `snippet` shows. A page
    of a search looks at 2,000 sessions and 10,000 messages, so even a short or empty one may have a `next_cursor`.
    """
    which: dict[str, Any] = {"archived": archived, "pinned": pinned}
    if words := (query or "").translate(_DIRECTIONS).split():
        after = SearchPosition(*reached) if (reached := paging.after(_SEARCHED)) else None
        hits, behind = await services.read(search_sessions, caller, words, **which, after=after, limit=paging.limit)
        position = [each for each in astuple(behind) if each is not None] if behind else None
        return Page([*hits], schemas.encode_cursor(position) if position else None)
    found = await services.read(session_store.list_sessions, caller, **which, **paging.behind(_ACTIVITY))
    return paging.page(found, lambda session: [session.updated_at, session.id])


@router.get("/{session_id}")
async def get_session(session_id: SessionId, services: Parts, caller: Caller) -> Session | UnreadableSession:
    """Shows one of the caller's sessions."""
    return await services.read(session_store.get_session, caller, session_id)


@router.patch("/{session_id}", responses=problems("unknown_agent"))
async def update_session(
    session_id: SessionId, body: schemas.SessionChanges, services: Parts, caller: Caller, origin: OriginDep
) -> Session | UnreadableSession:
    """Changes a session. A new agent answers from the next turn on."""
    changes = body.model_dump(include=body.model_fields_set)
    if "agent" in changes:
        services.agents.check(body.agent, caller, origin.groups, status=422)
    if "time_zone" in changes:
        changes["time_zone"] = body.time_zone or services.settings.session_time_zone
    session = await services.database.write(session_store.update_session, caller, session_id, changes=changes)
    if "title" in changes:
        services.events.tell(caller, user_feed.session_event("session_titled", session))
    return session


@router.delete("/{session_id}", status_code=204)
async def delete_session(session_id: SessionId, services: Parts, caller: Caller) -> None:
    """Deletes a session with everything in it. Its running turn is cancelled; facts learned in it stay."""
    await services.turns.delete_session(caller, session_id)


@router.get("/{session_id}/messages", responses=problems("branch_not_found", "message_not_found"))
async def list_messages(
    session_id: SessionId,
    services: Parts,
    caller: Caller,
    paging: Paged,
    order: Order = "asc",
    before: Before = history.MAX_SEQ,
    around: Around = None,
    include: Annotated[Literal["turn"] | None, Query(description="`turn`: adds how each turn went.")] = None,
    branch: Annotated[BranchId | None, Query(description="The id of a branch to list instead of the history.")] = None,
) -> schemas.PageAround[Message | domain.MessageOfTurn | UnreadableMessage]:
    """Lists the messages of a session. With `include=turn` the answer of each turn says how the turn went; if the turn
    has no answer, the user's message does. With `branch` it lists the messages of that branch. `next_cursor` leads on
    in the same `order`, `previous_cursor` back with the other one.
    """
    reached, newest_first = paging.after(schemas.BY_SEQ), order == "desc"
    if around is not None and (reached is not None or before != history.MAX_SEQ):
        raise InvalidRequest("A page `around` a message has neither `cursor` nor `before`.")
    after, below = (0, before if reached is None else min(before, reached)) if newest_first else (reached or 0, before)
    async with services.database.read_only() as connection:
        await session_store.check_session(connection, caller, session_id)
        if branch is not None:
            await history.check_branch(connection, session_id, branch)
        listed: dict[str, Any] = {"limit": paging.limit, "newest_first": newest_first, "branch": branch}
        if around is not None:
            found, is_behind, is_more = await history.messages_around(connection, caller, session_id, around, **listed)
        else:
            listed["limit"] += 1
            found = await history.list_messages(connection, caller, session_id, after=after, before=below, **listed)
            is_behind, is_more, found = bool(reached and found), len(found) > paging.limit, found[: paging.limit]
        found = await with_metadata(connection, found)
        if include:
            found = await with_turns(connection, found)
    cursors = (schemas.encode_cursor(found[at].seq) if there else None for at, there in ((-1, is_more), (0, is_behind)))
    return schemas.PageAround(found, *cursors)


@router.get("/{session_id}/prompt", responses=problems("unreadable", "forbidden"))
async def get_prompt(
    session_id: SessionId, services: Parts, identity: IdentityDep, origin: OriginDep, include: WithText = None
) -> domain.PromptReport:
    """Shows what the next request to the model is made of. Lists its parts in order with their tokens, and with
    `include=text` their words. The scope `ops` shows any user's session, but its words only with `ops:content`.
    """
    owner, groups = identity.user, {*identity.groups}
    if "ops" in identity.scopes:
        async with services.database.read_only() as connection:
            owner = await session_store.owner_of(connection, session_id)
            groups = groups if owner == identity.user else {*await groups_of_last(connection, session_id)}
    if include and owner != identity.user:
        await services.database.transact(deps.record_reading, identity, origin, session_id)
    return await services.turns.next_request(owner, session_id, groups, texts=include is not None)


@router.get("/{session_id}/memory")
async def get_memory(session_id: SessionId, services: Parts, caller: Caller) -> SessionMemory:
    """Shows what the agent remembers in a session. That is its short-term memory and the caller's facts."""
    async with services.database.read_only() as connection:
        session = await session_store.get_session(connection, caller, session_id)
        known = await fact_store.list_facts(connection, caller, before=None, limit=50)
    ttl_s, now = services.settings.short_term_memory_ttl, services.clock()
    memory, ttl_s = await working_memory(
        services.database, services.cache, session_id, message_count=session.message_count, ttl_s=ttl_s, now=now
    )
    return SessionMemory(short_term=memory, ttl_s=ttl_s, long_term=[memory for memory, _ in known])


@router.get("/{session_id}/export", response_model=Recording, responses=EXPORT)
async def export_session(
    session_id: SessionId,
    services: Parts,
    caller: Caller,
    format: Format = "json",  # noqa: A002 (the name of the parameter)
    max_result_bytes: MaxResultBytes = 100_000,
) -> Response:
    """Exports the turns of a session that have ended, without secrets. A result over `max_result_bytes` is left out and
    only described; in Markdown all results are.
    """
    conversation = await services.read(
        load_conversation, caller, session_id, max_result_bytes=max_result_bytes, now=services.clock()
    )
    if format == "markdown":
        return Response(await asyncio.to_thread(as_markdown, conversation), media_type="text/markdown")
    settings = RecordedSettings.model_validate(services.settings, from_attributes=True)
    tools = services.tools.tools()
    text = await asyncio.to_thread(lambda: recording_text(make_recording(conversation, tools, settings)))
    return Response(text, media_type="application/json")


@feedback_router.put("/sessions/{session_id}/messages/{message_id}/feedback", responses=problems("not_an_answer"))
async def rate_message(
    session_id: SessionId, message_id: MessageId, body: schemas.MessageFeedback, services: Parts, caller: Caller
) -> Message | UnreadableMessage:
    """Rates an answer. Replaces an earlier rating, and `rating: null` removes it; `metadata` of the message has it."""
    async with services.database.transaction() as connection:
        message = await history.get_message(connection, caller, session_id, message_id)
        if message.role != "assistant":
            raise app_error("not_an_answer")
        await session_store.set_feedback(connection, message_id, rating=body.rating, comment=body.comment)
        [rated] = await with_metadata(connection, [message])
    return rated


@feedback_router.get("/feedback", responses=problems("forbidden"))
async def get_feedback(services: Parts, _: Ops, paging: Paged, rating: Rated = None) -> Page[domain.Feedback]:
    """Lists the ratings of all users. Newest first, without the messages. Needs the scope `ops`."""
    found = await services.read(session_store.list_feedback, rating=rating, **paging.behind(schemas.BY_SEQ))
    return paging.page_of_placed(found)
