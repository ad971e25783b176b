"""The ledger of tool calls and, apart from it, their payloads.

A row stands before a tool runs and gets its outcome after; the payload expires, the row stays. Reading is by owner.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Row, Select, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.db.models import sessions, tool_calls, tool_results
from backend.domain.errors import AppError, NotFound
from backend.domain.session import RequestedCall
from backend.domain.tool import CallStatus, Reference, ResultRef, ToolCall, ToolCallMetadata, canonical_args
from backend.tools.run import Outcome
from backend.tools.summaries import identifiers, preview, summarise

REBUILD_CALLS = 50


@dataclass(frozen=True, slots=True)
class Retention:
    payload_ttl_days: int
    preview_chars: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """The step of a plan that a call carries out."""

    plan_id: str
    step_id: int


@dataclass(frozen=True, slots=True)
class CallFilter:
    tool: str | None = None
    turn_id: str | None = None
    status: CallStatus | None = None


async def start_calls(
    connection: AsyncConnection,
    *,
    session_id: str,
    turn_id: str,
    message_id: str,
    calls: Sequence[RequestedCall],
    now: datetime,
    step: PlanStep | None = None,
) -> None:
    rows = [
        {
            "id": call.id,
            "session_id": session_id,
            "turn_id": turn_id,
            "message_id": message_id,
            "tool_name": call.name,
            "args": call.args,
            "args_hash": _args_hash(call.args),
            "status": "running",
            "plan_id": step.plan_id if step else None,
            "step_id": step.step_id if step else None,
            "started_at": now,
        }
        for call in calls
    ]
    await connection.execute(insert(tool_calls), rows)


async def finish_call(
    connection: AsyncConnection, call: RequestedCall, outcome: Outcome, *, now: datetime, retention: Retention
) -> tuple[ToolCall, Reference]:
    """Records the outcome of a call once: a second one for the same call raises."""
    payload = outcome.payload
    stored = payload.size_bytes > 0
    expires_at = now + timedelta(days=retention.payload_ttl_days) if stored else None
    shown = payload.text if stored else outcome.error or ""
    statement = (
        update(tool_calls)
        .where(tool_calls.c.id == call.id, tool_calls.c.status == "running")
        .values(
            status=outcome.status,
            error=outcome.error,
            summary=summarise(call.name, payload, outcome.error),
            preview=preview(shown, max_chars=retention.preview_chars),
            identifiers=list(identifiers(payload)) or None,
            size_bytes=payload.size_bytes,
            duration_ms=outcome.duration_ms,
            expires_at=expires_at,
        )
        .returning(*tool_calls.c)
    )
    row = (await connection.execute(statement)).one()
    if stored:
        await connection.execute(
            insert(tool_results).values(
                tool_call_id=call.id, kind=payload.kind, payload=payload.text, expires_at=expires_at
            )
        )
    return _tool_call(row), _reference(row)


async def list_calls(
    connection: AsyncConnection, owner: str, session_id: str, *, where: CallFilter, before: str | None, limit: int
) -> list[ToolCall]:
    """Newest first; payloads are not touched."""
    statement = _owned(owner, session_id).order_by(tool_calls.c.id.desc()).limit(limit)
    if where.tool is not None:
        statement = statement.where(tool_calls.c.tool_name == where.tool)
    if where.turn_id is not None:
        statement = statement.where(tool_calls.c.turn_id == where.turn_id)
    if where.status is not None:
        statement = statement.where(tool_calls.c.status == where.status)
    if before is not None:
        statement = statement.where(tool_calls.c.id < before)
    return [_tool_call(row) for row in await connection.execute(statement)]


async def calls_of_turn(connection: AsyncConnection, turn_id: str) -> tuple[ToolCall, ...]:
    statement = select(tool_calls).where(tool_calls.c.turn_id == turn_id).order_by(tool_calls.c.id)
    return tuple(_tool_call(row) for row in await connection.execute(statement))


async def recent_references(connection: AsyncConnection, session_id: str) -> list[Reference]:
    """References of a session's finished calls, newest first: what the working memory is rebuilt from."""
    statement = (
        select(tool_calls)
        .where(tool_calls.c.session_id == session_id, tool_calls.c.status != "running")
        .order_by(tool_calls.c.id.desc())
        .limit(REBUILD_CALLS)
    )
    return [_reference(row) for row in await connection.execute(statement)]


