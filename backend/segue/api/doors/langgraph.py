"""The door for clients of LangGraph's server: an assistant is an agent, a thread a session, a run a turn. Only the
user's last words of an input are read. A decision on an interrupt acts as a button, a text as a message. A request for
what this service does not have is refused with a sentence that says so.
"""

import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import quote, urlencode

from fastapi import Depends, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sse_starlette import EventSourceResponse, ServerSentEvent

from segue import __version__
from segue.api.attachments import sent_files
from segue.api.chat import Client
from segue.api.deps import DoorRoute, TurnId, router_of
from segue.api.doors import every_door
from segue.api.doors import langgraph_frames as frames
from segue.api.doors.every_door import MAX_CLIENT_ID_CHARS, ClientId, find_session, known_session
from segue.api.doors.langgraph_frames import RunParts, StreamMode, ThreadView, encode, thread_view
from segue.api.event_streams import HEARTBEAT_S, EventStream, described_stream
from segue.api.problems import OF_DECISIONS, OF_DOORS, invalid_part, problems
from segue.api.schemas import Json, Metadata
from segue.api.sessions import NameTaken, make_session
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError, app_error
from segue.domain.field_types import doc
from segue.domain.ids import digest_of_json, new_id
from segue.domain.plan import Button
from segue.domain.session import Session, TurnKey, UnreadableMessage
from segue.events.agui_encoding import answer_json, to_json
from segue.events.event_buffer import end_of
from segue.memory.history import list_messages, opening_messages
from segue.memory.session_store import get_session, list_sessions, update_session
from segue.plans.store import StalePlan
from segue.turns.branches import opening_after
from segue.turns.chat_request import ChatRequest, OnBusy, once
from segue.turns.queries import find_turn, get_turn, list_turns, turn_of_key

MESSAGES_SHOWN: Final = 200  # of a thread
THREADS_SEARCHED: Final = 500  # the latest
ON_BUSY: Final[Mapping[str | None, OnBusy]] = {"reject": "reject", "interrupt": "interrupt", "rollback": "interrupt"}
# What cannot be left unread without doing something else than was asked for.
REFUSED = (
    "interrupt_before interrupt_after checkpoint_id webhook after_seconds supersteps ttl values ids sort_by extract"
)
OBJECT: Final[Json] = {"response_model": Json}
OBJECTS: Final[Json] = {"response_model": list[Json]}
RUN: Final = problems(*OF_DOORS, *OF_DECISIONS, "not_supported", "turn_not_found", "not_in_history")
PARTS: Final = described_stream("Parts, as LangGraph's server sends them.", 'event: values\ndata: {"messages":[]}\n\n')
STREAM: Final[Json] = {"responses": {200: {"description": "The parts of the run", "content": PARTS}, **RUN}}
METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]

router = router_of("doors", route_class=DoorRoute)

Strategy = Literal["reject", "interrupt", "rollback", "enqueue"]
OwnThreadId = Annotated[str, doc("The client's own id of the thread, or the id of a session.")]
ThreadId = Annotated[str, Path(description="The client's own id of the thread, or the id of a session.")]
AssistantId = Annotated[str, Path(description="The id of an agent that `GET /agents` lists.")]
Ignored = Annotated[bool, Query(description="Accepted, without effect.")]
Most = Annotated[int, Query(ge=1, le=100, description="The most runs to list.")]
Skipped = Annotated[int, Query(ge=0, le=1000, description="How many runs to skip.")]


class _Sent(BaseModel):
    """What it does not know is a newer client's, but for REFUSED."""

    model_config = ConfigDict(strict=True, extra="allow")

    def refuse(self) -> None:
        for name in REFUSED.split():
            if (self.model_extra or {}).get(name):
                raise app_error("field_not_supported", name=name)


