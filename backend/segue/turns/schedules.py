"""Schedules: messages that are sent at set times. Owns the table `schedules`.

The transaction that stores the turn of a due moment moves its schedule on, if no other process has, so each moment is
one turn. A process looks at a schedule under a lease, when it is due and until its last turn has ended well or its
owner was notified. Times are PostgreSQL's.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from itertools import islice, pairwise
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from dateutil.rrule import rrulestr
from sqlalchemy import ColumnElement, Row, Select, Table, case, delete, func, insert, select, update

from segue.agent.prompts import TEXTS
from segue.db.engine import Connection, Database
from segue.db.models import schedules, turns
from segue.db.rows import OWNER_LOCK, Position, claim_row, claiming, due_in, made_before, newest_first, older_than
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError, InvalidRequest, app_error, existing
from segue.domain.field_types import doc
from segue.domain.ids import Clock, new_id
from segue.domain.session import TurnKey, TurnStatus
from segue.domain.tool import ToolContext
from segue.events import outbox, user_feed
from segue.events.event_log import EventLog
from segue.log import log
from segue.memory.session_store import check_session, create_session, find_named, lock_session, name_session
from segue.turns.admission import MAX_QUEUED, Admitted, accepted_before, begin_turn, retry
from segue.turns.chat_request import ChatRequest, Once, Origin
from segue.turns.queries import groups_of_last
from segue.turns.turn_service import TurnService
from segue.turns.turn_settings import TurnSettings

Missed = Literal["once", "skip"]
Overlap = Literal["skip", "queue", "parallel"]

LOOKS_A_LEASE: Final = 30  # of a turn, at least: every second, as TURN_LEASE_S is set by default
LEASE_S: Final = 15.0
LATE: Final = timedelta(minutes=1)  # a moment that no process has looked at for as long was missed
LOOK_S: Final = 30.0  # after which the last turn is looked at; four times as long after each time but the last
AGAIN_S: Final = 5.0  # while one that is to wait for the last turn waits
KEPT: Final = timedelta(days=30)  # of those that have ended
GAPS_MEASURED: Final = 50
LONGEST: Final = timedelta(days=36_525)
LONGEST_SHIFT: Final = timedelta(hours=3)  # by which the clocks of a zone are set on or back
# The calendar repeats itself after 400 years. Rules are walked in the last cycle that there is: one that never comes
# true would be walked to the year 9999.
CYCLES: Final = 7600
_RRULE: Final = re.compile(r"([A-Z]+=[A-Z0-9,+-]+)(;[A-Z]+=[A-Z0-9,+-]+)*")
_RARELY: Final = {"FREQ", "INTERVAL", "COUNT", "WKST", "BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYMONTH"}
_PARTS: Final[Mapping[str, set[str]]] = {
    # An hour that the others would have to meet may never come.
    "HOURLY": {"FREQ", "INTERVAL", "COUNT", "BYDAY", "BYMINUTE"},
    **dict.fromkeys(("DAILY", "WEEKLY", "MONTHLY", "YEARLY"), _RARELY | {"BYHOUR", "BYMINUTE", "BYSETPOS"}),
}
_MOST_HOURS, _MOST = 23, 1000
ANEW: Final = timedelta(microseconds=1)  # later than before, so that a job which runs is refused its move
_GOES_ON: Final = schedules.c.status != "ended"
_LOOKED_AT_ANEW: Final = schedules.c.look_at + ANEW
_CLAIM: Final = claiming(schedules, "look_at", read=(*schedules.c, func.now().label("now")))
_NO_RULE: Final = (CronSimError, ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule is due: at one moment, or as cron or RFC 5545's RRULE has it, counted from `starts_at` and not
    after `until`. A local time that daylight saving leaves out or repeats is meant as RFC 5545 has it for both: with
    the offset before the gap, and the first of the two.
    """

    at: datetime | None
    cron: str | None
    rrule: str | None
    time_zone: str
    until: datetime | None
    starts_at: datetime

    def after(self, moment: datetime) -> datetime | None:
        return next(self._after(moment), None)

    def check(self, now: datetime, *, min_interval_s: float) -> datetime:
        """Returns when it is due first. Raises InvalidRequest if it is no rule, is never due, or is due too often."""
        try:
            if self.rrule is not None:
                _check_parts(self.rrule)
            if self.cron is not None and len(self.cron.split()) != len(("minute", "hour", "day", "month", "weekday")):
                raise ValueError("cron has five fields")
            if any(each is not None and each - now > LONGEST for each in (self.at, self.until)):
                raise ValueError("no time is more than a hundred years ahead")
            first = list(islice(self._after(now), GAPS_MEASURED))
        except _NO_RULE as error:
            detail = f"This is no rule that can be followed: {str(error)[:200] or 'see docs/unattended.md'}."
            raise InvalidRequest(detail) from error
        if not first:
            raise InvalidRequest("The schedule would never be due: give a time that is to come.")
        if any((later - earlier).total_seconds() < min_interval_s for earlier, later in pairwise(first)):
            raise InvalidRequest(f"It may be due every {min_interval_s:g} s at most (SCHEDULE_MIN_INTERVAL_S).")
        return first[0]

    def _after(self, moment: datetime) -> Iterator[datetime]:
        for each in _in_order(self._moments(moment)):
            if self.until is not None and each > self.until:
                return
            if each > moment:
                moment = each  # two local times may be one moment
                yield each

    def _moments(self, moment: datetime) -> Iterator[datetime]:
        if self.at is not None:
            return iter([self.at])
        zone = ZoneInfo(self.time_zone)
        start, since = (at.astimezone(zone).replace(tzinfo=None) for at in (self.starts_at, moment - LONGEST_SHIFT))
        local: Iterator[datetime]
        if self.cron is not None:
            local = CronSim(self.cron, since)
        else:
            first = start.replace(year=start.year + CYCLES, second=0, microsecond=0)
            rule = rrulestr(rrule := self.rrule or "", dtstart=first)
            if "COUNT" in rrule and next(iter(rule), None) == first:  # the minute in which it was given is none to come
                rule = rrulestr(re.sub(r"(?<=COUNT=)\d+", lambda each: f"{int(each[0]) + 1}", rrule), dtstart=first)
            found = rule.xafter(since.replace(year=since.year + CYCLES), inc=True)
            local = (each.replace(year=each.year - CYCLES) for each in found)
        return (each.replace(tzinfo=zone).astimezone(UTC) for each in local)


