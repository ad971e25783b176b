"""The door for clients of AG-UI: a run is a turn of the session that the client calls its thread.

`agui_input` reads what a run asks for, `agui_frames` writes what it brings about.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from fastapi import Response
from structlog.contextvars import bind_contextvars

from segue.api.agents import AgentId
from segue.api.chat import Asking
from segue.api.deps import router_of
from segue.api.doors.agui_frames import RunFrames, shown_messages
from segue.api.doors.agui_input import AskedRun, RunAgentInput, asked_of, key_of, nothing_new
from segue.api.doors.client_sessions import session_of_client
from segue.api.doors.leaving import cancelling
from segue.api.doors.run_events import Run, run_events
from segue.api.doors.sent_files import SentFile, sent_files, with_files
from segue.api.doors.speaking_for import OwnAskingDep
from segue.api.events import EVENTS, EventStream, frame, framed
from segue.api.problem_codes import OF_DECISIONS, OF_FILES, problems
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.session import Session
from segue.events import agui
from segue.events.event_buffer import Entry, end_of
from segue.memory.history import list_messages
from segue.turns.queries import find_turn, first_open_turn, turn_of_key
from segue.turns.store import ChatRequest, once

MESSAGES_SHOWN: Final = 200
NOT_WAITING: Final = {"no_open_plan", "plan_changed", "plan_expired"}

router = router_of("doors")


RESPONSES: dict[int | str, Any] = {
    200: {"description": "The events of the run", "content": EVENTS},
    **problems(
        "client_tools", "idempotency_key_reused", "parts_unsupported", "session_not_found", "turn_in_progress",
        "too_many_queued", "unknown_agent", *OF_DECISIONS, *OF_FILES,
    ),
}  # fmt: skip


@router.post("/agui", response_class=Response, responses=RESPONSES)
async def run_agent(body: RunAgentInput, asking: OwnAskingDep) -> Response:
    """Runs the agent, for clients of AG-UI. The session's agent answers, with the events of the turn."""
    return await _answer(body, asking, agent=None)


@router.post("/agents/{agent_id}/agui", response_class=Response, responses=RESPONSES)
async def run_this_agent(agent_id: AgentId, body: RunAgentInput, asking: OwnAskingDep) -> Response:
    """Runs one of the agents, for clients of AG-UI. It is the session's from then on."""
    return await _answer(body, asking, agent=agent_id)


async def _answer(body: RunAgentInput, asking: Asking, *, agent: str | None) -> Response:
    asked = asked_of(body)
    files = await sent_files(asked.content)
    groups = asking.origin.groups
    session = await session_of_client(asking.services, asking.caller, body.thread_id, agent=agent, groups=groups)
    run = await _begin(asking, asked, files, session, key_of(body))
    headers, options = {"X-Session-Id": session.id}, dict[str, Any]()
    if (turn := run.turn) is not None:
        bind_contextvars(turn_id=turn.turn_id)
        headers["X-Turn-Id"] = turn.turn_id
        options["farewell"] = frame(Entry(end_of(turn), agui.run_ended(turn, turn_errors.interrupted())))
        if body.forwarded_props is not None and body.forwarded_props.on_disconnect == "cancel":
            options["client_close_handler_callable"] = cancelling(asking, turn)
    frames = RunFrames(body.thread_id, body.run_id, declares_version=body.protocol_version is not None)
    return EventStream(framed(run_events(asking, session, run, frames)), headers=headers, **options)


async def _begin(asking: Asking, asked: AskedRun, files: Sequence[SentFile], session: Session, key: str) -> Run:
    """Raises what `accept`, `with_files` and `decide` raise."""
    turns, caller, origin = asking.services.turns, asking.caller, asking.origin
    if asked.text is not None:
        if not asked.is_new:
            await _check_known(asking, session, key)
        known = once(key, asked.text, *(file.digest for file in files))
        request = ChatRequest(asked.text, once=known, stream=True, origin=origin, abandons=asked.abandons)
        request = await with_files(asking, session.id, request, files)
        admitted = await turns.accept(caller, session.id, request)
        return Run(admitted.turn, None if admitted.fresh else asked.before)
    if asked.decision is None:
        return await _look(asking, session)
    button = replace(asked.decision.button, plan_id=asked.plan_id)
    known = once(key, *asked.decision.asked)
    try:
        turn = await turns.decide(caller, session.id, button, once=known, stream=True, origin=origin)
    except AppError as error:
        if asked.abandons is None or error.code not in NOT_WAITING:
            raise
        return Run(None)  # what is cancelled waits no more: the client only has to hear it
    return Run(turn)


async def _check_known(asking: Asking, session: Session, key: str) -> None:
    """Raises AppError `invalid_request` for a run that has not come before."""
    async with asking.services.database.read_only() as connection:
        if await turn_of_key(connection, asking.caller, session.id, key) is None:
            raise nothing_new()


async def _look(asking: Asking, session: Session) -> Run:
    """The history, and the turn that runs. What that has said so far comes with its events."""
    async with asking.services.database.read_only() as connection:
        running = await first_open_turn(connection, session.id)
        newest = await list_messages(connection, asking.caller, session.id, limit=MESSAGES_SHOWN, newest_first=True)
        turn = await find_turn(connection, asking.caller, session.id, running) if running is not None else None
    known = [each for each in reversed(newest) if each.turn_id != running or each.role == "user"]
    return Run(turn, shown_messages(known))
