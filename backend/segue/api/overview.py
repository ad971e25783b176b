"""The route of the overview for operators: how the service does now and did in the last hour or day. HTTP only."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Query

from segue.api.deps import Ops, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.domain.doc import BUILT_AT_FIRST_USE, doc
from segue.plans.approvals import count_approvals
from segue.turns.figures import Period, WindowFigures, figures_of
from segue.turns.queries import TurnsOverview, overview

router = router_of("ops", "/ops/overview")


@dataclass(frozen=True, slots=True)
class OpenWork(TurnsOverview):
    """What there is to do at this moment, in all processes together."""

    approvals_waiting: Annotated[int, doc("Plans that wait for their user's yes.")]
    instances: Annotated[int | None, doc("Processes that take turns; null if Redis does not say.")]


@dataclass(frozen=True, slots=True)
class Overview:
    """How the service does."""

    __pydantic_config__ = BUILT_AT_FIRST_USE

    window: Annotated[Period, doc("What the figures are of.")]
    at: Annotated[datetime, doc("When it was asked.")]
    now: Annotated[OpenWork, doc("What there is to do.")]
    figures: Annotated[WindowFigures, doc("What was done, and how it went.")]


@router.get("", responses=problems("forbidden"))
async def get_overview(
    services: ServicesDep,
    _: Ops,
    *,
    window: Annotated[Period, Query(description="The last 60 minutes, or the last 96 quarters of an hour.")] = "hour",
) -> Overview:
    """Shows how the service does: turns, latency, errors, tokens and costs over time, and what there is to do now. Each
    turn counts when its message was accepted. For the scope `ops`.
    """
    at = services.clock()
    async with services.database.read_only() as connection:
        figures = await figures_of(connection, window, now=at)
        now = await overview(connection)
        waiting = await count_approvals(connection, now=at)
    work = OpenWork(**asdict(now), approvals_waiting=waiting, instances=await services.turns.queue.workers())
    return Overview(window, at, work, figures)
