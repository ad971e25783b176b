"""Figures of the last hour or day, of all users. Only reads, in bounded work: at most COUNTED sessions and turns of a
user are counted, since an exact count would read all. A turn counts as of when its message was accepted, a copy never.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from segue.db.engine import Connection, Database
from segue.db.models import api_keys, sessions, turns, usage, user_limits
from segue.domain.field_types import doc
from segue.domain.ids import first_id
from segue.history.fork_and_import import KEPT_OF_AN_ID
from segue.turns.queries import RUNS_ITSELF
from segue.users.usage import IS_COMPLETE

Period = Literal["hour", "day"]

MOST_TURNS: Final = 50_000
KEPT_FROM: Final = 5_000  # turns: to add up fewer takes PostgreSQL less than 25 ms
KEPT_S: Final = 5.0
GROUPS_SHOWN: Final = 50
SKEW: Final = timedelta(minutes=10)  # of the clock by which a process makes ids
_USED = ("llm_calls", "input_tokens", "cached_tokens", "output_tokens")
_STATUSES = ("queued", "running", "completed", "failed", "cancelled")
_HUGE: Final = 10**15
_WHOLE, _BY_BUCKET, _BY_CODE, _BY_MODEL = 0b1111, 0b0111, 0b1011, 0b1100
COUNTED: Final = 1_000

# None that was imported has run, nor a fork's copy that is not run again: its id begins as that of its session ends.
_COPIED: Final = sa.func.substr(turns.c.id, 6, KEPT_OF_AN_ID) == sa.func.right(turns.c.session_id, KEPT_OF_AN_ID)
_BEGAN: Final = turns.c.started_at.is_not(None) | (turns.c.status != "completed")
HAS_RUN: Final = _BEGAN & (~_COPIED | turns.c.timeline.is_not(None))

_SPANS: Final[Mapping[Period, tuple[int, int]]] = {"hour": (60, 60), "day": (96, 900)}  # buckets, seconds of each


@dataclass(frozen=True, slots=True)
class Spread:
    """How durations are distributed, in milliseconds."""

    median: Annotated[float, doc("Half of the durations are below this.")]
    p95: Annotated[float, doc("95 percent of the durations are below this.")]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the turns whose messages were accepted in a period."""

    accepted: Annotated[int, doc("The number of turns, whatever their status.")] = 0
    queued: Annotated[int, doc("The number of turns that are queued.")] = 0
    running: Annotated[int, doc("The number of turns that are running.")] = 0
    completed: Annotated[int, doc("The number of turns that were answered.")] = 0
    failed: Annotated[int, doc("The number of turns that ended with an error.")] = 0
    cancelled: Annotated[int, doc("The number of turns that were cancelled.")] = 0
    latency_ms: Annotated[Spread | None, doc("From message to end, of the turns that ran and have ended.")] = None
    waited_ms: Annotated[Spread | None, doc("How long turns were queued before a process began them.")] = None
    llm_calls: Annotated[int, doc("The number of model calls.")] = 0
    input_tokens: Annotated[int, doc("Tokens sent to models.")] = 0
    cached_tokens: Annotated[int, doc("The part of the input tokens that the provider had cached.")] = 0
    output_tokens: Annotated[int, doc("Tokens received from models.")] = 0
    cost: Annotated[float | None, doc("Cost in US dollars of turns whose models have a price; null if none do.")] = 0.0
    cost_complete: Annotated[bool, doc("Whether `cost` is all: false if a call had no price.")] = True


@dataclass(frozen=True, slots=True)
class Bucket:
    """One of the equal parts of the window."""

    at: Annotated[datetime, doc("When the part begins.")]
    figures: Annotated[Figures, doc("Figures of the turns whose messages were accepted in this part.")]