def _in_order(moments: Iterator[datetime]) -> Iterator[datetime]:
    """A local time that is left out may be a moment after those of local times behind it."""
    found: list[datetime] = []
    for each in moments:
        heappush(found, each)
        while each - found[0] >= LONGEST_SHIFT:
            yield heappop(found)
    yield from sorted(found)


def _check_parts(rrule: str) -> None:
    """Raises ValueError for a rule that could be walked for long without coming true."""
    if _RRULE.fullmatch(rrule) is None:
        raise ValueError("an rrule is as FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0")
    named = [part.partition("=")[::2] for part in rrule.split(";")]
    parts = dict(named)
    taken = _PARTS.get(parts.get("FREQ", ""), set())
    if not taken:
        raise ValueError(f"FREQ is one of {', '.join(_PARTS)}")
    if wrong := sorted(parts.keys() - taken):
        raise ValueError(f"with FREQ={parts['FREQ']} it takes no {', '.join(wrong)}")
    most = _MOST_HOURS if parts["FREQ"] == "HOURLY" else _MOST
    if len(parts) < len(named) or not 1 <= int(parts.get("INTERVAL", 1)) <= most:
        raise ValueError(f"each part stands once, and INTERVAL is from 1 to {most}")


@dataclass(frozen=True, slots=True)
class LastRun:
    """The turn that a schedule started last."""

    at: Annotated[datetime, doc("The time at which the turn was due.")]
    turn_id: Annotated[str, doc("The id of the turn.")]
    session_id: Annotated[str | None, doc("The id of the turn's session; null if that was deleted.")]
    status: Annotated[TurnStatus | None, doc("The status of the turn; null if it was deleted.")]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message that starts a turn at set times."""

    id: Annotated[str, doc("The id of the schedule, which begins with `sch_`.")]
    session_id: Annotated[str | None, doc("The id of the session of its turns; null: a new one each time.")]
    new_session: Annotated[bool, doc("Whether each turn starts a new session.")]
    agent: Annotated[str, doc("The id of the agent that answers in new sessions.")]
    message: Annotated[str, doc("The message of its turns.")]
    at: Annotated[datetime | None, doc("The only time it is due; null with `cron` or `rrule`.")]
    cron: Annotated[str | None, doc("When it is due, as five fields of cron; null otherwise.")]
    rrule: Annotated[str | None, doc("When it is due, as an RRULE of RFC 5545 that counts from when given.")]
    time_zone: Annotated[str, doc("The IANA time zone of `cron` and `rrule`.")]
    until: Annotated[datetime | None, doc("It is never due after this time; null: no end.")]
    missed: Annotated[Missed, doc("If nothing ran when it was due: start one turn late (`once`) or none.")]
    overlap: Annotated[Overlap, doc("If its last turn is open: start none, wait, or run beside it.")]
    retries: Annotated[int, doc("The number of times that a failed turn is run again.")]
    status: Annotated[Literal["active", "paused", "ended"], doc("`ended` ones are deleted after 30 days.")]
    made_by: Annotated[Literal["user", "promise"], doc("Who made it: the user, or the assistant that promised it.")]
    next_at: Annotated[datetime | None, doc("When it is due next; null if it is not due again.")]
    last: Annotated[LastRun | None, doc("The turn that the schedule started last; null if none.")]
    created_at: Annotated[datetime, doc("When the schedule was created.")]


async def check_rule(rule: Rule, settings: TurnSettings, *, now: datetime) -> datetime:
    """Returns when it is due first, in up to a second: not within a transaction. Raises what `Rule.check` raises."""
    return await asyncio.to_thread(rule.check, now, min_interval_s=settings.schedule_min_interval_s)


async def make_schedule(
    database: Database, owner: str, columns: Mapping[str, Any], rule: Rule, settings: TurnSettings, *, now: datetime
) -> Schedule:
    """Stores a schedule of these columns, or returns the one of their id that was made before. Raises NotFound for the
    session, AppError `too_many_unattended`, `idempotency_key_reused`, and what `Rule.check` raises.
    """
    async with database.read_only() as connection:
        if (made := await made_before(connection, schedules, owner, columns.get("id"), locks=False)) is not None:
            return await get_schedule(connection, owner, made.id)
    first = await check_rule(rule, settings, now=now)
    schedule_id = columns.get("id") or new_id("sch", now)
    due = {"id": schedule_id, "status": "active", "next_at": first, "look_at": first, "created_at": func.now()}
    async with database.transaction() as connection:
        if await made_before(connection, schedules, owner, columns.get("id")) is None:
            if columns["session_id"] is not None:
                await check_session(connection, owner, columns["session_id"])
            is_old = func.coalesce(schedules.c.last_at, schedules.c.created_at) < func.now() - KEPT
            await connection.execute(delete(schedules).where(schedules.c.owner == owner, ~_GOES_ON, is_old))
            await check_another(connection, owner, limit=settings.schedules_per_user)
            await connection.execute(insert(schedules).values({**columns, **due, "owner": owner}))
        return await get_schedule(connection, owner, schedule_id)


async def check_another(connection: Connection, owner: str, *, limit: int) -> None:
    """Raises AppError `too_many_unattended` if `limit` schedules of the owner's have not ended."""
    await check_room(connection, schedules, owner, _GOES_ON, limit=limit)


