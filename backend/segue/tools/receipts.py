"""The receipts of calls that changed something, or were approved: a chain for each session. Owns `receipts`, which has
no words and outlives an erased user, and `receipt_contents`, which goes with the session. A receipt is written in the
transaction of the outcome: no call has one without the other.
"""

import secrets
from typing import Any, Final

from pydantic import SecretStr
from sqlalchemy import Row, Select, func, insert, literal, select

from segue.db.engine import Connection
from segue.db.models import messages, plans, receipt_contents, receipts, sessions, tool_calls
from segue.domain.errors import existing
from segue.domain.ids import read_json
from segue.domain.receipt import FIRST, ChainHead, Receipt, canonical, hash_of, hash_of_content, sign
from segue.domain.tool import effect_outcome
from segue.tools.results import call_of, effect_made

_KEY: Final = "receipt_key"
_CONTENT: Final = receipt_contents.c
_SAME: Final = (_CONTENT.session_id == receipts.c.session_id) & (_CONTENT.number == receipts.c.number)
_ALL: Final = receipts.outerjoin(receipt_contents, _SAME).outerjoin(sessions, sessions.c.id == receipts.c.session_id)
_WHOLE: Final = select(*receipts.c, _CONTENT.salt, _CONTENT.content, sessions.c.owner).select_from(_ALL)


def options_of(key: SecretStr | None) -> dict[str, object]:
    """Returns the execution options of a database whose receipts are signed with RECEIPT_KEY."""
    return {_KEY: key.get_secret_value()} if key else {}


def _signed(connection: Connection, *about: str | int) -> tuple[str | None, str | None]:
    return sign(connection.engine.get_execution_options().get(_KEY), *about)


async def append_receipt(connection: Connection, tool_call_id: str) -> None:
    """Appends the receipt of a call whose outcome is stored, if it changed something or was approved. To be called in
    the transaction that stores the outcome and has locked the session's row, else it may raise NoResultFound.
    """
    row = (await connection.execute(_rows_of(tool_call_id))).one_or_none()
    if row is None:
        return
    head, content, salt = await _head(connection, row.session_id), _content(row), secrets.token_hex(16)
    number, previous = (head.number + 1, head.hash) if head else (1, FIRST)
    chain = (row.session_id, number, tool_call_id, hash_of_content(salt, content), previous)
    values = (*chain, digest := hash_of(*chain), *_signed(connection, digest))
    last = select(func.coalesce(func.max(receipts.c.number), 0)).where(receipts.c.session_id == row.session_id)
    new = select(*(literal(value, column.type) for value, column in zip(values, receipts.c, strict=True)))
    chained = insert(receipts).from_select(list(receipts.c), new.where(last.scalar_subquery() == number - 1))
    of_it = chained.returning(receipts.c.session_id, receipts.c.number).cte("of_it")
    kept = select(of_it.c.session_id, of_it.c.number, literal(salt), literal(canonical(content).decode()))
    stored = insert(receipt_contents).from_select(list(_CONTENT), kept).returning(_CONTENT.number)
    (await connection.execute(stored)).scalar_one()


def _rows_of(tool_call_id: str) -> Select[Any]:
    """Selects the data of a receipt: the call, its step, the yes, and the answer that this was a yes to."""
    approval, answer = messages.alias("said"), messages.alias("asked")
    question = select(answer.c.content).where(answer.c.turn_id == tool_calls.c.effect["asked_in"].as_string())
    question = question.where(answer.c.role == "assistant", answer.c.tool_calls.is_(None))
    shown = question.order_by(answer.c.seq.desc()).limit(1).scalar_subquery().label("question")
    step = plans.c.steps[tool_calls.c.step_id - 1].label("step")
    return (
        select(tool_calls, shown, step, approval.c.content.label("words"), approval.c.created_at.label("said_at"))
        .outerjoin(plans, plans.c.id == tool_calls.c.plan_id)
        .outerjoin(approval, approval.c.id == tool_calls.c.approval["message_id"].as_string())
        .where(tool_calls.c.id == tool_call_id, tool_calls.c.effect.is_not(None), tool_calls.c.status != "running")
    )


def _content(row: Row[Any]) -> dict[str, Any]:
    """Returns the content of a receipt, in a form that JSON keeps to the letter."""
    effect, call = effect_made(row), call_of(row)
    step = row.step if isinstance(row.step, dict) else {}
    yes = dict(row.approval) if isinstance(row.approval, dict) else None
    if yes and row.words is not None:
        yes |= {"words": row.words, "at": row.said_at.isoformat()}
    shown = {"question": row.question, "step": step.get("description"), "args": step.get("args")}
    return {
        "turn_id": row.turn_id,
        "tool": row.tool_name,
        "title": effect and effect.title,
        "effect": effect and effect.kind,
        "definition": effect and effect.definition,
        "args": call.args,
        "origins": step.get("args_origin") or row.covered,
        "shown": shown if row.question or step else None,
        "approval": yes,
        "outcome": effect_outcome(call, effect),
        "error": row.error,
        "started_at": row.started_at.isoformat(),
        "duration_ms": row.duration_ms,
    }


async def _head(connection: Connection, session_id: str) -> ChainHead | None:
    last = select(receipts.c.number, receipts.c.hash).where(receipts.c.session_id == session_id)
    row = (await connection.execute(last.order_by(receipts.c.number.desc()).limit(1))).one_or_none()
    return ChainHead(row.number, row.hash, *_signed(connection, session_id, row.number, row.hash)) if row else None


async def read_chain(
    connection: Connection, session_id: str, *, after: int, limit: int
) -> tuple[str | None, ChainHead | None, list[Receipt]]:
    """Returns whose the session is, None if the user was erased, the last of its receipts, signed as it is now, and
    those behind a number in their order. Raises NotFound if there is neither session nor receipt.
    """
    owner = await connection.scalar(select(sessions.c.owner).where(sessions.c.id == session_id))
    head = await _head(connection, session_id)
    existing("session", owner or head)
    listed = _WHOLE.where(receipts.c.session_id == session_id, receipts.c.number > after)
    listed = listed.where(receipts.c.number <= (head.number if head else 0)).order_by(receipts.c.number).limit(limit)
    return owner, head, list(map(_receipt, await connection.execute(listed)))


async def get_receipt(connection: Connection, tool_call_id: str) -> tuple[str | None, Receipt]:
    """Returns whose session it is, None if the user was erased, and the newest receipt of a call. Raises NotFound."""
    found = _WHOLE.where(receipts.c.tool_call_id == tool_call_id).order_by(receipts.c.number.desc()).limit(1)
    row = existing("receipt", (await connection.execute(found)).one_or_none())
    return row.owner, _receipt(row)


def _receipt(row: Any) -> Receipt:
    content = read_json(row.content) if row.content is not None else None
    chain = {column.name: getattr(row, column.name) for column in receipts.c}
    return Receipt(**chain, salt=row.salt, content=content if isinstance(content, dict) else None)
