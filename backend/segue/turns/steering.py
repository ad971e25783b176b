"""Messages that are to be read by the turn that runs: queued turns until it reads them, then a part of it.

A turn that ends before it reads them leaves them as they are: they run next. The process that has
claimed the turn reads its rows, so a message counts for one turn only, in any process.
"""

from sqlalchemy import ColumnElement, Text, bindparam, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import QUEUED, turns
from segue.domain.events import SteerRead
from segue.domain.session import EPOCHS, TurnKey
from segue.memory.history import move_message
from segue.turns.claims import Claim

_WAITS: tuple[ColumnElement[bool], ...] = (
    turns.c.session_id == bindparam("at_session", type_=Text),
    turns.c.status == QUEUED,
    turns.c.request["steers"].as_string() == bindparam("steered", type_=Text),
)
_IS_STEERED = select(exists().where(*_WAITS))
_NEXT = select(turns.c.id, turns.c.seq, turns.c.epoch, turns.c.facts_due_at).where(*_WAITS)
_NEXT = _NEXT.order_by(turns.c.seq).with_for_update()


async def is_steered(connection: AsyncConnection, turn: TurnKey) -> bool:
    """Returns whether a message waits to be read by a turn."""
    return bool(await connection.scalar(_IS_STEERED, {"at_session": turn.session_id, "steered": turn.turn_id}))


async def read_steers(connection: AsyncConnection, claim: Claim) -> list[SteerRead]:
    """Makes the messages that wait for a running turn part of it, in the order in which they came. In its fenced
    transaction: no other process can have them too.
    """
    reader, read = claim.key, []
    for row in (await connection.execute(_NEXT, {"at_session": reader.session_id, "steered": reader.turn_id})).all():
        ended = {"status": "completed", "read_by": reader.turn_id, "facts_due_at": None}
        await connection.execute(update(turns).where(turns.c.id == row.id).values(ended))
        if row.facts_due_at is not None:
            due = func.coalesce(turns.c.facts_due_at, row.facts_due_at)
            await connection.execute(update(turns).where(turns.c.id == reader.turn_id).values(facts_due_at=due))
        was = TurnKey(reader.session_id, row.id, row.seq, row.epoch // EPOCHS)
        read.append(SteerRead(await move_message(connection, row.id, reader), was))
    return read