async def load_result(
    connection: AsyncConnection, owner: str, session_id: str, tool_call_id: str, *, now: datetime
) -> tuple[ToolCall, Any]:
    """A call and the value it gave. NotFound for unknown and foreign ids, 410 `tool_result_expired` once it is gone."""
    joined = (
        _owned(owner, session_id)
        .add_columns(tool_results.c.kind, tool_results.c.payload)
        .outerjoin(tool_results, and_(tool_results.c.tool_call_id == tool_calls.c.id, tool_results.c.expires_at > now))
        .where(tool_calls.c.id == tool_call_id)
    )
    row = (await connection.execute(joined)).one_or_none()
    if row is None:
        raise NotFound("tool_result")
    if row.payload is None and row.size_bytes > 0:
        raise _expired(row)
    return _tool_call(row), None if row.payload is None else _value(row.kind, row.payload)


async def load_values(
    connection: AsyncConnection, session_id: str, tool_call_ids: Sequence[str], *, now: datetime
) -> dict[str, Any]:
    """The values these calls of a session gave, by id; what has expired or is unknown is not among them."""
    statement = (
        select(tool_calls.c.id, tool_results.c.kind, tool_results.c.payload)
        .join(tool_results, tool_results.c.tool_call_id == tool_calls.c.id)
        .where(
            tool_calls.c.session_id == session_id, tool_calls.c.id.in_(tool_call_ids), tool_results.c.expires_at > now
        )
    )
    return {row.id: _value(row.kind, row.payload) for row in await connection.execute(statement)}


async def drop_expired(connection: AsyncConnection, *, now: datetime, limit: int = 500) -> int:
    """Deletes payloads whose time has passed, at most `limit` of them, and gives how many. Their calls stay listed."""
    batch = select(tool_results.c.tool_call_id).where(tool_results.c.expires_at <= now).limit(limit)
    gone = await connection.execute(delete(tool_results).where(tool_results.c.tool_call_id.in_(batch)))
    return gone.rowcount


def _args_hash(args: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_args(args).encode()).hexdigest()[:32]


def _owned(owner: str, session_id: str) -> Select[Any]:
    return (
        select(*tool_calls.c)
        .join(sessions, sessions.c.id == tool_calls.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner)
    )


def _expired(row: Row[Any]) -> AppError:
    return AppError(
        "tool_result_expired",
        status=410,
        title="The result has expired",
        detail=f"The result of {row.tool_name} ({row.summary}) is no longer kept. Run the tool again to have it anew.",
    )


def _value(kind: str, payload: str) -> Any:
    return orjson.loads(payload) if kind == "json" else payload


def _reference(row: Row[Any]) -> Reference:
    return Reference(
        tool_call_id=row.id,
        tool_name=row.tool_name,
        args=row.args,
        status=row.status,
        size_bytes=row.size_bytes,
        summary=row.summary,
        preview=row.preview,
        identifiers=tuple(row.identifiers or ()),
    )


def _tool_call(row: Row[Any]) -> ToolCall:
    return ToolCall(
        tool_call_id=row.id,
        tool_name=row.tool_name,
        args=row.args,
        status=row.status,
        turn_id=row.turn_id,
        started_at=row.started_at,
        duration_ms=row.duration_ms,
        error=row.error,
        metadata=ToolCallMetadata(size_bytes=row.size_bytes, summary=row.summary, truncated_preview=row.preview),
        result_ref=ResultRef(session_id=row.session_id, tool_call_id=row.id),
        expires_at=row.expires_at,
        plan_id=row.plan_id,
        step_id=row.step_id,
    )