async def check_room(
    connection: Connection, table: Table, owner: str, *counted: ColumnElement[bool], limit: int
) -> None:
    """Lets one row be stored that makes at most `limit` of the owner's. Raises AppError `too_many_unattended`."""
    await connection.execute(OWNER_LOCK, {"of_owner": f"{table.name} of {owner}"})
    count = select(func.count()).select_from(table).where(table.c.owner == owner, *counted)
    if (await connection.scalar(count) or 0) >= limit:
        setting = f"{table.name.upper()}_PER_USER"
        raise app_error("too_many_unattended", at_most=limit, kind=table.name, setting=setting)


async def get_schedule(connection: Connection, owner: str, schedule_id: str) -> Schedule:
    """Raises NotFound."""
    found = await connection.execute(_owned(owner).where(schedules.c.id == schedule_id))
    return _schedule(existing("schedule", found.one_or_none()))


async def list_schedules(
    connection: Connection, owner: str, *, before: Position | str | None, limit: int
) -> list[tuple[Schedule, Position]]:
    """Newest first, each with its position."""
    statement = _owned(owner).where(older_than(schedules, before)).order_by(*newest_first(schedules))
    return [(_schedule(row), (row.seq, row.id)) for row in await connection.execute(statement.limit(limit))]


async def find_schedule(connection: Connection, owner: str, schedule_id: str, *, locks: bool = False) -> Row[Any]:
    """Returns the row. If it `locks`, nothing else changes that until the transaction ends. Raises NotFound."""
    mine = select(schedules).where(schedules.c.id == schedule_id, schedules.c.owner == owner)
    found = await connection.execute(mine.with_for_update() if locks else mine)
    return existing("schedule", found.one_or_none())


