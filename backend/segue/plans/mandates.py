"""Mandates: yeses of a user's that last, each for one definition of a tool and within bounds that the user was shown.

All values of a call have to keep to the bounds. Its use is counted by a guarded update in the transaction that starts
the call, so no two processes pass a bound together. Owns `mandates` and, for the release before, `grants`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from operator import gt
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field, Strict
from sqlalchemy import ColumnElement, Date, DateTime, Numeric, Row, Text, bindparam, case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from segue.db.engine import Connection
from segue.db.models import grants, mandates
from segue.db.rows import OWNER_LOCK, Position, if_given, made_before, newest_first, older_than, readable, reader
from segue.domain.approval_rule import ArgumentPath, Bound, Given, Number, RuledCall, as_number, is_at, is_over
from segue.domain.errors import InvalidRequest
from segue.domain.field_types import doc
from segue.domain.identity import Operator
from segue.domain.ids import local_time, new_id
from segue.domain.tool import Tool, ToolSpec, definition_of
from segue.events.outbox import mandate_changed
from segue.plans.value_origins import MAX_VALUES, leaves
from segue.users.audit import record_act

MAX_OF_USER: Final = 200
MandateScope = Literal["session", "agent", "user"]


class Uses(Given):
    """How often a mandate may be used."""

    total: Annotated[Annotated[int, Field(ge=1, le=1_000_000)] | None, doc("At most, over all time.")] = None
    per_day: Annotated[Annotated[int, Field(ge=1, le=100_000)] | None, doc("At most, per day in `time_zone`.")] = None


class Sum(Given):
    """A cap on the sum of one numeric argument over all uses."""

    path: Annotated[ArgumentPath, doc("The path of the argument, a number that is not negative.")]
    max: Annotated[Number, Field(ge=0), doc("The most that the values may add up to.")]


class Terms(Given):
    """What a mandate allows: one tool, within bounds."""

    tool: Annotated[str, Field(min_length=1, max_length=200), doc("The name of a tool of `GET /tools` as it is now.")]
    scope: Annotated[MandateScope, doc("One session, all of the user's sessions with one agent, or all of them.")]
    args: Annotated[
        dict[ArgumentPath, Bound],
        Field(max_length=20, default_factory=dict),
        doc("Bounds by path. A value without one has to be the user's own words, unless the tool only reads."),
    ]
    uses: Annotated[Uses, doc("How often it may be used; without limits, as often as needed.")] = Uses()
    sum: Annotated[Sum | None, doc("A cap on the sum of one argument over all uses.")] = None
    unattended: Annotated[bool, doc("Whether it holds in turns that a schedule, trigger or program began.")] = False
    valid_until: Annotated[
        Annotated[AwareDatetime, Strict(strict=False)] | None, doc("When the mandate ends; null: only if revoked.")
    ] = None


@dataclass(frozen=True, slots=True)
class Used:
    """How much of a mandate was used."""

    total: Annotated[int, doc("The number of uses.")]
    today: Annotated[int, doc("The number of uses on the current day in `time_zone`.")]
    sum: Annotated[float, doc("What the values of the argument in `sum` add up to; 0 without one.")]


@dataclass(frozen=True, slots=True)
class Mandate:
    """A standing approval: lets one tool run without asking, within bounds."""

    id: Annotated[str, doc("The id of the mandate, which begins with `man_`.")]
    tool: Annotated[str, doc("The name of the tool that runs without asking.")]
    definition: Annotated[str, doc("The digest of the tool's definition as the user was shown it.")]
    scope: Annotated[MandateScope, doc("Where the mandate holds.")]
    session_id: Annotated[str | None, doc("The id of the session, if `scope` is `session`.")]
    agent: Annotated[str | None, doc("The id of the agent, if `scope` is `agent`.")]
    args: Annotated[Mapping[str, Mapping[str, Any]], doc("The bounds on the arguments, by path.")]
    uses: Annotated[Mapping[str, int | None], doc("How often it may be used, in `total` and `per_day`; null: any.")]
    sum: Annotated[Sum | None, doc("The cap on the sum of one argument; null without one.")]
    unattended: Annotated[bool, doc("Whether it holds in turns that a schedule, trigger or program began.")]
    valid_until: Annotated[datetime | None, doc("When the mandate ends; null: only if revoked.")]
    time_zone: Annotated[str, doc("The IANA time zone in which its days begin.")]
    used: Annotated[Used, doc("How much of the mandate was used.")]
    in_force: Annotated[bool, doc("Whether it has not ended, is not used up, and its tool is unchanged.")]
    created_at: Annotated[datetime, doc("When the user gave the mandate.")]


@dataclass(frozen=True, slots=True)
class Grant:
    """A yes that is remembered for a session: a mandate for one tool and the user's own values."""

    tool: Annotated[str, doc("The name of the tool that runs without asking.")]
    definition: Annotated[str, doc("The digest of the tool's definition as the question showed it.")]
    in_force: Annotated[bool, doc("Whether the tool is still defined so and may be granted. If not, it asks.")]
    plan_id: Annotated[str, doc("The id of the plan whose step was approved.")]
    created_at: Annotated[datetime, doc("When the user said yes.")]


