"""Routes to schedules and triggers. A trigger's address needs no key, because its events are signed."""

from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from fastapi import Request
from pydantic import Field, model_validator
from structlog.contextvars import bind_contextvars

from segue.api.chat import AcceptedTurn, BegunTurn, Client, accepted, check_length
from segue.api.deps import Caller, Parts, ScheduleId, Services, TriggerId, router_of
from segue.api.problems import problems
from segue.api.schemas import Body, MessageText, Moment, Name, Page, Paged, TimeZone, row_position
from segue.db.engine import Connection
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import InvalidRequest, NotFound, app_error
from segue.domain.field_types import doc
from segue.memory.session_store import get_session
from segue.turns import schedules
from segue.turns.chat_request import Origin
from segue.turns.schedules import Missed, Overlap, Rule, Schedule
from segue.turns.triggers import MAX_EVENT_BYTES, Trigger, TriggerWithSecret

router = router_of("schedules", "/schedules")
triggers_router = router_of("triggers", "/triggers")
hooks_router = router_of("triggers", "/hooks")

KINDS: Final = ("at", "cron", "rrule")
REFUSED: Final = ("session_not_found", "unknown_agent", "too_many_unattended")
OF_EVENTS: Final = ("signature_invalid", "rate_limited", "too_many_queued", "idempotency_key_reused", "body_too_large")
_POSITION, _TRIGGER_POSITION = row_position("sch"), row_position("trg")

ScheduledMessage = Annotated[MessageText, doc("The message to send, of up to `MAX_MESSAGE_CHARS`.")]


class InSession(Body):
    """Where a message is sent: to a session, or to a new one each time."""

    session_id: Annotated[Name | None, doc("The id of one of the caller's sessions.")] = None
    new_session: Annotated[bool, doc("True to begin a new session each time, in place of `session_id`.")] = False
    agent: Annotated[Name, doc("The id of the agent of new sessions.")] = DEFAULT_AGENT

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.session_id is None) != self.new_session:
            raise ValueError('give `session_id`, or `"new_session": true`')
        return self


class When(Body):
    """When a schedule is due, by one of `at`, `cron` and `rrule`."""

    at: Annotated[Moment | None, doc("The moment at which it is due, once.")] = None
    cron: Annotated[Annotated[str, Field(max_length=100)] | None, doc("Cron's five fields, as `0 9 * * MON`.")] = None
    rrule: Annotated[str | None, Field(max_length=500), doc("An RRULE of RFC 5545, as `FREQ=WEEKLY;BYDAY=MO`.")] = None
    time_zone: Annotated[TimeZone | None, doc("An IANA time zone; null for that of the session or TIME_ZONE.")] = None
    until: Annotated[Moment | None, doc("The moment after which it is due no more; null for no end.")] = None

    needs_one: ClassVar = False

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    @model_validator(mode="after")
    def _is_due(self) -> Self:
        if len(self.kinds) > 1 or (self.needs_one and not self.kinds):
            raise ValueError("give one of `at`, `cron` and `rrule`")
        return self


class NewSchedule(InSession, When):
    """A message to send at set times, by one of `at`, `cron` and `rrule`."""

    message: ScheduledMessage
    missed: Annotated[Missed, doc("Whether what was due while nothing ran is run once, late, or skipped.")] = "once"
    overlap: Annotated[Overlap, doc("What to do while its last turn is open. `parallel` needs `new_session`.")] = "skip"
    retries: Annotated[int, Field(ge=0, le=5), doc("How many times a turn that failed for now is run again.")] = 2
    needs_one: ClassVar = True


class ScheduleChanges(When):
    """Changes to a schedule. Fields that are left out keep their values."""

    message: Annotated[ScheduledMessage | None, doc("The new message.")] = None
    missed: Annotated[Missed | None, doc("Whether what was due while nothing ran is run once or skipped.")] = None
    overlap: Annotated[Overlap | None, doc("What to do while its last turn is open.")] = None
    retries: Annotated[Annotated[int, Field(ge=0, le=5)] | None, doc("How many times a turn is run again.")] = None
    status: Annotated[Literal["active", "paused"] | None, doc("Times due while it is `paused` are skipped.")] = None


