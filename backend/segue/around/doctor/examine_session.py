"""Examines one session: its owner, its open turns, its plan, its tools, and its size.

Reads no message: of the conversation, only the words of the plan are shown.
"""

from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from segue.around.doctor.report import Diagnosis
from segue.around.store_clients import OpenStores
from segue.config import Settings
from segue.db.postgres_server import Share, StoreClock, share_of_session
from segue.domain.errors import AppError, NotFound
from segue.domain.ids import Clock
from segue.domain.plan import UnreadablePlan
from segue.domain.session import Session, Turn, UnreadableSession
from segue.domain.telemetry import unobserved
from segue.domain.tool import ToolState
from segue.mcp.mcp_servers import McpServers
from segue.memory import short_term, summary
from segue.memory.long_term import LongTermMemory
from segue.memory.session_store import get_session, owner_of, search_said
from segue.plans.store import StoredPlan, open_plan
from segue.tools.availability import ToolAvailability
from segue.tools.builtin.builtin_tools import builtin_tools, promise_tool
from segue.tools.catalog import ToolCatalog
from segue.tools.native import native_tools
from segue.tools.tool_health import is_blocked
from segue.tools.tool_states import GlobalToolState
from segue.turns.queries import OpenTurn, list_turns, open_turns_of
from segue.turns.schedules import Promised
from segue.turns.store import last_ended

LATE_S = 5.0  # a turn that no process has claimed


@dataclass(frozen=True, slots=True)
class _Rows:
    """What Postgres holds of the session."""

    owner: str
    session: Session
    open_turns: list[OpenTurn]
    last: Turn | None
    last_failed: Turn | None
    plan: StoredPlan | None
    summary: summary.SummaryState
    stored: dict[str, Share]
    last_ended_turn: str | None

    @property
    def status(self) -> Literal["running", "queued", "waiting", "idle"]:
        """Returns `waiting` if the plan waits for the user's yes."""
        if self.open_turns:
            return "running" if any(turn.status == "running" for turn in self.open_turns) else "queued"
        return "waiting" if self.plan and self.plan.plan.waiting_step else "idle"


async def look_at_session(
    settings: Settings,
    session_id: str,
    stores: OpenStores,
    mcp: McpServers | None,
    report: Diagnosis,
    *,
    own: tuple[ToolAvailability, Clock] | None,
    words: bool,
) -> None:
    """Fills the report; without `words` it holds no text of the conversation. Raises NotFound.

    `own` are the tools and the clock of the service that asks; without them they are opened, as a service does.
    """
    async with AsyncExitStack() as stack:
        tools, clock = own or await _open_tools(stack, settings, stores, mcp)
        try:
            rows = await _read(stores, session_id)
            states = await tools.session_states(session_id)
        except NotFound:
            raise
        except AppError as error:
            report.problem("session", f"It could not be read: {error.detail}", "Ask again in a moment.")
            return
        now = clock()
    if not words:
        rows = _without_words(rows)
    session = rows.session
    if isinstance(session, UnreadableSession):
        report.problem("session", "Its metadata cannot be read.", "Set it anew: PATCH /sessions/… with `metadata`.")
    _judge_turns(rows, report)
    _judge_plan(rows.plan, now, report)
    _judge_tools(states, report)
    report.parts = {
        "session": {
            "id": session_id,
            "owner": rows.owner,
            "status": rows.status,
            "created_at": session.created_at,
            "last_activity_at": session.updated_at,
            "message_count": session.message_count,
        },
        "open_turns": [_turn(turn) for turn in rows.open_turns],
        "last_error": _last_error(rows),
        "plan": _plan(rows.plan),
        "tools": _tools(states),
        "stored": rows.stored,
        "summary": rows.summary,
        **await _in_redis(stores, session_id, rows),
    }


async def _open_tools(
    stack: AsyncExitStack, settings: Settings, stores: OpenStores, mcp: McpServers | None
) -> tuple[ToolAvailability, Clock]:
    memory = LongTermMemory(stores.database)
    own = (promise_tool(Promised(stores.database, settings, memory.says)),)
    builtin = await builtin_tools(stack, settings, stores.database, memory, search_said, own)
    clock = await stack.enter_async_context(StoreClock(stores.database))
    catalog = ToolCatalog((*builtin, *native_tools(disabled=settings.disabled_tools)), mcp)
    everywhere = GlobalToolState(stores.cache, settings, unobserved)
    return ToolAvailability(catalog, stores.database, everywhere, settings, clock=clock, observe=unobserved), clock


async def _read(stores: OpenStores, session_id: str) -> _Rows:
    async with stores.database.read_only() as connection:
        owner = await owner_of(connection, session_id)
        ended = await last_ended(connection, session_id)
        return _Rows(
            owner=owner,
            session=await get_session(connection, owner, session_id),
            open_turns=await open_turns_of(connection, session_id),
            last=next(iter(await list_turns(connection, owner, session_id, limit=1)), None),
            last_failed=next(iter(await list_turns(connection, owner, session_id, limit=1, failed=True)), None),
            plan=await open_plan(connection, session_id),
            summary=await summary.summary_state(connection, session_id),
            stored=await share_of_session(connection, session_id),
            last_ended_turn=ended.turn_id if ended else None,
        )