@dataclass(frozen=True, slots=True)
class Use:
    """A call's use of a mandate: `covered` are origins by path, `amount` goes to the sum, `day` is its day."""

    mandate_id: str
    definition: str
    covered: Mapping[str, str]
    amount: Decimal
    day: date
    in_session: bool


class MandateSpent(Exception):
    """Calls, by their ids, that no longer have room under the mandates they were to run under: nothing was started."""

    def __init__(self, calls: Sequence[str]) -> None:
        super().__init__(", ".join(calls))
        self.calls = frozenset(calls)


_SHOWN: Final = [name for name in Mandate.__slots__ if name in mandates.c]


def use_of(row: Row[Any], call: RuledCall, now: datetime) -> Use | None:
    """Returns a call's use of a mandate, None if it is not covered. Its `origins` are those of all values."""
    bounds = readable(reader(dict[str, Bound]), row.args, "mandates", row.id)
    added = 0 if row.sum_path is None else dict(islice(leaves(call.args), MAX_VALUES)).get(row.sum_path)
    if not 0 <= as_number(added) < math.inf:
        return None  # the sum says nothing of a call without such a number
    amount = Decimal(str(added))
    if bounds is None or (call.brought_by is not None and not row.unattended):
        return None
    if not _has_room(row, now, amount) or not _fits(bounds, call):
        return None
    return Use(row.id, row.definition, call.origins, amount, _day(row, now), row.session_id is not None)


def _fits(bounds: Mapping[str, Bound], call: RuledCall) -> bool:
    values = dict(islice(leaves(call.args), MAX_VALUES + 1)) if call.args else {}
    reads_only = call.effect == "read_only"
    if len(values) > MAX_VALUES and (bounds or not reads_only):
        return False
    if any(bound.fixes and not any(is_at(path, leaf) for leaf in values) for path, bound in bounds.items()):
        return False
    unbounded = Bound(origin="any" if reads_only else "user")

    def keeps(leaf: str, value: object) -> bool:
        over = [(path, bound) for path, bound in bounds.items() if is_over(path, leaf)]
        return all(bound.holds(path, leaf, value, call) for path, bound in over or [("", unbounded)])

    return all(keeps(leaf, value) for leaf, value in values.items())


def _day(row: Row[Any], now: datetime) -> date:
    return local_time(now, row.time_zone).date()


def _used_today(row: Row[Any], now: datetime) -> int:
    return row.used_today if row.used_on is not None and row.used_on >= _day(row, now) else 0


def _has_room(row: Row[Any], now: datetime, amount: Decimal) -> bool:
    return (
        (row.valid_until is None or row.valid_until > now)
        and (row.most_total is None or row.used_total < row.most_total)
        and (row.most_per_day is None or _used_today(row, now) < row.most_per_day)
        and (row.most_sum is None or row.used_sum + amount <= row.most_sum)
    )


_DAY, _AMOUNT = bindparam("on_day", type_=Date), bindparam("amount", type_=Numeric)
_COUNTED_TODAY = mandates.c.used_on >= _DAY  # also by a process whose clock is ahead
_USED_TODAY = func.coalesce(case((_COUNTED_TODAY, mandates.c.used_today)), 0)
_BOOK = (
    update(mandates)
    .where(
        mandates.c.id == bindparam("of_mandate", type_=Text),
        mandates.c.definition == bindparam("shown", type_=Text),
        mandates.c.valid_until.is_(None) | (mandates.c.valid_until > bindparam("at", type_=DateTime(timezone=True))),
        mandates.c.most_total.is_(None) | (mandates.c.used_total < mandates.c.most_total),
        mandates.c.most_per_day.is_(None) | (mandates.c.most_per_day > _USED_TODAY),
        mandates.c.most_sum.is_(None) | (mandates.c.used_sum + _AMOUNT <= mandates.c.most_sum),
    )
    .values(
        used_total=mandates.c.used_total + 1,
        used_today=case((_COUNTED_TODAY, mandates.c.used_today + 1), else_=1),
        used_on=func.greatest(mandates.c.used_on, _DAY),
        used_sum=mandates.c.used_sum + _AMOUNT,
    )
    .returning(mandates.c.id, mandates.c.owner, mandates.c.tool)
)


