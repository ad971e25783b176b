"""Routes to standing approvals: all of a user's, and what is remembered of decisions in one session."""

from typing import Annotated, Final, Self

from fastapi import Path
from pydantic import Field, TypeAdapter, model_validator

from segue.api.deps import Caller, IdentityDep, MandateId, ServicesDep, SessionId, router_of
from segue.api.problems import problems
from segue.api.schemas import Name, Page, PagingDep, TimeZone, id_position
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError, NotFound
from segue.domain.field_types import doc
from segue.events.user_feed import mandate_changed
from segue.memory.session_store import check_session
from segue.plans import mandates
from segue.plans.mandates import Grant, Mandate, Terms

router = router_of("mandates", "/mandates")
grants_router = router_of("mandates", "/sessions/{session_id}/grants")

_POSITION: Final = id_position("man")
_TOOL: Final[TypeAdapter[str]] = TypeAdapter(Annotated[str, Field(pattern="^[^\x00]*$")])


class NewMandate(Terms):
    """A standing approval to give."""

    session_id: Annotated[Name | None, doc("With the scope `session`: which one.")] = None
    agent: Annotated[Name, doc("With the scope `agent`: one of `GET /agents`.")] = DEFAULT_AGENT
    time_zone: Annotated[TimeZone | None, doc("In which its days begin; null for the setting TIME_ZONE.")] = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.scope == "session") != (self.session_id is not None):
            raise ValueError("the scope `session` needs a `session_id`, and the others take none")
        return self


@router.get("")
async def list_mandates(services: ServicesDep, caller: Caller, paging: PagingDep) -> Page[Mandate]:
    """Lists the caller's standing approvals with what is used of them. Newest first."""
    before, tools = paging.after(_POSITION), services.tools.tools_for(caller)
    async with services.database.read_only() as connection:
        found = await mandates.list_mandates(connection, caller, before=before, limit=paging.limit + 1)
    now = services.clock()
    return paging.page([mandates.shown(row, tools, now=now) for row in found], lambda each: each.id)


@router.post("", status_code=201, responses=problems("unknown_tool", "unknown_agent", "session_not_found"))
async def give_mandate(body: NewMandate, services: ServicesDep, identity: IdentityDep) -> Mandate:
    """Lets a tool, as it is defined now, run unasked within bounds. A call beyond them asks, as without."""
    caller, now = identity.user, services.clock()
    tool = services.tools.specs(body.tool, owner=caller)[body.tool]
    if body.scope == "agent":
        services.agents.check(body.agent, caller, services.agents.groups_of(identity), status=422)
    of = {"session_id": body.session_id, "agent": body.agent}
    async with services.database.transaction() as connection:
        if body.session_id is not None:
            await check_session(connection, caller, body.session_id)
        zone = body.time_zone or services.settings.time_zone
        row = await mandates.give(connection, caller, body, tool, **of, time_zone=zone, now=now)
    services.events.tell(caller, mandate_changed(row.id))
    return mandates.shown(row, services.tools.tools_for(caller), now=now)


@router.delete("/{mandate_id}", status_code=204)
async def revoke_mandate(mandate_id: MandateId, services: ServicesDep, caller: Caller) -> None:
    """Takes a standing approval back. The next call of a turn that runs asks already."""
    async with services.database.transaction() as connection:
        if not await mandates.revoke(connection, caller, mandate_id):
            raise NotFound("mandate")
    services.events.tell(caller, mandate_changed(mandate_id))


@grants_router.get("")
async def list_grants(session_id: SessionId, services: ServicesDep, caller: Caller, paging: PagingDep) -> Page[Grant]:
    """Lists the tools that need not ask again in this session, because a decision said so. By name."""
    after, tools = paging.after(_TOOL), services.tools.tools()
    async with services.database.read_only() as connection:
        await check_session(connection, caller, session_id)
        found = await mandates.list_grants(connection, session_id, tools, after=after, limit=paging.limit + 1)
    return paging.page(found, lambda grant: grant.tool)


@grants_router.delete("/{tool}", status_code=204, responses=problems("no_grant"))
async def revoke_grant(
    session_id: SessionId,
    tool: Annotated[str, Path(pattern="^[^\x00]*$", description="One of `GET …/grants`.")],
    services: ServicesDep,
    caller: Caller,
) -> None:
    """Lets a tool ask again. The next call of a turn that runs asks already."""
    async with services.database.transaction() as connection:
        await check_session(connection, caller, session_id)
        if await mandates.forget(connection, session_id, tool):
            return
    services.tools.specs(tool)
    detail = f"{tool} asks in this session as it is: nothing is remembered for it."
    raise AppError("no_grant", status=404, title="No grant", detail=detail)
