"""Acts of operators, and standing approvals of users: who, when, on what. Owns the table `audit`, from which no user
and no session is erased. Secrets are removed from an operator's words; a user's words never come here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import lt
from typing import Annotated, Any, Final, Literal, get_args

from sqlalchemy import delete, func, insert, select

from segue.db.engine import Connection
from segue.db.models import audit
from segue.db.rows import if_given, readable, reader
from segue.domain.field_types import doc
from segue.domain.identity import Operator
from segue.domain.redaction import without_secret_texts

AuditedAction = Literal[
    "cancel_turn", "set_tool_state", "reset_tool_states", "read_session", "reload_agents", "retry_webhooks",
    "reconnect_mcp_server", "create_key", "rotate_key", "revoke_key", "set_user_limits", "adopt_user", "export_user",
    "erase_user", "back_up", "restore", "give_mandate", "revoke_mandate", "decide_approval",
]  # fmt: skip
BATCH: Final = 500
CLI: Final = Operator("cli")  # who acts at the command line


@dataclass(frozen=True, slots=True)
class Act:
    """An entry of the audit log: what an operator did, or a user about an approval."""

    seq: Annotated[int, doc("Grows with every entry.")]
    at: Annotated[datetime, doc("When the action was done.")]
    actor: Annotated[str, doc("Who did it: the operator or the user.")]
    action: Annotated[AuditedAction | Literal["unknown"], doc("What was done; `unknown` if a newer release knows it.")]
    session_id: Annotated[str | None, doc("The id of the session that it was done to, if any.")]
    turn_id: Annotated[str | None, doc("The id of the turn that it was done to, if any.")]
    tool: Annotated[str | None, doc("The name of the tool that it was done to, if any.")]
    details: Annotated[dict[str, Any], doc("What was asked for or decided, without secrets.")]
    request_id: Annotated[str | None, doc("The id of the HTTP request, as in the log, if there was one.")]


async def record_act(
    connection: Connection,
    operator: Operator,
    action: AuditedAction,
    *,
    session_id: str | None = None,
    turn_id: str | None = None,
    tool: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Persists the act. Call it in the act's own transaction, or before it."""
    known = {name: value for name, value in (details or {}).items() if value is not None}
    done_by = {"at": func.now(), "actor": operator.user, "request_id": operator.request_id}
    done_to = {"session_id": session_id, "turn_id": turn_id, "tool": tool}
    act = {"action": action, "details": without_secret_texts(known)}
    await connection.execute(insert(audit).values({**done_by, **done_to, **act}))


async def list_acts(
    connection: Connection, *, action: AuditedAction | None, actor: str | None, before: int | None, limit: int
) -> list[Act]:
    """Returns acts, newest first."""
    conditions = if_given(audit.c.action, action), if_given(audit.c.actor, actor), if_given(audit.c.seq, before, lt)
    statement = select(audit).where(*conditions).order_by(audit.c.seq.desc()).limit(limit)
    return [_act(dict(row)) for row in (await connection.execute(statement)).mappings()]


async def drop_old_acts(connection: Connection, *, before: datetime) -> int:
    """Deletes those of the BATCH oldest acts that are from before then, and returns how many."""
    oldest = select(audit.c.seq).order_by(audit.c.seq).limit(BATCH).with_for_update(skip_locked=True).cte("oldest")
    old = audit.c.seq.in_(select(oldest.c.seq)), audit.c.at < before
    return (await connection.execute(delete(audit).where(*old))).rowcount


def _act(row: dict[str, Any]) -> Act:
    known = row["action"] if row["action"] in get_args(AuditedAction) else "unknown"
    details = readable(reader(dict[str, Any]), row["details"], "audit", str(row["seq"]))
    return Act(**{**row, "action": known, "details": details or {}})
