"""The receipts of calls that changed something, or were approved: a chain for each session.

Owns the tables `receipts`, which has no words and outlives its session, and `receipt_contents`, which goes with it. A
receipt is written in the transaction of the outcome, under the lock of its session: no call has one without the other.
"""

import secrets
from typing import Any, Final

from pydantic import SecretStr
from sqlalchemy import Row, func, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import messages, plans, receipt_contents, receipts, sessions, tool_calls
from segue.db.rows import read_json
from segue.domain.errors import existing
from segue.domain.receipt import FIRST, ChainHead, Receipt, ReceiptKey, canonical, hash_of, hash_of_content
from segue.domain.tool import effect_outcome
from segue.tools.results import call_of, effect_made

MAX_TRIES: Final = 5
_OPTION: Final = "receipt_key"
_CHAIN: Final = list(receipts.c)


def options_of(key: SecretStr | None) -> dict[str, object]:
    """Returns the execution options of a database whose receipts are signed with RECEIPT_KEY."""
    return {_OPTION: ReceiptKey(key.get_secret_value())} if key else {}


def _key_of(connection: AsyncConnection) -> ReceiptKey:
    found: ReceiptKey = connection.engine.get_execution_options().get(_OPTION) or ReceiptKey(None)
    return found


async def append_receipt(connection: AsyncConnection, tool_call_id: str) -> None:
    """Appends the receipt of a call whose outcome is stored, if it changed something or was approved. To be called in
    the transaction that stores the outcome, once that has the lock of the session's row.
    """
    row = (await connection.execute(_told(tool_call_id))).one_or_none()
    if row is None:
        return
    content, salt = _content(row), secrets.token_hex(16)
    content_hash = hash_of_content(salt, content)
    for _ in range(MAX_TRIES):  # under the lock the first one succeeds
        head = await chain_head(connection, row.session_id)
        number, previous = (head.number + 1, head.hash) if head else (1, FIRST)
        told = hash_of(row.session_id, number, tool_call_id, content_hash, previous)
        signature, signed_by = _key_of(connection).sign(told)
        values = (row.session_id, number, tool_call_id, content_hash, previous, told, signature, signed_by)
        if await _insert(connection, dict(zip(_CHAIN, values, strict=True)), salt, canonical(content).decode()):
            return
    raise AssertionError("the session of a receipt is locked")


async def _insert(connection: AsyncConnection, values: dict[Any, Any], salt: str, content: str) -> bool:
    """Returns False if another receipt has this number: one statement, which looks and stores."""
    session_id, number = values[receipts.c.session_id], values[receipts.c.number]
    last = select(func.coalesce(func.max(receipts.c.number), 0)).where(receipts.c.session_id == session_id)
    row = select(*(literal(value, column.type) for column, value in values.items()))
    chain = insert(receipts).from_select(_CHAIN, row.where(last.scalar_subquery() == number - 1))
    chained = chain.returning(receipts.c.session_id, receipts.c.number).cte("chained")
    kept = select(chained.c.session_id, chained.c.number, literal(salt), literal(content))
    stored = insert(receipt_contents).from_select(["session_id", "number", "salt", "content"], kept)
    return (await connection.execute(stored.returning(receipt_contents.c.number))).one_or_none() is not None