@dataclass(frozen=True, slots=True)
class OfModel:
    """What one model did for one agent."""

    agent: Annotated[str | None, doc("The id of the agent; null for turns that no process has begun.")]
    model: Annotated[str | None, doc("The model that answered last; null for turns without an answer.")]
    figures: Annotated[Figures, doc("Figures of this agent's turns with this model.")]


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """How many turns ended with an error."""

    code: Annotated[str, doc("The code of the problem that the turns ended with.")]
    turns: Annotated[int, doc("The number of turns that ended with this code.")]


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """The figures of a window of time, as a whole and in parts."""

    bucket_s: Annotated[int, doc("The length of each bucket in seconds.")]
    counted_since: Annotated[datetime, doc("When the window begins, or later: 50,000 turns are counted at most.")]
    total: Annotated[Figures, doc("The figures of the whole window.")]
    buckets: Annotated[list[Bucket], doc("60 of a minute, or 96 of a quarter of an hour, oldest first.")]
    errors: Annotated[list[ErrorCount], doc("The codes of errors, the most frequent first, 50 at most.")]
    by_model: Annotated[list[OfModel], doc("Figures by agent and model, the busiest first, 50 at most.")]


class OperatorFigures:
    """Adds up many turns once for all operators that look on: its figures are KEPT_S old at most."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading = asyncio.Lock()
        self._kept: dict[Period, tuple[float, WindowFigures]] = {}

    async def read(self, window: Period, *, now: datetime) -> WindowFigures:
        clock = asyncio.get_running_loop().time
        async with self._reading:
            if (kept := self._kept.get(window)) and clock() < kept[0]:
                return kept[1]
            figures = await self._database.read(_figures_of, window, now=now)
            if figures.total.accepted >= KEPT_FROM:
                self._kept[window] = clock() + KEPT_S, figures
        return figures


async def _figures_of(connection: Connection, window: Period, *, now: datetime) -> WindowFigures:
    buckets, bucket_s = _SPANS[window]
    first = int(now.timestamp()) // bucket_s - buckets + 1
    starts = [datetime.fromtimestamp((first + place) * bucket_s, UTC) for place in range(buckets)]
    ids = {"first": first_id("turn", starts[0] - SKEW), "behind": first_id("turn", now + SKEW)}
    values = {**ids, "since": starts[0], "bucket_s": bucket_s, "most": MOST_TURNS}
    rows = (await connection.execute(_FIGURES, values)).all()
    [total] = [row for row in rows if row.grouped_by == _WHOLE]
    of_bucket = {row.bucket - first: _figures(row) for row in rows if row.grouped_by == _BY_BUCKET}
    codes = [ErrorCount(row.code, row.accepted) for row in rows if row.grouped_by == _BY_CODE and row.code]
    models = [OfModel(row.agent, row.model, _figures(row)) for row in rows if row.grouped_by == _BY_MODEL]
    return WindowFigures(
        bucket_s=bucket_s,
        counted_since=total.oldest if total.accepted >= MOST_TURNS else starts[0],
        total=_figures(total),
        buckets=[Bucket(at, of_bucket.get(place, Figures())) for place, at in enumerate(starts)],
        errors=sorted(codes, key=lambda each: (-each.turns, each.code))[:GROUPS_SHOWN],
        by_model=sorted(models, key=lambda each: -each.figures.accepted)[:GROUPS_SHOWN],
    )


def _figures(row: sa.Row[Any]) -> Figures:
    counted = {name: getattr(row, name) for name in ("accepted", *_STATUSES, *_USED, "cost", "cost_complete")}
    return Figures(latency_ms=_spread(row.took), waited_ms=_spread(row.waited), **counted)


def _spread(values: list[float | None] | None) -> Spread | None:
    median, p95 = values or (None, None)
    return None if median is None or p95 is None else Spread(round(median, 1), round(p95, 1))


def _ms(later: sa.ColumnElement[Any], earlier: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.func.greatest(sa.func.date_part("epoch", later - earlier) * 1000, 0.0)


def _number(usage: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[Any]:
    """Null for a value that is no number: a row that a newer release wrote must not hide the others."""
    value = usage[name]
    number = sa.func.least(value.cast(sa.Numeric), _HUGE).cast(sa.Float)
    return sa.case((sa.func.jsonb_typeof(value) == "number", number)).label(name)


def _recent() -> sa.FromClause:
    """The newest turns of the window. Ids lie in the primary key by the time at which they were made; those of turns
    that a fork has copied lie elsewhere, because they begin with random letters.
    """
    newest = (
        sa.select(turns)
        .where(turns.c.id >= sa.bindparam("first", type_=sa.Text), turns.c.id < sa.bindparam("behind", type_=sa.Text))
        .where(turns.c.created_at >= sa.bindparam("since"), RUNS_ITSELF, HAS_RUN)
        .order_by(turns.c.id.desc())
        .limit(sa.bindparam("most", type_=sa.Integer))
        .subquery("newest")
    )
    report = _opened(newest.c.report)
    usage = sa.func.coalesce(report.c.usage, newest.c.timeline["usage"])
    since_1970 = sa.func.date_part("epoch", newest.c.created_at)
    return (
        sa.select(
            sa.func.floor(since_1970 / sa.bindparam("bucket_s", type_=sa.Integer)).cast(sa.Integer).label("bucket"),
            newest.c.created_at,
            newest.c.status,
            newest.c.error["code"].as_string().label("code"),
            sa.func.coalesce(report.c.agent, newest.c.agent).label("agent"),
            report.c.model,
            sa.case((newest.c.started_at.is_not(None), _ms(newest.c.finished_at, newest.c.created_at))).label("took"),
            _ms(newest.c.started_at, newest.c.queued_at).label("waited"),
            *(_number(usage, name) for name in (*_USED, "cost")),
        )
        .join_from(newest, report, sa.literal(value=True))
        .subquery("recent")
    )


def _opened(report: sa.ColumnElement[Any]) -> sa.FromClause:
    """PostgreSQL decompresses a report for each operator that reads it, so one function reads all of it. Has nulls for
    a report that is no object, which the function would refuse.
    """
    report_if_object = sa.func.jsonb_path_query_first(report, sa.literal_column("""'$ ? (@.type() == "object")'"""))
    fields = sa.column("agent", sa.Text), sa.column("model", sa.Text), sa.column("usage", JSONB)
    record = sa.func.jsonb_to_record(report_if_object).table_valued(*fields)
    return record.render_derived("report", with_types=True).lateral()


def _grouped() -> sa.Select[*tuple[Any, ...]]:
    """Adds up the turns by each of the keys, and all. `grouped_by` has a bit for each key that does not count."""
    recent = _recent()
    keys = recent.c.bucket, recent.c.code, recent.c.agent, recent.c.model
    bucket, code, agent, model = keys
    all_of_them: sa.ColumnElement[Any] = sa.literal_column("()")
    grouping = sa.func.grouping_sets(sa.tuple_(bucket), sa.tuple_(code), sa.tuple_(agent, model), all_of_them)
    used = sa.func.count(recent.c.llm_calls)
    priced = sa.func.count(recent.c.cost)
    cost = sa.case(((priced > 0) | (used == 0), sa.func.coalesce(sa.func.sum(recent.c.cost), 0)))
    return sa.select(
        *keys,
        sa.func.grouping(*keys).label("grouped_by"),
        sa.func.count().label("accepted"),
        sa.func.min(recent.c.created_at).label("oldest"),
        *(sa.func.count().filter(recent.c.status == status).label(status) for status in _STATUSES),
        *(sa.func.coalesce(sa.func.sum(recent.c[name]), 0).cast(sa.BigInteger).label(name) for name in _USED),
        cost.cast(sa.Float).label("cost"),
        (used == priced).label("cost_complete"),
        _percentiles(recent.c.took).label("took"),
        _percentiles(recent.c.waited).label("waited"),
    ).group_by(grouping)


def _percentiles(value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.percentile_cont(sa.literal([0.5, 0.95], ARRAY(sa.Float))).within_group(value)


_FIGURES = _grouped()


@dataclass(frozen=True, slots=True)
class UserOverview:
    """What a user has, and what they used today. Days are in UTC."""

    user: Annotated[str, doc("The name of the user.")]
    keys: Annotated[int, doc("The number of the user's API keys that work.")]
    sessions: Annotated[int, doc("The number of the user's sessions. 1,000 means that many or more.")]
    turns_today: Annotated[int, doc("The number of turns accepted today. 1,000 means that many or more.")]
    tokens_today: Annotated[int, doc("Tokens sent to and received from models today.")]
    cost_today: Annotated[float | None, doc("Cost in US dollars of calls that have a price; null if none has.")]
    cost_complete: Annotated[bool, doc("Whether `cost_today` is all: false if a call had no price.")]


def _names() -> sa.Select[Any]:
    """Reads one entry of an index for each name, however many rows a user has."""

    def following(name: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        tables: tuple[sa.FromClause, ...] = (sessions, api_keys, usage, user_limits)
        least = (sa.select(sa.func.min(each.c.owner)).where(each.c.owner > name).scalar_subquery() for each in tables)
        return sa.func.least(*least).label("name")

    first = sa.select(following(sa.bindparam("after"))).cte("names", recursive=True)
    names = first.union_all(sa.select(following(first.c.name)).where(first.c.name.is_not(None)))
    return sa.select(names.c.name).where(names.c.name.is_not(None)).limit(sa.bindparam("at_most"))


def _counts() -> sa.Select[Any]:
    names = sa.func.unnest(sa.bindparam("names", type_=ARRAY(sa.Text))).table_valued("name").render_derived("names")
    now, midnight = (sa.bindparam(name, type_=sa.DateTime(timezone=True)) for name in ("now", "midnight"))

    def latest(*conditions: sa.ColumnElement[bool]) -> sa.FromClause:
        """Sorted, so that PostgreSQL takes the index and does not look for a user's sessions among all."""
        of_user = sa.select(sessions.c.id).where(sessions.c.owner == names.c.name, *conditions).correlate(names)
        kinds = (of_user.where(sessions.c.archived.is_(archived)) for archived in (False, True))
        return sa.union_all(*(each.order_by(sessions.c.updated_at.desc()).limit(COUNTED) for each in kinds)).subquery()

    in_force = api_keys.c.revoked_at.is_(None) & sa.func.coalesce(api_keys.c.expires_at > now, True)
    keys = sa.select(sa.func.count()).where(api_keys.c.owner == names.c.name, in_force).scalar_subquery()
    owned = sa.select(sa.func.count()).select_from(latest()).scalar_subquery()
    active = latest(sessions.c.updated_at >= midnight)
    of_session = sa.select(turns.c.created_at, HAS_RUN.label("has_run"))
    of_session = of_session.where(turns.c.session_id == active.c.id).order_by(turns.c.seq.desc())
    newest = of_session.limit(COUNTED).lateral("newest")
    today = (newest.c.created_at >= midnight, newest.c.has_run)
    begun = sa.select(sa.literal(1)).join_from(active, newest, sa.literal(value=True)).where(*today).correlate(names)
    turns_today = sa.select(sa.func.count()).select_from(begun.limit(COUNTED).subquery()).scalar_subquery()
    counts = {"keys": keys, "sessions": sa.func.least(owned, COUNTED), "turns_today": turns_today}
    return sa.select(names.c.name, *(count.label(name) for name, count in counts.items()))


_NAMES, _COUNTS = _names(), _counts()


async def list_users(connection: Connection, *, after: str | None, limit: int, now: datetime) -> list[UserOverview]:
    """Returns users by name: all who have a session, a key, usage or limits."""
    names = list((await connection.execute(_NAMES, {"after": after or "", "at_most": limit})).scalars())
    today = now.astimezone(UTC).date()
    values = {"names": names, "now": now, "midnight": datetime.combine(today, time(), UTC)}
    counts = {name: counted for name, *counted in await connection.execute(_COUNTS, values)}
    tokens = sa.func.sum(usage.c.input_tokens + usage.c.output_tokens).cast(sa.BigInteger)
    used = sa.select(usage.c.owner, tokens, sa.func.sum(usage.c.cost).cast(sa.Float), IS_COMPLETE)
    of_today = used.where(usage.c.owner.in_(names), usage.c.day == today).group_by(usage.c.owner)
    spent = {owner: sums for owner, *sums in await connection.execute(of_today)}
    return [UserOverview(name, *counts[name], *spent.get(name, (0, 0.0, True))) for name in names]