async def book(connection: Connection, uses: Mapping[str, Use], *, session_id: str, now: datetime) -> None:
    """Counts the uses of the calls with these ids, in the transaction that starts them. Raises MandateSpent."""
    spent = []
    for call_id, use in sorted(uses.items(), key=lambda item: item[1].mandate_id):  # rows are locked in one order
        of = {"of_mandate": use.mandate_id, "shown": use.definition, "on_day": use.day, "amount": use.amount, "at": now}
        row = (await connection.execute(_BOOK, of)).one_or_none()
        if row is None:
            spent.append(call_id)
        else:
            about = {"mandate_id": row.id, "tool": row.tool, "tool_call_id": call_id}
            await mandate_changed(connection, "used", f"{call_id}_man", row.owner, about, session_id=session_id)
    if spent:
        raise MandateSpent(spent)


def covers(spec: ToolSpec, definition: str | None) -> bool:
    """Returns whether a mandate for a definition is one for the tool as it is now."""
    return definition == definition_of(spec) and not spec.always_asks


async def mandates_for(
    connection: Connection, owner: str, session_id: str, agent: str, spec: ToolSpec
) -> Sequence[Row[Any]]:
    """Returns the user's mandates for the tool as it is defined now that hold in a session, the narrowest first."""
    if spec.always_asks:
        return ()
    elsewhere = mandates.c.session_id.is_(None) & (mandates.c.agent.is_(None) | (mandates.c.agent == agent))
    found = (
        select(mandates)
        .where(mandates.c.owner == owner, mandates.c.tool == spec.name)
        .where((mandates.c.session_id == session_id) | elsewhere)
        .order_by(mandates.c.session_id.is_(None), mandates.c.agent.is_(None), mandates.c.seq)
        .limit(MAX_OF_USER)
    )
    return [row for row in await connection.execute(found) if covers(spec, row.definition)]


async def give(
    connection: Connection,
    owner: str,
    terms: Terms,
    tool: ToolSpec,
    *,
    session_id: str | None,
    agent: str | None,
    time_zone: str,
    now: datetime,
    mandate_id: str | None = None,
) -> Row[Any]:
    """Stores a mandate and returns its row, or the row of its id. Raises InvalidRequest, what `made_before` raises."""
    if (made := await made_before(connection, mandates, owner, mandate_id)) is not None:
        return made
    if tool.always_asks or tool.ephemeral:
        raise InvalidRequest(f"{tool.name} takes no mandate: it asks about each call, or never asks.")
    if terms.valid_until is not None and terms.valid_until <= now:
        raise InvalidRequest("`valid_until` has passed.")
    await connection.execute(OWNER_LOCK, {"of_owner": f"mandates of {owner}"})
    mine = select(func.count()).where(mandates.c.owner == owner, mandates.c.plan_id.is_(None))
    if (await connection.execute(mine)).scalar_one() >= MAX_OF_USER:
        raise InvalidRequest(f"A user may have {MAX_OF_USER} mandates. Revoke some first.")
    row = {"id": mandate_id or new_id("man", now), "owner": owner, "tool": tool.name, "created_at": now}
    row |= {"unattended": terms.unattended, "valid_until": terms.valid_until, "time_zone": time_zone}
    if terms.scope != "user":
        row |= {"session_id": session_id} if terms.scope == "session" else {"agent": agent}
    row |= {"definition": definition_of(tool), "most_total": terms.uses.total, "most_per_day": terms.uses.per_day}
    row |= {"sum_path": terms.sum.path, "most_sum": Decimal(str(terms.sum.max))} if terms.sum is not None else {}
    row["args"] = {path: bound.model_dump(exclude_none=True) for path, bound in terms.args.items()}
    given: Row[Any] = (await connection.execute(insert(mandates).values(row).returning(mandates))).one()
    await _tell(connection, "given", [given])
    return given