class NewRun(_Sent):
    """A run to begin. `config`, `context`, `durability` and the like are accepted without effect."""

    assistant_id: Annotated[ClientId, doc("The id of the agent that answers from now on.")]
    input: Annotated[Json | None, doc("The `messages`, of which only the user's last one is read.")] = None
    command: Annotated[Json | None, doc("`resume` answers an interrupt, `goto: __end__` rejects it.")] = None
    stream_mode: Annotated[list[StreamMode] | StreamMode | None, doc("What to stream; null for `values`.")] = None
    checkpoint: Annotated[Json | None, doc("The state to go on from; an older one makes a branch.")] = None
    multitask_strategy: Annotated[Strategy | None, doc("What to do if another run is open; null for `enqueue`.")] = None
    on_disconnect: Annotated[Literal["cancel", "continue"] | None, doc("`cancel` ends the run on disconnect.")] = None

    @property
    def modes(self) -> Collection[StreamMode]:
        return (self.stream_mode,) if isinstance(self.stream_mode, str) else self.stream_mode or ("values",)

    @property
    def resume(self) -> Any:
        """What answers the interrupt; None for a run with an input. Raises AppError `not_supported`."""
        command = self.command or {}
        if command.get("update") or command.get("goto") not in (None, [], "__end__", ["__end__"]):
            raise app_error("command_not_supported")
        return False if command.get("goto") else command.get("resume")

    @property
    def place(self) -> str | None:
        found = (self.checkpoint or {}).get("checkpoint_id")
        return str(found)[:MAX_CLIENT_ID_CHARS] if found else None


class NewThread(_Sent):
    """A thread to create or change."""

    thread_id: Annotated[ClientId | None, doc("The client's own id of the thread; null to be given one.")] = None
    metadata: Annotated[Metadata | None, doc("The thread's metadata, with the agent as `graph_id`.")] = None
    if_exists: Annotated[Literal["raise", "do_nothing"] | None, doc("`do_nothing` returns an existing thread.")] = None


class LangGraphSearch(_Sent):
    """Which assistants, threads or states to list."""

    limit: Annotated[int, Field(ge=1, le=1000), doc("The most items to list.")] = 10
    offset: Annotated[int, Field(ge=0, le=THREADS_SEARCHED), doc("How many items to skip.")] = 0
    graph_id: Annotated[str | None, doc("Of assistants: only the agent of this id.")] = None
    metadata: Annotated[Json | None, doc("Of threads: metadata that they have; `graph_id` is the agent.")] = None
    status: Annotated[Literal["idle", "busy", "interrupted", "error"] | None, doc("Of threads: their status.")] = None
    before: Annotated[Json | ClientId | None, doc("Of states: only those before this checkpoint.")] = None

    def finds(self, session: Session) -> bool:
        has = frames.thread_metadata(session)
        fits = all(name in has and has[name] == value for name, value in (self.metadata or {}).items())
        return fits and self.status in (None, frames.thread_status(session))


@dataclass(frozen=True, slots=True)
class LangGraphRun:
    """A turn, of the session that the client calls `thread_id`."""

    client: Client
    thread_id: str
    turn: TurnKey
    cancels: bool = False

    async def view(self) -> ThreadView:
        return await _view(self.client, self.thread_id, self.turn.session_id)

    def options(self, rest: str) -> Json:
        """The options of a stream. A client whose connection breaks goes on at `Location`, below what it calls."""
        name = self.thread_id if quote(self.thread_id, safe="") == self.thread_id else self.turn.session_id
        path = f"/threads/{name}/runs/{self.turn.turn_id}"
        headers = {"Content-Location": path, "Location": f"{path}/{rest}", **every_door.turn_headers(self.turn)}
        return {"headers": headers, **every_door.on_disconnect(self.client, self.turn, asked=self.cancels)}


async def _view(client: Client, thread_id: str, session_id: str | None = None) -> ThreadView:
    session_id = session_id or (await known_session(client, thread_id)).id
    caller, limit = client.caller, MESSAGES_SHOWN + 1
    async with client.services.database.read_only() as connection:
        session = await get_session(connection, caller, session_id)
        newest = await list_messages(connection, caller, session_id, limit=limit, newest_first=True)
    readable = [each for each in reversed(newest[:MESSAGES_SHOWN]) if not isinstance(each, UnreadableMessage)]
    return thread_view(thread_id, session, readable, is_whole=len(newest) < limit)