async def change_schedule(connection: Connection, schedule_id: str, changes: Mapping[str, Any]) -> None:
    """Sets columns of a schedule that is locked. A process that was just about to begin it does not."""
    values = {"look_at": _LOOKED_AT_ANEW, **changes}
    await connection.execute(update(schedules).where(schedules.c.id == schedule_id).values(values))


async def delete_schedule(connection: Connection, owner: str, schedule_id: str) -> None:
    """A turn that it has begun goes on. Raises NotFound."""
    mine = (schedules.c.id == schedule_id, schedules.c.owner == owner)
    existing("schedule", await connection.scalar(delete(schedules).where(*mine).returning(schedules.c.id)))


def _owned(owner: str) -> Select[Any]:
    last = (turns.c.session_id.label("last_session_id"), turns.c.status.label("last_status"))
    both = schedules.outerjoin(turns, turns.c.id == schedules.c.last_turn_id)
    return select(schedules, *last).select_from(both).where(schedules.c.owner == owner)


def _schedule(row: Any) -> Schedule:
    last = row.last_turn_id and LastRun(row.last_at, row.last_turn_id, row.last_session_id, row.last_status)
    shown = {name: getattr(row, name) for name in Schedule.__slots__ if name in schedules.c}
    return Schedule(**shown, new_session=row.session_id is None, last=last)


async def begun_before(connection: Connection, row: Row[Any], once: Once) -> Admitted | None:
    """Returns the turn that a schedule or trigger has begun under this key. Raises `idempotency_key_reused`."""
    session_id = row.session_id
    if session_id is None and (named := await find_named(connection, row.owner, once.key)) is not None:
        session_id = named.id
    return await accepted_before(connection, row.owner, session_id, once) if session_id else None


async def begin_unattended(
    connection: Connection, row: Any, once: Once, turn_id: str, note: str, *, time_zone: str, now: datetime
) -> Admitted:
    """Stores the message of a locked schedule or trigger as a turn, in which a yes is none; or returns the turn of its
    key, by which a new session is found too. Raises NotFound, `too_many_queued`, `idempotency_key_reused`.
    """
    if (known := await begun_before(connection, row, once)) is not None:
        return known
    new: dict[str, Any] = {"title": None, "metadata": {}, "agent": row.agent, "time_zone": time_zone, "now": now}
    made = await create_session(connection, row.owner, **new) if row.session_id is None else None
    session_id = row.session_id if made is None else made.id
    if made is not None:
        await name_session(connection, row.owner, once.key, session_id)
    await lock_session(connection, row.owner, session_id)
    options: dict[str, Any] = {"approves": False, "unattended": True, "note": note}
    origin = Origin(groups=tuple(row.groups))
    request = ChatRequest(row.message, once=once, turn_id=turn_id, origin=origin, **options)
    turn = await begin_turn(connection, row.owner, session_id, request, now=now, room=MAX_QUEUED + 1)
    if turn is None:
        raise app_error("too_many_queued", limit=MAX_QUEUED)
    return Admitted(turn, made=made)


async def begin_now(
    owner: str, schedule_id: str, key: str | None, connection: Connection, turn_id: str, *, now: datetime
) -> Admitted:
    """Sends the message of a schedule now, once under a key; its moments stay. Raises as `begin_unattended` does."""
    row = await find_schedule(connection, owner, schedule_id, locks=True)
    begun = await _begin(connection, row, f"run {key or turn_id}", turn_id, now=now)
    if begun.fresh:
        last = {"last_at": func.now(), "last_turn_id": turn_id, "tries_left": row.retries}
        await change_schedule(connection, schedule_id, {"look_at": func.least(_LOOKED_AT_ANEW, due_in(LOOK_S)), **last})
    return begun


