"""How long payloads of results are kept: until they expire, or until newer ones of the session need the room. Each
payload has the session's byte count before it, so the lowest counts are the oldest. The calls stay in the ledger.
"""

from datetime import datetime

from sqlalchemy import CTE, BigInteger, Text, bindparam, delete, func, insert, select, update
from sqlalchemy.sql.dml import ReturningInsert

from segue.db.engine import Connection
from segue.db.models import sessions, tool_calls, tool_results

BATCH = 250


async def evict(connection: Connection, session_id: str, beyond: int, *, now: datetime) -> None:
    """Deletes a session's oldest payloads, `beyond` bytes of them, in the transaction that has stored a newer one. The
    session's row is locked, so calls that end together are counted one by one.
    """
    await connection.execute(_EVICT, {"at_session": session_id, "beyond": beyond, "evicted_at": now})


async def drop_expired(connection: Connection, *, now: datetime) -> list[int]:
    """Deletes at most BATCH expired payloads, and returns the bytes of each."""
    return list((await connection.execute(_DROP, {"expired_at": now})).scalars())


def storing(call: CTE) -> ReturningInsert[int]:
    """Returns a part of a statement that stores the payload of a row of `tool_calls`, if it has any bytes. Parameters
    are its `size`, `stored_kind`, `stored_text`, and `until` when it is kept.
    """
    size = bindparam("size", type_=BigInteger)
    counted = (
        update(sessions)
        .where(sessions.c.id == call.c.session_id, size > 0)
        .values(result_bytes=sessions.c.result_bytes + size)
        .returning(call.c.id, sessions.c.id.label("session_id"), (sessions.c.result_bytes - size).label("before"))
        .cte("counted")
    )
    stored = {
        "tool_call_id": counted.c.id,
        "kind": bindparam("stored_kind", type_=Text),
        "payload": bindparam("stored_text", type_=Text),
        "expires_at": bindparam("until", type_=tool_results.c.expires_at.type),
        "session_id": counted.c.session_id,
        "stored_before": counted.c.before,
    }
    row = select(*stored.values()).select_from(counted)
    return insert(tool_results).from_select(list(stored), row).returning(tool_results.c.stored_before)


_RESULT = tool_results.c
_BEYOND = (_RESULT.session_id == bindparam("at_session"), _RESULT.stored_before < bindparam("beyond"))
_GONE = delete(tool_results).where(*_BEYOND).returning(_RESULT.tool_call_id).cte("gone")
# In the ledger `expires_at` is since when a payload is gone.
_GONE_CALLS = update(tool_calls).where(tool_calls.c.id.in_(select(_GONE.c.tool_call_id)))
_EVICT = _GONE_CALLS.values(expires_at=bindparam("evicted_at"))
# Without payloads that a turn is evicting at the same time, which are gone anyway.
_DUE = select(_RESULT.tool_call_id).where(_RESULT.expires_at <= bindparam("expired_at")).limit(BATCH)
_EXPIRED = select(_DUE.with_for_update(skip_locked=True).cte("batch").c.tool_call_id)
_DROP = delete(tool_results).where(_RESULT.tool_call_id.in_(_EXPIRED)).returning(func.octet_length(_RESULT.payload))