async def _begin(client: Client, body: NewRun, thread_id: str) -> LangGraphRun:
    """Raises what `say` and `decide` raise, NotFound, AppError `not_supported`, `unknown_agent`."""
    body.refuse()
    resume, key = body.resume, client.idempotency_key or new_id("ses", client.services.clock())
    name = thread_id or f"langgraph:{digest_of_json(key)}"
    session = await every_door.session_of_client(client, name, agent=body.assistant_id)
    turn = await (_say(client, body, session) if resume is None else _resume(client, body.place, session, resume))
    return LangGraphRun(client, thread_id or session.id, turn, cancels=body.on_disconnect == "cancel")


async def _say(client: Client, body: NewRun, session: Session) -> TurnKey:
    """Says what is new in the input, after the newest state or in the place of what followed an older one."""
    message, key = frames.newest_message(body.input), client.idempotency_key
    content, text = (message["content"], every_door.text_of(message["content"])) if message else (None, "")
    files = await sent_files(content)
    fingerprint = (text, body.place or "", *(file.digest for file in files))
    if key is None and message is not None and message["id"]:
        key = digest_of_json([message["id"], *fingerprint])
    instead_of = await _instead_of(client, session, body.place)
    if message is None and instead_of is None:
        raise every_door.nothing_new()
    on_busy = ON_BUSY.get(body.multitask_strategy, "enqueue")
    known = once(key and f"langgraph:{key}", *fingerprint)
    request = ChatRequest(text, once=known, stream=True, instead_of=instead_of, on_busy=on_busy)
    return (await every_door.say(client, session.id, request, files)).turn


async def _instead_of(client: Client, session: Session, place: str | None) -> str | None:
    """Returns the message that followed a checkpoint; None for the newest one. Raises what `find_turn` raises."""
    if place is None:
        return None
    of = client.caller, session.id
    async with client.services.database.read_only() as connection:
        seq = 0 if place == session.id else (await find_turn(connection, *of, place, goes_on=True)).turn_seq
        return await opening_after(connection, session.id, seq)


async def _resume(client: Client, place: str | None, session: Session, given: object) -> TurnKey:
    """Answers the question of this id, else what waits. The same answer to the same question is the same turn."""
    plan = session.pending_plan
    shown, resume = frames.named_interrupt(given)
    seen = [*shown] if shown else [place] if place else None
    key = client.idempotency_key or (digest_of_json([seen, resume]) if seen else None)
    known, row = once(key and f"langgraph:{key}", digest_of_json(resume)), None
    if known is not None:
        row = await client.services.read(turn_of_key, client.caller, session.id, known.key)
    if row is None and shown is None and await _instead_of(client, session, place) is not None:
        raise StalePlan
    waiting = (plan.id, plan.version) if plan is not None else None
    answer = frames.answer_of(resume, plan if row is None and shown in (None, waiting) else None)
    question = shown or waiting
    if answer.words is not None:
        text, abandons = every_door.text_of(answer.words), question if answer.verdict == "reject" else None
        request = ChatRequest(text, once=known, stream=True, abandons=abandons)
        return (await every_door.say(client, session.id, request)).turn
    if answer.verdict is None or (question is None and row is None):
        raise app_error("no_open_plan")
    plan_id, version = question or (None, 0)
    button = Button(answer.verdict, version, answer.args, plan_id=plan_id, answer=answer.form, chosen=answer.chosen)
    return await every_door.decide(client, session.id, button, known)