def _told(tool_call_id: str) -> Any:
    """What a receipt is made of: the call, its step, the yes, and the answer that this was a yes to."""
    said, asked = messages.alias("said"), messages.alias("asked")
    question = (
        select(asked.c.content)
        .where(asked.c.turn_id == tool_calls.c.effect["asked_in"].as_string())
        .where(asked.c.role == "assistant", asked.c.tool_calls.is_(None))
        .order_by(asked.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    step = plans.c.steps[tool_calls.c.step_id - 1]
    shown = (
        question.label("question"),
        step.label("step"),
        said.c.content.label("words"),
        said.c.created_at.label("said_at"),
    )
    return (
        select(tool_calls, *shown)
        .outerjoin(plans, plans.c.id == tool_calls.c.plan_id)
        .outerjoin(said, said.c.id == tool_calls.c.approval["message_id"].as_string())
        .where(tool_calls.c.id == tool_call_id, tool_calls.c.effect.is_not(None), tool_calls.c.status != "running")
    )


def _content(row: Row[Any]) -> dict[str, Any]:
    """Returns what a receipt says, as JSON can hold it again to the letter."""
    made, call = effect_made(row), call_of(row)
    step = row.step if isinstance(row.step, dict) else {}
    yes = row.approval if isinstance(row.approval, dict) else None
    said = {"words": row.words, "at": row.said_at and row.said_at.isoformat()} if row.words is not None else {}
    shown = {"question": row.question, "step": step.get("description"), "args": step.get("args")}
    return {
        "turn_id": row.turn_id,
        "tool": row.tool_name,
        "title": made.title if made else row.tool_name,
        "effect": made.kind if made else None,
        "definition": made.definition if made else None,
        "args": call.args,
        "origins": step.get("args_origin") or row.covered,
        "shown": shown if row.question or step else None,
        "approval": {**yes, **said} if yes else None,
        "outcome": effect_outcome(call, made),
        "error": row.error,
        "started_at": row.started_at.isoformat(),
        "duration_ms": row.duration_ms,
    }


async def chain_head(connection: AsyncConnection, session_id: str) -> ChainHead | None:
    """Returns the last receipt of a session as it is now, signed; None if it has none."""
    last = select(receipts.c.number, receipts.c.hash).where(receipts.c.session_id == session_id)
    row = (await connection.execute(last.order_by(receipts.c.number.desc()).limit(1))).one_or_none()
    if row is None:
        return None
    return ChainHead(row.number, row.hash, *_key_of(connection).sign(session_id, row.number, row.hash))


async def owner_of_chain(connection: AsyncConnection, session_id: str) -> str | None:
    """Returns whose the session is, None if it is deleted and has left receipts. Raises NotFound."""
    theirs = select(sessions.c.owner).where(sessions.c.id == session_id).scalar_subquery()
    left = select(receipts.c.number).where(receipts.c.session_id == session_id).exists()
    owner, is_left = (await connection.execute(select(theirs, left))).one()
    existing("session", owner or is_left or None)
    return None if owner is None else str(owner)


async def list_receipts(
    connection: AsyncConnection, session_id: str, *, after: int, last: int, limit: int
) -> list[Receipt]:
    """Returns the receipts of a session behind a number, up to the `last` one, in their order."""
    listed = _whole().where(receipts.c.session_id == session_id, receipts.c.number.between(after + 1, last))
    return list(map(_receipt, await connection.execute(listed.order_by(receipts.c.number).limit(limit))))


async def get_receipt(connection: AsyncConnection, tool_call_id: str) -> tuple[Receipt, str | None]:
    """Returns the newest receipt of a call, and whose session it is: None if that is deleted. Raises NotFound."""
    found = _whole().add_columns(sessions.c.owner).outerjoin(sessions, sessions.c.id == receipts.c.session_id)
    found = found.where(receipts.c.tool_call_id == tool_call_id).order_by(receipts.c.number.desc()).limit(1)
    row = existing("receipt", (await connection.execute(found)).one_or_none())
    return _receipt(row), row.owner


def _whole() -> Any:
    same = (receipt_contents.c.session_id == receipts.c.session_id) & (receipt_contents.c.number == receipts.c.number)
    kept = receipts.outerjoin(receipt_contents, same)
    return select(*_CHAIN, receipt_contents.c.salt, receipt_contents.c.content).select_from(kept)


def _receipt(row: Row[Any]) -> Receipt:
    content = read_json(row.content) if row.content is not None else None
    kept = content if isinstance(content, dict) else None
    chain = {column.name: getattr(row, column.name) for column in _CHAIN}
    return Receipt(**chain, content=kept, salt=row.salt)