def _without_words(rows: _Rows) -> _Rows:
    """Also empties the details of errors, in which a provider may have quoted the user."""
    stored, ended = rows.plan, (rows.last, rows.last_failed)
    if stored is not None:
        steps = tuple(replace(step, description="") for step in stored.plan.steps)
        stored = replace(stored, plan=replace(stored.plan, goal="", steps=steps), blocked_tools=())
    last, last_failed = (each and replace(each, error=each.error and replace(each.error, detail="")) for each in ended)
    return replace(rows, plan=stored, last=last, last_failed=last_failed)


def _judge_turns(rows: _Rows, report: Diagnosis) -> None:
    for turn in rows.open_turns:
        if turn.status == "running" and turn.lease_left_s is not None and turn.lease_left_s < 0:
            what = f"The lease of {turn.turn_id} lapsed {-turn.lease_left_s:g} s ago: {turn.worker} has died or hangs."
            report.problem("turn", what, "Any running `segue serve` or `segue worker` takes it over within seconds.")
        elif turn.status == "running" and turn.cancel_requested_at is not None:
            report.note("turn", f"{turn.turn_id} is to be cancelled.", "It ends within five seconds.")
    if rows.status == "queued" and rows.open_turns[0].waiting_s > LATE_S:
        first = rows.open_turns[0]
        what = f"{first.turn_id} has waited for {first.waiting_s:g} s and no process takes it."
        report.problem("turn", what, "Start `segue serve` or `segue worker`; `segue doctor` says whether one runs.")
    if rows.last is not None and rows.last.error is not None and rows.last.status == "failed":
        error = rows.last.error
        do = f"{error.detail} The session itself works: send the message again.".lstrip()
        report.problem("turn", f"The last turn failed: {error.title} ({error.code}).", do)


def _judge_plan(stored: StoredPlan | None, now: datetime, report: Diagnosis) -> None:
    if stored is None:
        return
    plan = stored.plan
    if isinstance(plan, UnreadablePlan):
        what = "The open plan cannot be read: a newer release made it, or its row is damaged."
        report.problem("plan", what, "Run the newer release. Here, ask for what is wanted anew: that plan replaces it.")
    elif (step := plan.waiting_step) and plan.expires_at <= now:
        report.note("plan", "It has waited too long; a yes does nothing any more.", "Ask for it anew.")
    elif step:
        what = f"Step {step.id} ({step.tool}) waits for the user's yes until {plan.expires_at:%Y-%m-%d %H:%M} UTC."
        do = f"A yes in the chat, or POST /sessions/…/plan/decision with version {plan.version}."
        report.note("plan", what, do)


def _judge_tools(states: dict[str, ToolState], report: Diagnosis) -> None:
    for name, state in states.items():
        if is_blocked(state):
            add = report.note if state.reason_code == "set_by_person" else report.problem
            what = f"{name} may not run ({state.status}): {state.reason}"
            add("tools", what, f"{'; '.join(state.suggested_actions)}.")


def _turn(turn: OpenTurn) -> dict[str, Any]:
    found = asdict(turn)
    waiting_s = turn.waiting_s if turn.status == "queued" else None
    return {"turn_id": found.pop("turn_id"), "held_by": found.pop("worker"), **found, "waiting_s": waiting_s}


def _last_error(rows: _Rows) -> dict[str, Any] | None:
    failed = rows.last_failed
    if failed is None or failed.error is None:
        return None
    return {
        "turn_id": failed.turn_id,
        "status": failed.status,
        "at": failed.finished_at,
        "code": failed.error.code,
        "detail": failed.error.detail,
        "is_last_turn": rows.last is not None and rows.last.turn_id == failed.turn_id,
    }


def _plan(stored: StoredPlan | None) -> dict[str, Any] | None:
    if stored is None:
        return None
    plan = stored.plan
    step = plan.waiting_step or plan.running_step or plan.next_step
    return {
        **{name: getattr(plan, name) for name in ("id", "status", "version", "goal", "expires_at")},
        "steps": [each.status for each in plan.steps],
        "current_step": step and {name: getattr(step, name) for name in ("id", "status", "tool", "description")},
        "blocked_tools": stored.blocked_tools,
    }


def _tools(states: dict[str, ToolState]) -> dict[str, Any]:
    shown = ("status", "reason_code", "reason", "retry_at")
    not_available = [
        {"tool": name, **{of: getattr(state, of) for of in shown}, "what_helps": state.suggested_actions}
        for name, state in states.items()
        if not state.available
    ]
    return {"available": [name for name, state in states.items() if state.available], "not_available": not_available}


async def _in_redis(stores: OpenStores, session_id: str, rows: _Rows) -> dict[str, Any]:
    if not await stores.cache.ping():
        return {"short_term_memory": None, "event_log": None}
    memory = await short_term.read(stores.cache, session_id, last_turn_id=rows.last_ended_turn)
    left_s = await short_term.ttl_s(stores.cache, session_id)
    turn_id = rows.last.turn_id if rows.last else None
    entries = await stores.streams.length(session_id, turn_id) if turn_id else 0
    return {
        "short_term_memory": {"present": left_s > 0, "current": memory is not None, "left_s": left_s},
        "event_log": {"present": bool(entries), "turn_id": turn_id},
    }