async def _parts(run: LangGraphRun, modes: Collection[StreamMode], *, after: int = 0) -> AsyncIterator[bytes]:
    """Yields the parts of a run behind a position, without a last one if this process stops: the client comes back."""
    end, run_id = end_of(run.turn), run.turn.turn_id
    parts = RunParts(modes, run_id=run_id, thread_id=run.thread_id)
    try:
        if after == 0:
            opening = [("values", (await run.view()).values())] if "values" in modes else []
            yield encode([("metadata", {"run_id": run_id, "attempt": 1}), *opening])
        async with aclosing(run.client.services.events.follow(run.turn, patient=False)) as log:
            async for entries in log:
                chunks = ((at, parts.of(event)) for at, event in entries if at != end)
                for chunk in [encode(found, position=at) for at, found in chunks if at > after and found]:
                    yield chunk
                if entries[-1].position == end:
                    answer_json(entries[-1].event)
                    yield encode([*parts.last(await run.view()), ("end", None)], position=end)
                elif parts.has_new_state and "values" in modes:
                    parts.has_new_state = False
                    yield encode([("values", (await run.view()).values())])
    except AppError as error:
        if error.code != app_error("turn_interrupted").code:
            yield encode([("error", {"error": error.code, "message": error.detail})], position=end)


def _wait(run: LangGraphRun) -> Response:
    """Answers with what a run ends with. The headers come at once, and blanks until it has ended."""

    async def outcome() -> AsyncIterator[bytes]:
        try:
            await run.client.services.events.answer(run.turn)
            yield to_json((await run.view()).final_values())
        except AppError as error:
            yield to_json({"__error__": {"error": error.code, "message": error.detail}})

    blank = partial(ServerSentEvent, sep="\n")  # a line end, which may stand before JSON
    how: Json = {"media_type": "application/json", "ping": HEARTBEAT_S, "ping_message_factory": blank}
    return EventSourceResponse(outcome(), **how, **run.options("join"))


async def _shown(client: Client, thread_id: str, run_id: str) -> Json:
    session = await known_session(client, thread_id)
    turn = await client.services.read(get_turn, client.caller, session.id, run_id)
    return frames.run_json(turn, thread_id, session.agent)


def _json(value: object, **options: Any) -> Response:
    return Response(to_json(value), media_type="application/json", **options)


@router.get("/ok", include_in_schema=False)
@router.get("/info", **OBJECT)
async def get_info(_: Client) -> Json:
    """Shows the version and features of this server, for clients of LangGraph."""
    return {"ok": True, "version": __version__, "flags": {"assistants": True, "crons": False, "langsmith": False}}


@router.post("/assistants/search", **OBJECTS)
async def search_assistants(body: LangGraphSearch, client: Client) -> Response:
    """Lists the caller's agents as LangGraph assistants."""
    agents = every_door.agents_of(client).values()
    found = [frames.assistant_json(each) for each in agents if body.graph_id in (None, each.id)]
    return _json(found[body.offset : body.offset + body.limit])


@router.get("/assistants/{assistant_id}", **OBJECT)
async def get_assistant(assistant_id: AssistantId, client: Client) -> Response:
    """Shows an agent as a LangGraph assistant."""
    return _json(frames.assistant_json(every_door.agent_of(client, assistant_id)))


@router.post("/threads", **OBJECT, responses=problems("session_exists", "session_not_found", "not_supported"))
async def create_thread(body: NewThread, client: Client) -> Response:
    """Creates a session as a LangGraph thread."""
    body.refuse()
    name, metadata = body.thread_id, dict(body.metadata or {})
    found, made = await find_session(client, name) if name else None, None
    if found is None:
        agent = str(metadata.pop("graph_id", DEFAULT_AGENT))
        every_door.agent_of(client, agent)
        with suppress(NameTaken):  # by another request, just now
            made = await make_session(client, {name: None} if name else {}, agent=agent, metadata=metadata)
    if made is None and body.if_exists != "do_nothing":
        raise app_error("session_exists")
    return _json((await _view(client, name or (made.id if made else ""))).as_thread())


