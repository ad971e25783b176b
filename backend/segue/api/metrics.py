"""The route that Prometheus scrapes: metrics of this process, and of what all processes share, read from the stores."""

import asyncio

from fastapi import APIRouter, Depends, Response

from segue.api.deps import Services, ServicesDep, may_read_metrics
from segue.api.problem_codes import problems
from segue.api.problems import PROBLEMS
from segue.domain.errors import AppError
from segue.domain.telemetry import Backlog
from segue.events.outbox import read_pending
from segue.telemetry.gauges import SharedState, shared_metrics
from segue.telemetry.metrics import CONTENT_TYPE
from segue.turns.queries import read_backlog

READ_TIMEOUT_S = 1.0

router = APIRouter(tags=["ops"], responses=PROBLEMS)


@router.get(
    "/metrics",
    dependencies=[Depends(may_read_metrics)],
    response_class=Response,
    responses={
        200: {"description": "In Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems("forbidden"),
    },
)
async def metrics(services: ServicesDep) -> Response:
    """Gives the metrics in Prometheus' text format. For the scope `ops`, or with METRICS_PUBLIC for all. A store
    that is away costs only what it knows.
    """
    (backlog, outbox), jobs, failed = await asyncio.gather(
        _of_postgres(services), services.turns.queue.waiting(), _globally_failed_tools(services)
    )
    shared = SharedState(backlog=backlog, jobs=jobs, tools_failed=failed, outbox=outbox)
    return Response(services.metrics.text(shared_metrics(shared)), media_type=CONTENT_TYPE)


async def _of_postgres(services: Services) -> tuple[Backlog | None, tuple[int, float] | None]:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S), services.database.read_only() as connection:
            return await read_backlog(connection), await read_pending(connection)
    except (AppError, TimeoutError):
        return None, None


async def _globally_failed_tools(services: Services) -> dict[str, bool] | None:
    failed = await services.tools.failed_for_all()
    return None if services.cache.degraded else {name: name in failed for name in services.tools.tools()}
