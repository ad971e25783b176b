"""Examines one session: its owner, its open turns, its plan, its tools, and its size.

Reads no message: of the conversation, only the words of the plan are shown.
"""

from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from segue.around.doctor.report import Diagnosis
from segue.around.embedded.server_urls import OpenStores
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
    session_id: str, stores: OpenStores, tools: ToolAvailability, clock: Clock, report: Diagnosis, *, words: bool
) -> None:
    """Fills the report; without `words` it holds no text of the conversation. Raises NotFound."""
    try:
        rows = await _read(stores, session_id)
        states = await tools.session_states(session_id)
    except NotFound:
        raise
    except AppError as error:
        report.add("session.unread", why=error.detail)
        return
    now = clock()
    if not words:
        rows = _without_words(rows)
    session = rows.session
    if isinstance(session, UnreadableSession):
        report.add("session.metadata")
    report.parts = {
        "session": {
            "id": session_id,
            "owner": rows.owner,
            "status": rows.status,
            "created_at": session.created_at,
            "last_activity_at": session.updated_at,
            "message_count": session.message_count,
        },
        "open_turns": _open_turns(rows, report),
        "last_error": _last_error(rows, report),
        "plan": _plan(rows.plan, now, report),
        "tools": _tools(states, report),
        "stored": rows.stored,
        "summary": rows.summary,
        **await _in_redis(stores, session_id, rows),
    }


async def open_tools(
    stack: AsyncExitStack, settings: Settings, stores: OpenStores, mcp: McpServers | None
) -> tuple[ToolAvailability, Clock]:
    """Returns tools and a clock as those of a service."""
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


def _open_turns(rows: _Rows, report: Diagnosis) -> list[dict[str, Any]]:
    shown = []
    for turn in rows.open_turns:
        found = asdict(turn) | {"waiting_s": turn.waiting_s if turn.status == "queued" else None}
        shown.append({"turn_id": found.pop("turn_id"), "held_by": found.pop("worker"), **found})
        if turn.status == "running" and turn.lease_left_s is not None and turn.lease_left_s < 0:
            report.add("turn.lapsed", turn=turn.turn_id, ago_s=-turn.lease_left_s, worker=turn.worker)
        elif turn.status == "running" and turn.cancel_requested_at is not None:
            report.add("turn.cancelling", turn=turn.turn_id)
    if rows.status == "queued" and rows.open_turns[0].waiting_s > LATE_S:
        report.add("turn.waiting", turn=rows.open_turns[0].turn_id, waiting_s=rows.open_turns[0].waiting_s)
    return shown


def _last_error(rows: _Rows, report: Diagnosis) -> dict[str, Any] | None:
    if rows.last is not None and rows.last.error is not None and rows.last.status == "failed":
        error = rows.last.error
        detail = f"{error.detail} ".lstrip()
        report.add("turn.failed", title=error.title, code=error.code, detail=detail)
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


def _plan(stored: StoredPlan | None, now: datetime, report: Diagnosis) -> dict[str, Any] | None:
    if stored is None:
        return None
    plan = stored.plan
    if isinstance(plan, UnreadablePlan):
        report.add("plan.unreadable")
    elif (step := plan.waiting_step) and plan.expires_at <= now:
        report.add("plan.expired")
    elif step:
        report.add("plan.waiting", step=step.id, tool=step.tool, until=plan.expires_at, version=plan.version)
    current = plan.waiting_step or plan.running_step or plan.next_step
    return {
        **{name: getattr(plan, name) for name in ("id", "status", "version", "goal", "expires_at")},
        "steps": [each.status for each in plan.steps],
        "current_step": current and {name: getattr(current, name) for name in ("id", "status", "tool", "description")},
        "blocked_tools": stored.blocked_tools,
    }


def _tools(states: dict[str, ToolState], report: Diagnosis) -> dict[str, Any]:
    not_available = []
    for name, state in states.items():
        if is_blocked(state):
            kind = "tools.set_by_person" if state.reason_code == "set_by_person" else "tools.blocked"
            actions = "; ".join(state.suggested_actions)
            report.add(kind, tool=name, status=state.status, reason=state.reason, actions=actions)
        if not state.available:
            shown = {of: getattr(state, of) for of in ("status", "reason_code", "reason", "retry_at")}
            not_available.append({"tool": name, **shown, "what_helps": state.suggested_actions})
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