@router.post("/threads/search", **OBJECTS, responses=problems("not_supported"))
async def search_threads(body: LangGraphSearch, client: Client) -> Response:
    """Lists the caller's sessions as threads. The latest active first, each with its first message only."""
    body.refuse()
    async with client.services.database.read_only() as connection:
        latest = await list_sessions(connection, client.caller, before=None, limit=THREADS_SEARCHED)
        shown = [each for each in latest if body.finds(each)][body.offset : body.offset + body.limit]
        first = await opening_messages(connection, [each.id for each in shown])
    return _json([thread_view(each.id, each, first.get(each.id, ())).as_thread() for each in shown])


@router.post("/threads/count", response_model=int)
async def count_threads(body: LangGraphSearch, client: Client) -> int:
    """Counts the threads that a search finds, among the latest 500."""
    body.refuse()
    latest = await client.services.read(list_sessions, client.caller, before=None, limit=THREADS_SEARCHED)
    return sum(map(body.finds, latest))


@router.patch("/threads/{thread_id}", **OBJECT, responses=problems("session_not_found", "not_supported"))
async def update_thread(thread_id: ThreadId, body: NewThread, client: Client) -> Response:
    """Adds to the metadata of a thread. `graph_id` is the agent that answers from the next run on."""
    body.refuse()
    session = await known_session(client, thread_id)
    changes: Json = {"metadata": {**session.metadata, **(body.metadata or {})}}
    if (agent := changes["metadata"].pop("graph_id", None)) is not None:
        changes["agent"] = every_door.agent_of(client, str(agent)).id
    try:
        NewThread(metadata=changes["metadata"])
    except ValidationError as error:
        raise invalid_part(error, "body") from None
    await client.services.database.write(update_session, client.caller, session.id, changes=changes)
    return await get_thread(thread_id, client)


@router.get("/threads/{thread_id}", **OBJECT)
async def get_thread(thread_id: ThreadId, client: Client) -> Response:
    """Shows a session as a thread, with its state."""
    return _json((await _view(client, thread_id)).as_thread())


@router.delete("/threads/{thread_id}", status_code=204)
async def delete_thread(thread_id: ThreadId, client: Client) -> None:
    """Deletes the session of a thread with everything in it."""
    await client.services.turns.delete_session(client.caller, (await known_session(client, thread_id)).id)


@router.get("/threads/{thread_id}/state", **OBJECT)
async def get_thread_state(thread_id: ThreadId, client: Client, *, subgraphs: Ignored = False) -> Response:  # noqa: ARG001 (clients send it)
    """Shows the newest state of a thread."""
    view = await _view(client, thread_id)
    return _json(view.state([*view.turns]))


@router.post("/threads/{thread_id}/history", **OBJECTS)
async def get_thread_history(thread_id: ThreadId, body: LangGraphSearch, client: Client) -> Response:
    """Lists the states of a thread, one after each run. Newest first, as far back as its newest 200 messages go."""
    before = body.before.get("checkpoint_id") if isinstance(body.before, dict) else body.before
    return _json((await _view(client, thread_id)).states(limit=body.limit, before=before))


@router.get("/threads/{thread_id}/runs", **OBJECTS)
async def list_runs(thread_id: ThreadId, client: Client, limit: Most = 10, offset: Skipped = 0) -> Response:
    """Lists the turns of a thread as runs. Newest first."""
    session = await known_session(client, thread_id)
    turns = await client.services.read(list_turns, client.caller, session.id, before=None, limit=offset + limit)
    return _json([frames.run_json(each, thread_id, session.agent) for each in turns[offset:]])


@router.get("/threads/{thread_id}/runs/{run_id}", **OBJECT)
async def get_run(thread_id: ThreadId, run_id: TurnId, client: Client) -> Response:
    """Shows a run of a thread, with its status."""
    return _json(await _shown(client, thread_id, run_id))