@router.post("", status_code=201, responses=problems(*REFUSED, "schedule_not_found"))
async def create_schedule(body: NewSchedule, client: Client) -> Schedule:
    """Creates a schedule. Each due time becomes one turn, while the user is away: a call that needs a yes waits."""
    services, caller, origin = client.services, client.caller, client.origin
    check_place(services, caller, body, body.message, origin)
    _check_overlap(body.overlap, new_session=body.new_session)
    now, zone = services.clock(), await services.read(_zone_of, services, caller, body, body.session_id)
    rule = Rule(body.at, body.cron, body.rrule, zone, body.until, now)
    given = body.model_dump(exclude={"new_session"}) | {"time_zone": zone, "starts_at": now, "made_by": "user"}
    given |= {"groups": list(origin.groups), "id": client.id_of("sch", body)}
    return await schedules.make_schedule(services.database, caller, given, rule, services.settings, now=now)


@router.get("")
async def list_schedules(services: Parts, caller: Caller, paging: Paged) -> Page[Schedule]:
    """Lists the caller's schedules, of all sessions. Newest first."""
    return paging.page_of_placed(await services.read(schedules.list_schedules, caller, **paging.behind(_POSITION)))


@router.get("/{schedule_id}")
async def get_schedule(schedule_id: ScheduleId, services: Parts, caller: Caller) -> Schedule:
    """Shows one of the caller's schedules."""
    return await services.read(schedules.get_schedule, caller, schedule_id)


@router.patch("/{schedule_id}", responses=problems("too_many_unattended"))
async def change_schedule(schedule_id: ScheduleId, body: ScheduleChanges, services: Parts, caller: Caller) -> Schedule:
    """Changes a schedule, pauses or resumes it."""
    changes = body.model_dump(exclude_unset=True, exclude_none=True)
    changes |= {"until": body.until} if "until" in body.model_fields_set else {}
    if body.kinds:
        changes |= {kind: getattr(body, kind) for kind in KINDS} | {"starts_at": services.clock()}
    check_length(services, body.message or "")
    row = await services.read(schedules.find_schedule, caller, schedule_id)
    if "time_zone" in body.model_fields_set:
        changes["time_zone"] = await services.read(_zone_of, services, caller, body, row.session_id)
    while True:
        is_counted = "retries" in changes and row.tries_left is not None
        tries = {"tries_left": max(0, row.tries_left + changes["retries"] - row.retries)} if is_counted else {}
        columns = changes | tries | await _moved(services, row, changes)
        async with services.database.transaction() as connection:
            seen, row = row, await schedules.find_schedule(connection, caller, schedule_id, locks=True)
            if row != seen:
                continue
            _check_overlap(changes.get("overlap", row.overlap), new_session=row.session_id is None)
            if row.status == "ended" and "status" in columns:
                await schedules.check_another(connection, caller, limit=services.settings.schedules_per_user)
            if columns:
                await schedules.change_schedule(connection, schedule_id, columns)
            return await schedules.get_schedule(connection, caller, schedule_id)


@router.delete("/{schedule_id}", status_code=204)
async def delete_schedule(schedule_id: ScheduleId, services: Parts, caller: Caller) -> None:
    """Deletes a schedule. A turn that it has begun goes on."""
    await services.database.write(schedules.delete_schedule, caller, schedule_id)


@router.post("/{schedule_id}/run", status_code=202, responses=problems("too_many_queued"))
async def run_schedule(schedule_id: ScheduleId, client: Client) -> AcceptedTurn:
    """Runs a schedule now. It does not change when the schedule is due next."""
    services, of = client.services, (client.caller, schedule_id, client.idempotency_key)
    begin = partial(schedules.begin_now, *of, now=services.clock())
    return accepted(client.http, await services.turns.begin(client.caller, "", begin))


def check_place(services: Services, caller: str, place: InSession, message: str, origin: Origin) -> None:
    """Raises NotFound for a user of none of SCHEDULE_GROUPS, AppError `unknown_agent`, `invalid_request`."""
    if (may := services.settings.schedule_groups) and {*may}.isdisjoint(origin.groups):
        raise NotFound("trigger" if isinstance(place, NewTrigger) else "schedule")
    services.agents.check(place.agent, caller, origin.groups, status=422)
    check_length(services, message)


