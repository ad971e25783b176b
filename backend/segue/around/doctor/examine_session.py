"""Examines one session: its owner, open turns, plan, tools and size. Reads no message; shows only the plan's words."""

from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from segue.around.doctor.report import Diagnosis
from segue.around.embedded.server_urls import OpenStores
from segue.config import Settings
from segue.db.postgres_server import StoreClock, share_of_session
from segue.domain.errors import AppError, NotFound
from segue.domain.ids import Clock
from segue.domain.plan import UnreadablePlan
from segue.domain.session import Turn, UnreadableSession
from segue.domain.telemetry import unobserved
from segue.domain.tool import ToolState
from segue.mcp.mcp_servers import McpServers
from segue.memory import short_term, summary
from segue.memory.long_term import LongTermMemory
from segue.memory.session_search import search_said
from segue.memory.session_store import get_session, owner_of
from segue.plans.store import StoredPlan, open_plan
from segue.tools.availability import ToolAvailability
from segue.tools.builtin.builtin_tools import builtin_tools, promise_tool
from segue.tools.catalog import ToolCatalog
from segue.tools.native import native_tools
from segue.tools.tool_health import is_blocked
from segue.tools.tool_states import GlobalToolState
from segue.turns.jobs.learn_facts import cancel_extraction
from segue.turns.queries import OpenTurn, last_ended, list_turns, open_turns_of
from segue.turns.schedules import Promised

LATE_S = 5.0  # a turn that no process has claimed


async def look_at_session(
    session_id: str, stores: OpenStores, tools: ToolAvailability, clock: Clock, report: Diagnosis, *, words: bool
) -> None:
    """Fills the report; without `words` it holds no text of the conversation or of errors. Raises NotFound."""
    try:
        async with stores.database.read_only() as connection:
            owner = await owner_of(connection, session_id)
            session = await get_session(connection, owner, session_id)
            open_turns = await open_turns_of(connection, session_id)
            newest = await list_turns(connection, owner, session_id, before=None, limit=1)
            failed = await list_turns(connection, owner, session_id, before=None, limit=1, failed=True)
            stored = await open_plan(connection, session_id)
            ended = await last_ended(connection, session_id)
            summarised = await summary.summary_state(connection, session_id)
            share = await share_of_session(connection, session_id)
        states = await tools.session_states(session_id, owner, words=words)
    except NotFound:
        raise
    except AppError as error:
        report.add("session.unread", why=error.detail)
        return
    if isinstance(session, UnreadableSession):
        report.add("session.metadata")
    last = newest[0] if newest else None
    if open_turns:
        status = "running" if any(turn.status == "running" for turn in open_turns) else "queued"
    else:
        status = "waiting" if stored and stored.plan.waiting_step else "idle"
    facts = {"id": session_id, "owner": owner, "status": status, "created_at": session.created_at}
    report.parts = {
        "session": facts | {"last_activity_at": session.updated_at, "message_count": session.message_count},
        "open_turns": _open_turns(open_turns, report),
        "last_error": _last_error(last, failed[0] if failed else None, report, words=words),
        "plan": _plan(stored, clock(), report, words=words) if stored else None,
        "tools": _tools(states, report),
        "stored": share,
        "summary": summarised,
        **await _in_redis(stores, session_id, last, ended.turn_id if ended else None),
    }


async def open_tools(
    stack: AsyncExitStack, settings: Settings, stores: OpenStores, mcp: McpServers | None
) -> tuple[ToolAvailability, Clock]:
    """Returns tools and a clock as those of a service."""
    memory = LongTermMemory(stores.database, stop_learning=cancel_extraction)
    own = (promise_tool(Promised(stores.database, settings, memory.says)),)
    builtin = await builtin_tools(stack, settings, stores.database, memory, search_said, own)
    clock = await stack.enter_async_context(StoreClock(stores.database))
    catalog = ToolCatalog((*builtin, *native_tools(disabled=settings.disabled_tools)), mcp)
    everywhere = GlobalToolState(stores.cache, settings, unobserved)
    return ToolAvailability(catalog, stores.database, everywhere, settings, clock=clock, observe=unobserved), clock