async def _begin(connection: Connection, row: Any, moment: str, turn_id: str, *, now: datetime) -> Admitted:
    """Sends the message of a schedule, by its row, once for a `moment`."""
    note = TEXTS["unattended"]
    if row.made_by == "promise":
        note += f" {TEXTS['promised'].format(promise=row.id)}"
    zone = "" if row.time_zone == "UTC" else row.time_zone  # UTC also stands for an unknown zone
    of = connection, row, Once(f"{row.id} {moment}", ""), turn_id, note
    return await begin_unattended(*of, time_zone=zone, now=now)


@dataclass(frozen=True, slots=True)
class Schedules:
    """A kind of job: a schedule that is to be looked at, by its row, whose `look_at` is the fence."""

    database: Database
    turns: TurnService
    events: EventLog
    clock: Clock

    name = "schedules that are due"
    slots = 8

    async def claim(self) -> Row[Any] | None:
        return await self.database.write(claim_row, _CLAIM, lease_s=LEASE_S)

    async def run(self, job: Row[Any]) -> bool:
        """Settles the last turn and begins the one that is due. Returns whether it may be due again."""
        last = None
        if job.last_turn_id is not None:
            found = select(*turns.c["id", "session_id", "status", "error"]).where(turns.c.id == job.last_turn_id)
            last = (await self.database.read(Connection.execute, found)).one_or_none()
        is_due = job.next_at is not None and job.next_at <= job.now
        is_open = last is not None and last.status in ("queued", "running")
        if last is not None and last.status == "failed" and job.tries_left is not None:
            may_be_run_again = job.tries_left and last.error["retryable"] and not is_due
            if may_be_run_again and await self._try_again(job, last):
                return False
            await self._tell(job, last)
        if is_due and not (is_open and job.overlap == "queue" and job.session_id is None):
            return await self._say(job, leaves_out=is_open and job.overlap == "skip")
        if is_due or is_open:
            await self._move(job, look_at=due_in(AGAIN_S) if is_due else _sooner(job, LOOK_S, job.next_at))
        else:
            await self._move(job, look_at=job.next_at, tries_left=None)
        return False

    async def give_back(self, job: Row[Any], wait_s: float) -> None:
        await self._move(job, look_at=due_in(wait_s))

    def ids(self, job: Row[Any]) -> dict[str, str]:
        return {"schedule_id": job.id}

    async def _say(self, job: Row[Any], *, leaves_out: bool) -> bool:
        """Begins the turn of the moment that is due, unless it was missed or is left out."""
        due, following = await asyncio.to_thread(_moments, job)
        on = {"next_at": following, "status": "active" if following else "ended"}
        if due is None or leaves_out:
            why = "overlap" if leaves_out else "missed"
            log.info("schedule_left_out", due_at=str(job.next_at), why=why, **self.ids(job))
            return await self._move(job, look_at=_sooner(job, LOOK_S, following) if leaves_out else following, **on)
        admitted = await self.turns.begin(job.owner, job.message, partial(self._begin, job, due, on))
        if admitted is None:
            log.info("schedule_waited_for_another", **self.ids(job))
        else:
            log.info("schedule_begun", due_at=str(due), turn_id=admitted.turn.turn_id, **self.ids(job))
        return admitted is not None

    async def _begin(
        self, job: Row[Any], due: datetime, on: Mapping[str, Any], connection: Connection, turn_id: str
    ) -> Admitted | None:
        """Returns None if another process has moved the schedule on, or its user has changed it."""
        last = {"last_at": due, "last_turn_id": turn_id, "tries_left": job.retries}
        if not await _moved(connection, job, look_at=_sooner(job, LOOK_S, on["next_at"]), **on, **last):
            return None
        return await _begin(connection, job, due.isoformat(), turn_id, now=self.clock())

    async def _try_again(self, job: Row[Any], last: Row[Any]) -> bool:
        """Returns False if the turn is no longer one that can be run again. A try that a cap refuses costs none."""
        try:
            admitted = await self.turns.begin(job.owner, "", partial(self._begin_again, job, last), again=last.id)
        except AppError as error:
            if error.code != "cannot_retry":
                raise
            return False
        if admitted is not None:
            log.info("schedule_tried_again", turn_id=last.id, tries=job.retries - job.tries_left + 1, **self.ids(job))
        return True

    async def _begin_again(
        self, job: Row[Any], last: Row[Any], connection: Connection, turn_id: str
    ) -> Admitted | None:
        wait_s = LOOK_S * 4.0 ** (job.retries - job.tries_left + 1 if job.tries_left > 1 else 0)
        if not await _moved(connection, job, look_at=_sooner(job, wait_s, job.next_at), tries_left=job.tries_left - 1):
            return None
        of = {"owner": job.owner, "session_id": last.session_id, "now": self.clock()}
        return await retry(connection, turn_id, request=ChatRequest("", origin=Origin(groups=tuple(job.groups))), **of)

    async def _tell(self, job: Row[Any], last: Row[Any]) -> None:
        async with self.database.transaction() as connection:
            if not await _moved(connection, job, tries_left=None):
                return
            await outbox.schedule_failed(connection, job.id, last)
        turn = TurnKey(last.session_id, last.id, 0)
        self.events.tell(job.owner, user_feed.schedule_failed(job.id, turn, last.error["code"]))
        log.warning("schedule_failed", turn_id=last.id, code=last.error["code"], **self.ids(job))

    async def _move(self, job: Row[Any], **values: Any) -> bool:
        return await self.database.write(_moved, job, **values)