def _check_overlap(overlap: str, *, new_session: bool) -> None:
    if overlap == "parallel" and not new_session:
        raise InvalidRequest("A session runs one turn at a time: `parallel` goes with `new_session` only.")


async def _zone_of(connection: Connection, services: Services, caller: str, when: When, of: str | None) -> str:
    """`of` is the session that has one where none is given."""
    if when.time_zone is None and of is not None:
        return (await get_session(connection, caller, of)).time_zone
    return when.time_zone or services.settings.time_zone


async def _moved(services: Services, row: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns of when it is due, as far as the changes change them. Raises what `check_rule` raises."""
    of_rule = changes.keys() & {*KINDS, "time_zone", "until"}
    status = changes.get("status", "active" if row.status == "ended" and of_rule else row.status)
    is_moved = status == "active" and (of_rule or row.status != status)
    if of_rule or is_moved:
        known = {name: changes.get(name, getattr(row, name)) for name in Rule.__slots__}
        first = await schedules.check_rule(Rule(**known), services.settings, now=services.clock())
    if not is_moved:
        return {} if status == row.status else {"status": status, **dict.fromkeys(("next_at", "look_at", "tries_left"))}
    # When its last turn is looked at, which may have to be run again.
    again = row.look_at if row.tries_left is not None else None
    return {"status": status, "next_at": first, "look_at": min(first, again + schedules.ANEW) if again else first}


class NewTrigger(InSession):
    """A trigger to create: a message to send for each event, with the event's body as data."""

    message: ScheduledMessage


class TriggerChanges(Body):
    """Changes to a trigger. Fields that are left out keep their values."""

    message: Annotated[ScheduledMessage | None, doc("The new message.")] = None
    status: Annotated[Literal["active", "paused"] | None, doc("A `paused` trigger refuses events.")] = None


@triggers_router.post("", status_code=201, responses=problems(*REFUSED, "trigger_not_found", "trigger_key_missing"))
async def create_trigger(body: NewTrigger, client: Client) -> TriggerWithSecret:
    """Creates a trigger: an address for events, and the secret that signs them. Only this request shows the secret."""
    check_place(client.services, client.caller, body, body.message, client.origin)
    given = {"groups": list(client.origin.groups), "id": client.id_of("trg", body)}
    return await client.services.triggers.make(client.caller, body.model_dump(exclude={"new_session"}) | given)


@triggers_router.get("")
async def list_triggers(services: Parts, caller: Caller, paging: Paged) -> Page[Trigger]:
    """Lists the caller's triggers. Newest first."""
    return paging.page_of_placed(await services.triggers.listed(caller, **paging.behind(_TRIGGER_POSITION)))


@triggers_router.patch("/{trigger_id}")
async def change_trigger(trigger_id: TriggerId, body: TriggerChanges, services: Parts, caller: Caller) -> Trigger:
    """Changes a trigger, pauses or resumes it."""
    check_length(services, body.message or "")
    return await services.triggers.change(caller, trigger_id, body.model_dump(exclude_none=True))


@triggers_router.delete("/{trigger_id}", status_code=204)
async def delete_trigger(trigger_id: TriggerId, services: Parts, caller: Caller) -> None:
    """Deletes a trigger. Turns that it has begun go on."""
    await services.triggers.delete(caller, trigger_id)


@triggers_router.post("/{trigger_id}/roll", responses=problems("trigger_key_missing"))
async def roll_trigger(trigger_id: TriggerId, services: Parts, caller: Caller) -> TriggerWithSecret:
    """Gives a trigger a new secret. The old secret works for one more day."""
    return await services.triggers.roll(caller, trigger_id)


@hooks_router.post("/{trigger_id}", status_code=202, responses=problems(*OF_EVENTS))
async def receive_event(trigger_id: TriggerId, services: Parts, http: Request) -> BegunTurn:
    """Receives an event of at most 32 kB, signed as standardwebhooks.com says. Sent again, it is the same turn."""
    body = await http.body()
    if len(body) > MAX_EVENT_BYTES:
        raise app_error("event_too_large", at_most=MAX_EVENT_BYTES)
    begun = await services.triggers.receive(trigger_id, http.headers, body)
    bind_contextvars(turn_id=begun.turn.turn_id)
    return BegunTurn(begun.turn.turn_id)