def _open_turns(turns: list[OpenTurn], report: Diagnosis) -> list[dict[str, Any]]:
    shown = []
    for turn in turns:
        found = asdict(turn) | {"waiting_s": turn.waiting_s if turn.status == "queued" else None}
        shown.append({"turn_id": found.pop("turn_id"), "held_by": found.pop("worker"), **found})
        if turn.status == "running" and turn.lease_left_s is not None and turn.lease_left_s < 0:
            report.add("turn.lapsed", turn=turn.turn_id, ago_s=-turn.lease_left_s, worker=turn.worker)
        elif turn.status == "running" and turn.cancel_requested_at is not None:
            report.add("turn.cancelling", turn=turn.turn_id)
    if turns and turns[0].waiting_s > LATE_S and all(turn.status == "queued" for turn in turns):
        report.add("turn.waiting", turn=turns[0].turn_id, waiting_s=turns[0].waiting_s)
    return shown


def _last_error(last: Turn | None, failed: Turn | None, report: Diagnosis, *, words: bool) -> dict[str, Any] | None:
    if last is not None and last.error is not None and last.status == "failed":
        detail = f"{last.error.detail} ".lstrip() if words else ""
        report.add("turn.failed", title=last.error.title, code=last.error.code, detail=detail)
    if failed is None or failed.error is None:
        return None
    return {
        "turn_id": failed.turn_id,
        "status": failed.status,
        "at": failed.finished_at,
        "code": failed.error.code,
        "detail": failed.error.detail if words else "",
        "is_last_turn": last is not None and last.turn_id == failed.turn_id,
    }


def _plan(stored: StoredPlan, now: datetime, report: Diagnosis, *, words: bool) -> dict[str, Any]:
    plan = stored.plan
    if isinstance(plan, UnreadablePlan):
        report.add("plan.unreadable")
    elif (step := plan.waiting_step) and plan.expires_at <= now:
        report.add("plan.expired")
    elif step:
        report.add("plan.waiting", step=step.id, tool=step.tool, until=plan.expires_at, version=plan.version)
    current = plan.waiting_step or plan.running_step or plan.next_step
    if not words:
        plan, current = replace(plan, goal=""), current and replace(current, description="")
    return {
        **{name: getattr(plan, name) for name in ("id", "status", "version", "goal", "expires_at")},
        "steps": [each.status for each in plan.steps],
        "current_step": current and {name: getattr(current, name) for name in ("id", "status", "tool", "description")},
        "blocked_tools": stored.blocked_tools if words else (),
    }


def _tools(states: dict[str, ToolState], report: Diagnosis) -> dict[str, Any]:
    not_available = []
    for name, state in states.items():
        if is_blocked(state):
            kind = "tools.set_by_person" if state.reason_code == "set_by_person" else "tools.blocked"
            actions = "; ".join(state.suggested_actions)
            report.add(kind, tool=name, status=state.status, reason=state.reason or state.reason_code, actions=actions)
        if not state.available:
            shown = {of: getattr(state, of) for of in ("status", "reason_code", "reason", "retry_at")}
            not_available.append({"tool": name, **shown, "what_helps": state.suggested_actions})
    return {"available": [name for name, state in states.items() if state.available], "not_available": not_available}


async def _in_redis(stores: OpenStores, session_id: str, last: Turn | None, ended_turn: str | None) -> dict[str, Any]:
    if not await stores.cache.ping():
        return {"short_term_memory": None, "event_log": None}
    memory = await short_term.read(stores.cache, session_id, last_turn_id=ended_turn)
    left_s = await short_term.ttl_s(stores.cache, session_id)
    entries = await stores.streams.length(session_id, last.turn_id) if last else 0
    return {
        "short_term_memory": {"present": left_s > 0, "current": memory is not None, "left_s": left_s},
        "event_log": {"present": bool(entries), "turn_id": last.turn_id if last else None},
    }