async def remember(
    connection: Connection, owner: str, session_id: str, tool: str, definition: str, *, plan_id: str, now: datetime
) -> None:
    """Stores the mandate for a tool's calls in a session with the user's values, in place of one before it."""
    values = {"definition": definition, "plan_id": plan_id, "created_at": now}
    row = {"id": new_id("man", now), "owner": owner, "session_id": session_id, "tool": tool, **values}
    stored = insert(mandates).values(row)
    one, remembered = ["session_id", "tool"], mandates.c.plan_id.is_not(None)
    stored = stored.on_conflict_do_update(index_elements=one, index_where=remembered, set_=values)
    await _tell(connection, "given", (await connection.execute(stored.returning(mandates))).all())


async def revoke(connection: Connection, owner: str, mandate_id: str) -> bool:
    """Returns whether there was one. A running turn asks from its next call on."""
    return bool(await _remove(connection, mandates.c.owner == owner, mandates.c.id == mandate_id))


async def revoke_all(connection: Connection, owner: str, tool: str) -> list[str]:
    """Takes back all for a tool, those remembered for a session too. Returns their ids."""
    return [row.id for row in await _remove(connection, mandates.c.owner == owner, mandates.c.tool == tool)]


async def forget(connection: Connection, session_id: str, tool: str) -> bool:
    """Lets a tool ask again in a session where a decision was remembered. Returns whether there was one."""
    of_session = mandates.c.session_id == session_id, mandates.c.tool == tool
    return bool(await _remove(connection, *of_session, mandates.c.plan_id.is_not(None)))


async def _remove(connection: Connection, *which: ColumnElement[bool]) -> Sequence[Row[Any]]:
    gone = (await connection.execute(delete(mandates).where(*which).returning(mandates))).all()
    for row in gone:
        if row.plan_id is not None:  # what the release before reads goes too
            of_grant = grants.c.session_id == row.session_id, grants.c.tool == row.tool
            await connection.execute(delete(grants).where(*of_grant))
    await _tell(connection, "revoked", gone)
    return gone


async def _tell(connection: Connection, what: Literal["given", "revoked"], rows: Sequence[Row[Any]]) -> None:
    """Stores an act and a webhook's event for each."""
    for row in rows:
        about = {"mandate_id": row.id, "tool": row.tool, "scope": _scope(row)}
        act: Literal["give_mandate", "revoke_mandate"] = "give_mandate" if what == "given" else "revoke_mandate"
        await record_act(connection, Operator(row.owner), act, session_id=row.session_id, tool=row.tool, details=about)
        event = f"{row.id}_{what}_{row.definition[:8]}"
        await mandate_changed(connection, what, event, row.owner, about, session_id=row.session_id)


async def list_mandates(
    connection: Connection, owner: str, *, before: Position | str | None, limit: int
) -> Sequence[Row[Any]]:
    """Returns the newest rows first; `before` is the last one seen."""
    mine = select(mandates).where(mandates.c.owner == owner, older_than(mandates, before))
    return (await connection.execute(mine.order_by(*newest_first(mandates)).limit(limit))).all()


def shown(row: Row[Any], tools: Mapping[str, Tool], *, now: datetime) -> Mandate:
    """Returns a mandate as its user sees it."""
    return Mandate(
        **{name: getattr(row, name) for name in _SHOWN},
        scope=_scope(row),
        uses={"total": row.most_total, "per_day": row.most_per_day},
        sum=Sum(path=row.sum_path, max=float(row.most_sum)) if row.sum_path is not None else None,
        used=Used(row.used_total, _used_today(row, now), float(row.used_sum)),
        in_force=_is_as_shown(row, tools) and _has_room(row, now, Decimal(0)),
    )


def _scope(row: Row[Any]) -> MandateScope:
    return "session" if row.session_id is not None else "user" if row.agent is None else "agent"


def _is_as_shown(row: Row[Any], tools: Mapping[str, Tool]) -> bool:
    return row.tool in tools and covers(tools[row.tool].spec, row.definition)


async def list_grants(
    connection: Connection, session_id: str, tools: Mapping[str, Tool], *, after: str | None, limit: int
) -> list[Grant]:
    """Returns the decisions remembered for a session, by the names of the tools; `after` is the last one seen."""
    of_session = mandates.c.session_id == session_id, mandates.c.plan_id.is_not(None)
    statement = select(mandates).where(*of_session, if_given(mandates.c.tool, after, gt))
    return [
        Grant(row.tool, row.definition, _is_as_shown(row, tools), row.plan_id, row.created_at)
        for row in await connection.execute(statement.order_by(mandates.c.tool).limit(limit))
    ]
