"""Routes to plans, to decide on the steps that wait for the user, and to mandates, which are yeses that last."""

from typing import Annotated, Self

from fastapi import Path, Query, Request, Response
from pydantic import model_validator

from segue.api import schemas
from segue.api.chat import WAIT, AcceptedTurn, Client, accepted, fingerprint_of
from segue.api.deps import Caller, IdentityDep, MandateId, OriginDep, Parts, PlanId, SessionId, router_of
from segue.api.event_streams import OR_EVENTS
from segue.api.problems import OF_DECISIONS, problems
from segue.api.schemas import ApprovalDecision, Decisions, Name, Page, Paged, PlanDecision, TimeZone
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import InvalidRequest, NotFound, app_error
from segue.domain.field_types import doc
from segue.domain.plan import Button, Plan, UnreadablePlan
from segue.domain.session import ChatAnswer
from segue.events.user_feed import mandate_changed
from segue.memory.session_store import check_session, get_session
from segue.plans import mandates, store
from segue.plans.mandates import Grant, Mandate, Terms
from segue.turns.admission import Admitted
from segue.turns.approvals import Approval, ApprovalStatus, Decider, list_approvals

router = router_of("plans", "/sessions/{session_id}")
approvals_router = router_of("plans", "/approvals")
mandates_router = router_of("mandates", "/mandates")
grants_router = router_of("mandates", "/sessions/{session_id}/grants")

OF_APPROVALS = ("approval_not_found", "not_yours_to_decide", *OF_DECISIONS)
_POSITION, _MANDATE_POSITION = schemas.id_position("plan"), schemas.row_position("man")
WhichApprovals = Annotated[
    ApprovalStatus,
    Query(
        description="`waiting`: what the caller may decide now; `asked`: their own plans that wait for others; "
        "`decided`: what they have decided for others."
    ),
]


@router.get("/plan", responses=problems("no_open_plan"))
async def get_open_plan(session_id: SessionId, services: Parts, caller: Caller) -> Plan | UnreadablePlan:
    """Shows the open plan of a session."""
    session = await services.read(get_session, caller, session_id)
    if session.pending_plan is None:
        raise app_error("no_open_plan")
    return session.pending_plan


@router.get("/plans")
async def list_plans(
    session_id: SessionId, services: Parts, caller: Caller, paging: Paged
) -> Page[Plan | UnreadablePlan]:
    """Lists all plans of a session, open or ended. Newest first."""
    of = caller, session_id
    found = await services.read_in(*of, store.list_plans, *of, **paging.behind(_POSITION))
    return paging.page(found, lambda plan: plan.id)


@router.post("/plan/decision", response_model=ChatAnswer, responses={**OR_EVENTS, **problems(*OF_DECISIONS)})
async def decide(session_id: SessionId, body: PlanDecision, client: Client) -> Response:
    """Approves, rejects or changes the waiting step. Answers as `chat` does, once the plan waits or ends."""
    button = body.button
    request = await client.request("", WAIT, "decision", *fingerprint_of(button))
    turn = await client.services.turns.decide(client.caller, session_id, button, request)
    return await client.answer(Admitted(turn), WAIT)


@approvals_router.get("")
async def get_approvals(
    services: Parts, identity: IdentityDep, paging: Paged, status: WhichApprovals = "waiting"
) -> Page[Approval]:
    """Lists the plans that wait for the caller's decision. They are of all the caller's sessions and, by the approval
    rules of agents, of other users. Newest first.
    """
    options = {"now": services.clock(), "status": status, **paging.behind(_POSITION)}
    return paging.page(await services.read(list_approvals, identity, **options), lambda each: each.plan_id)


@approvals_router.post("/{plan_id}/decision", responses=problems(*OF_APPROVALS))
async def decide_approval(
    plan_id: PlanId, body: ApprovalDecision, services: Parts, identity: IdentityDep, origin: OriginDep
) -> Approval:
    """Decides on a plan that waits: the caller's own, or one that waits for a group of theirs. One decision counts:
    a later one is a 409 with `decided_by`. The turn runs in the session of the user who asked.
    """
    by = Decider(identity, body.channel, origin.request_id, body.reason)
    button = Button(body.decision, body.version, body.args)
    return await services.turns.decide_approval(by, plan_id, button, origin=origin)


