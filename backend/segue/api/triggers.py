"""Routes to triggers, and the address that their events are sent to. An event needs no key: it is signed."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Request
from structlog.contextvars import bind_contextvars

from segue.api.deps import Caller, OriginDep, ServicesDep, TriggerId, router_of
from segue.api.problems import problems
from segue.api.schedules import InSession, ScheduledMessage, check_length, check_place
from segue.api.schemas import Body, Page, PagingDep, id_position
from segue.domain.errors import AppError
from segue.domain.field_types import doc
from segue.turns.triggers import MAX_EVENT_BYTES, Trigger, TriggerWithSecret

router = router_of("triggers", "/triggers")
hooks_router = router_of("triggers", "/hooks")

_POSITION = id_position("trg")


class NewTrigger(InSession):
    """A message to say for each event. What the event brings goes with it, as data."""

    message: ScheduledMessage


class TriggerChanges(Body):
    """What is not given stays as it is."""

    message: Annotated[ScheduledMessage | None, doc("What is said.")] = None
    status: Annotated[Literal["active", "paused"] | None, doc("A paused one refuses its events.")] = None


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """The turn that an event has begun."""

    turn_id: Annotated[str, doc("Begins with `turn_`.")]


@router.post(
    "",
    status_code=201,
    responses=problems("session_not_found", "unknown_agent", "too_many_unattended", "trigger_key_missing"),
)
async def create_trigger(
    body: NewTrigger, services: ServicesDep, caller: Caller, origin: OriginDep
) -> TriggerWithSecret:
    """Makes a trigger: an address, and the secret that its events have to be signed with, shown this once."""
    check_place(services, caller, body, body.message, origin)
    given = body.model_dump(exclude={"new_session"}) | {"groups": list(origin.groups)}
    return await services.triggers.make(caller, given)


@router.get("")
async def list_triggers(services: ServicesDep, caller: Caller, paging: PagingDep) -> Page[Trigger]:
    """Lists the caller's triggers. Newest first."""
    found = await services.triggers.listed(caller, before=paging.after(_POSITION), limit=paging.limit + 1)
    return paging.page(found, lambda each: each.id)


@router.patch("/{trigger_id}")
async def change_trigger(trigger_id: TriggerId, body: TriggerChanges, services: ServicesDep, caller: Caller) -> Trigger:
    """Changes a trigger, pauses it or goes on with it."""
    check_length(services, body.message or "")
    return await services.triggers.change(caller, trigger_id, body.model_dump(exclude_none=True))


@router.delete("/{trigger_id}", status_code=204)
async def delete_trigger(trigger_id: TriggerId, services: ServicesDep, caller: Caller) -> None:
    """Deletes a trigger. Turns that it has begun go on."""
    await services.triggers.delete(caller, trigger_id)


@router.post("/{trigger_id}/roll", responses=problems("trigger_key_missing"))
async def roll_trigger(trigger_id: TriggerId, services: ServicesDep, caller: Caller) -> TriggerWithSecret:
    """Gives it another secret. The one before holds for a day."""
    return await services.triggers.roll(caller, trigger_id)


@hooks_router.post(
    "/{trigger_id}",
    status_code=202,
    responses=problems(
        "signature_invalid", "rate_limited", "too_many_queued", "idempotency_key_reused", "body_too_large"
    ),
)
async def receive_event(trigger_id: TriggerId, services: ServicesDep, http: Request) -> BegunTurn:
    """Takes an event, of 32 kB at most, signed as standardwebhooks.com says. Sent again, it is the same turn."""
    body = await http.body()
    if len(body) > MAX_EVENT_BYTES:
        detail = f"An event has {MAX_EVENT_BYTES} bytes at most."
        raise AppError("body_too_large", status=413, title="The event is too large", detail=detail)
    begun = await services.triggers.receive(trigger_id, http.headers, body)
    bind_contextvars(turn_id=begun.turn.turn_id)
    return BegunTurn(begun.turn.turn_id)