@router.post("/runs", include_in_schema=False)
@router.post("/threads/{thread_id}/runs", **OBJECT, responses=RUN)
async def create_run(body: NewRun, client: Client, thread_id: OwnThreadId = "") -> Response:
    """Begins a run in a thread, without waiting for it."""
    run = await _begin(client, body, thread_id)
    return _json(await _shown(client, run.thread_id, run.turn.turn_id), headers=run.options("stream")["headers"])


@router.post("/runs/stream", include_in_schema=False)
@router.post("/threads/{thread_id}/runs/stream", response_class=Response, **STREAM)
async def stream_run(body: NewRun, client: Client, thread_id: OwnThreadId = "") -> Response:
    """Begins a run in a thread, and streams its parts."""
    run = await _begin(client, body, thread_id)
    modes = urlencode({"stream_mode": body.modes}, doseq=True)  # for a client that goes on at `Location`
    return EventStream(_parts(run, body.modes), **run.options(f"stream?{modes}"))


@router.post("/runs/wait", include_in_schema=False)
@router.post("/threads/{thread_id}/runs/wait", **OBJECT, responses=RUN)
async def wait_for_run(body: NewRun, client: Client, thread_id: OwnThreadId = "") -> Response:
    """Begins a run in a thread, waits for it and answers with its final values."""
    return _wait(await _begin(client, body, thread_id))


async def _joined(thread_id: ThreadId, run_id: TurnId, client: Client) -> LangGraphRun:
    session = await known_session(client, thread_id)
    return LangGraphRun(client, thread_id, await client.services.read(find_turn, client.caller, session.id, run_id))


JoinedDep = Annotated[LangGraphRun, Depends(_joined)]


@router.get("/threads/{thread_id}/runs/{run_id}/join", **OBJECT)
async def join_run(run: JoinedDep) -> Response:
    """Waits for a run of a thread, and answers with its final values."""
    return _wait(run)


@router.get("/threads/{thread_id}/runs/{run_id}/stream", response_class=Response, **STREAM)
async def join_run_stream(
    run: JoinedDep,
    stream_mode: Annotated[list[str] | None, Query(max_length=10, description="What to stream.")] = None,
    cancel_on_disconnect: Annotated[bool, Query(description="Whether leaving cancels the run.")] = False,  # noqa: FBT002
    last_event_id: Annotated[str | None, Header(description="The last part that was received, to go on.")] = None,
) -> Response:
    """Streams a run of a thread, from its start or after a part."""
    after = re.fullmatch("[0-9]{1,18}", last_event_id or "")
    named = {name for each in stream_mode or () for name in re.findall("[a-z-]+", each)}  # one SDK sends a list as JSON
    modes = [mode for mode in get_args(StreamMode) if mode in named]
    parts = _parts(run, modes or get_args(StreamMode), after=int(after[0]) if after else 0)
    return EventStream(parts, **replace(run, cancels=cancel_on_disconnect).options("stream"))


@router.post("/threads/{thread_id}/runs/{run_id}/cancel", status_code=204)
async def cancel_run(
    run: JoinedDep,
    wait: Ignored = False,  # noqa: ARG001, FBT002 (clients send it)
    action: Annotated[Literal["interrupt"], Query(description="The only action: nothing is undone.")] = "interrupt",  # noqa: ARG001
) -> None:
    """Cancels a run of a thread. Answers once it has ended; what tools have done is not undone."""
    await run.client.services.turns.cancel(run.client.caller, run.turn.session_id, run.turn.turn_id)


@router.api_route("/assistants", methods=METHODS, include_in_schema=False)
@router.api_route("/assistants/{rest:path}", methods=METHODS, include_in_schema=False)
@router.api_route("/runs/{rest:path}", methods=METHODS, include_in_schema=False)
@router.api_route("/store/{rest:path}", methods=METHODS, include_in_schema=False)
@router.api_route("/threads/{thread_id}/{rest:path}", methods=METHODS, include_in_schema=False)
async def refuse(client: Client) -> None:
    if (thread_id := client.http.path_params.get("thread_id")) is not None:
        await known_session(client, thread_id)
    raise app_error("not_supported")