@approvals_router.post("/decisions", status_code=202, responses=problems("session_not_found", *OF_DECISIONS))
async def decide_several(
    body: Decisions, services: Parts, caller: Caller, http: Request, origin: OriginDep
) -> Page[AcceptedTurn]:
    """Decides on the plans of several sessions. All decisions are accepted, or none: then `session_id` of the problem
    says which one could not be. The turns are in the order of `items`.
    """
    buttons = {each.session_id: each.button for each in body.items}
    if len(buttons) < len(body.items):
        raise InvalidRequest("A session is named twice. It has one plan at most, and a decision is made once.")
    admitted = await services.turns.decide_several(caller, buttons, origin=origin)
    return Page([accepted(http, admitted[each.session_id]) for each in body.items], None)


class NewMandate(Terms):
    """A mandate to give: a standing approval for a tool, within bounds."""

    session_id: Annotated[Name | None, doc("With the scope `session`: the id of the session.")] = None
    agent: Annotated[Name, doc("With the scope `agent`: the id of the agent.")] = DEFAULT_AGENT
    time_zone: Annotated[TimeZone | None, doc("The time zone of its days; null for the setting TIME_ZONE.")] = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.scope == "session") != (self.session_id is not None):
            raise ValueError("the scope `session` needs a `session_id`, and the others take none")
        return self


@mandates_router.get("")
async def list_mandates(services: Parts, caller: Caller, origin: OriginDep, paging: Paged) -> Page[Mandate]:
    """Lists the caller's mandates, which are standing approvals, and their use. Newest first."""
    tools, now = services.tools.tools_for(caller, origin.groups), services.clock()
    found = await services.read(mandates.list_mandates, caller, **paging.behind(_MANDATE_POSITION))
    return paging.page_of_placed([(mandates.shown(row, tools, now=now), (row.seq, row.id)) for row in found])


@mandates_router.post("", status_code=201, responses=problems("unknown_tool", "unknown_agent", "session_not_found"))
async def give_mandate(body: NewMandate, client: Client) -> Mandate:
    """Gives a mandate: lets a tool, as now defined, run unasked within bounds. A call beyond the bounds still asks."""
    services, caller, origin = client.services, client.caller, client.origin
    now, tools = services.clock(), services.tools.tools_for(caller, origin.groups)
    tool = services.tools.specs(body.tool, owner=caller, groups=origin.groups)[body.tool]
    if body.scope == "agent":
        services.agents.check(body.agent, caller, origin.groups, status=422)
    of = {"session_id": body.session_id, "agent": body.agent, "mandate_id": client.id_of("man", body)}
    async with services.database.transaction() as connection:
        if body.session_id is not None:
            await check_session(connection, caller, body.session_id)
        zone = body.time_zone or services.settings.time_zone
        row = await mandates.give(connection, caller, body, tool, **of, time_zone=zone, now=now)
    services.events.tell(caller, mandate_changed(row.id))
    return mandates.shown(row, tools, now=now)


@mandates_router.delete("/{mandate_id}", status_code=204)
async def revoke_mandate(mandate_id: MandateId, services: Parts, caller: Caller) -> None:
    """Revokes a mandate. The next call asks again, even in a turn that is running."""
    if not await services.database.transact(mandates.revoke, caller, mandate_id):
        raise NotFound("mandate")
    services.events.tell(caller, mandate_changed(mandate_id))


@grants_router.get("")
async def list_grants(session_id: SessionId, services: Parts, caller: Caller, paging: Paged) -> Page[Grant]:
    """Lists the tools that a decision with `remember` lets run unasked in a session. Ordered by name."""
    listed = session_id, services.tools.tools()
    position = paging.behind(schemas.BY_NAME, "after")
    found = await services.read_in(caller, session_id, mandates.list_grants, *listed, **position)
    return paging.page(found, lambda grant: grant.tool)


@grants_router.delete("/{tool}", status_code=204, responses=problems("no_grant"))
async def revoke_grant(
    session_id: SessionId,
    tool: Annotated[str, Path(pattern="^[^\x00]*$", description="The name of a tool that `GET …/grants` lists.")],
    services: Parts,
    caller: Caller,
    origin: OriginDep,
) -> None:
    """Makes a tool ask again in a session. This holds from its next call on, even in a turn that is running."""
    async with services.database.transaction() as connection:
        await check_session(connection, caller, session_id)
        if await mandates.forget(connection, session_id, tool):
            return
    services.tools.specs(tool, owner=caller, groups=origin.groups)
    raise app_error("no_grant", tool=tool)