@dataclass(frozen=True, slots=True)
class Promised:
    """The assistant's promises: schedules of the session in which it made them. `says` reads the user's messages."""

    database: Database
    settings: TurnSettings
    says: Callable[[str, str, str, str], Awaitable[bool]]

    async def make(
        self, context: ToolContext, what: str, *, at: datetime, rrule: str | None, until: datetime | None
    ) -> tuple[str, datetime] | None:
        if not await self.says(context.owner, context.session_id, what, context.time_zone):
            return None
        rule = Rule(None if rrule else at, None, rrule, context.time_zone, until, at)
        columns = asdict(rule) | {"agent": DEFAULT_AGENT, "missed": "once", "overlap": "skip", "retries": 2}
        columns |= {"id": f"sch_{context.tool_call_id.removeprefix('call_')}", "message": f"⏰ {what}"}
        columns |= {"session_id": context.session_id, "made_by": "promise"}
        columns["groups"] = list(await self.database.read(groups_of_last, context.session_id))
        made = await make_schedule(self.database, context.owner, columns, rule, self.settings, now=context.now)
        return made.id, made.next_at or at

    async def end(self, context: ToolContext, promise_id: str) -> bool:
        is_it = (schedules.c.id == promise_id, schedules.c.owner == context.owner, schedules.c.made_by == "promise")
        again = case((schedules.c.tries_left.is_not(None), _LOOKED_AT_ANEW))  # its last turn may run again
        over = update(schedules).where(*is_it).values(status="ended", next_at=None, look_at=again)
        return bool((await self.database.write(Connection.execute, over)).rowcount)


async def _moved(connection: Connection, /, job: Row[Any], **values: Any) -> bool:
    """Changes a claimed schedule. Returns False if another process has claimed it since, or its user has changed it."""
    is_ours = (schedules.c.id == job.id, schedules.c.look_at == job.look_at)
    return bool((await connection.execute(update(schedules).where(*is_ours).values(**values))).rowcount)


def _moments(job: Row[Any]) -> tuple[datetime | None, datetime | None]:
    """Returns the moment for which a schedule is sent now, None if that was missed, and the next one to come."""
    due, rule = job.next_at, Rule(**{name: getattr(job, name) for name in Rule.__slots__})
    has_waited = job.overlap == "queue" and job.tries_left is not None  # for the last turn
    if job.missed == "skip" and job.now - due > LATE and not has_waited:
        due = rule.after(job.now - LATE)
    return (due if due is not None and due <= job.now else None), rule.after(job.now)


def _sooner(job: Row[Any], wait_s: float, next_at: datetime | None) -> datetime:
    """Returns when a schedule is looked at again: in `wait_s` seconds, or when it is due before that."""
    look_at: datetime = job.now + timedelta(seconds=wait_s)
    return look_at if next_at is None else min(look_at, next_at)
