"""The events of a run, as a client of AG-UI gets them and other doors translate them: from its start to its end.

Stands between the log of a turn and a door. Knows no HTTP.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from segue.api.chat import Asking
from segue.api.doors.agui_frames import RunFrames, messages_snapshot
from segue.domain.errors import AppError
from segue.domain.plan import Plan
from segue.domain.session import Session, TurnKey
from segue.events import agui
from segue.events.event_buffer import Entry, end_of
from segue.memory.sessions import get_session


@dataclass(frozen=True, slots=True)
class Run:
    """`turn` is None if it only shows how the session stands. `messages` are those from before it, if the client is to
    have no others.
    """

    turn: TurnKey | None
    messages: Sequence[dict[str, Any]] | None = None


async def run_events(asking: Asking, session: Session, run: Run, frames: RunFrames) -> AsyncGenerator[Sequence[Entry]]:
    """With the positions of the log, where an event is of the log. Whatever goes wrong, it says so at its end."""
    opening = [frames.started()]
    if run.messages is not None:
        opening.append(messages_snapshot(run.messages))
    if session.pending_plan is not None:
        opening.append(agui.state_snapshot(session.pending_plan))
    yield [Entry(0, event) for event in opening]
    if run.turn is None:
        yield [Entry(0, frames.finished(await _open_plan(asking, session.id)))]
        return
    end = end_of(run.turn)
    try:
        async with aclosing(asking.services.events.follow(run.turn, patient=False)) as parts:
            async for entries in parts:
                last = entries[-1] if entries[-1].position == end else None
                shown = [Entry(at, event) for at, found in entries if at != end for event in frames.shown(found)]
                if last is not None:
                    open_plan = await _open_plan(asking, session.id)
                    shown += [Entry(end, event) for event in frames.ended(last.event, open_plan)]
                yield shown
    except AppError as error:
        yield [Entry(end, agui.run_ended(run.turn, error))]


async def _open_plan(asking: Asking, session_id: str) -> Plan | None:
    """As it is now: one that the turn left waiting may have been decided on since."""
    with suppress(AppError):  # the session is gone, or Postgres is away: the answer is there all the same
        async with asking.services.database.read_only() as connection:
            return (await get_session(connection, asking.caller, session_id)).pending_plan
    return None
