"""Routes that say whether the process is alive and can run turns; metrics for Prometheus; the doctor's findings."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from segue import __version__
from segue.api.deps import AnySession, Ops, Parts, Services, may_read_metrics, router_of
from segue.api.metrics import CONTENT_TYPE, shared_metrics
from segue.api.problems import PROBLEMS, problems
from segue.db.outages import StorageUnavailable
from segue.domain.errors import AppError
from segue.domain.telemetry import Backlog
from segue.events.outbox import read_pending
from segue.mcp.status import STDERR_SHOWN
from segue.turns.queries import CHANGES_NOTHING, read_backlog
from segue.users.api_keys import Unauthorized
from segue.users.audit import record_act

Ready = dict[str, str | dict[str, str]]

REFUSED = "refused: the servers are those of the file before its change; GET /mcp/servers and segue doctor say why"

router = APIRouter(prefix="/health", tags=["ops"], responses=PROBLEMS)
metrics_router = APIRouter(tags=["ops"], responses=PROBLEMS)
doctor_router = router_of("ops", "/ops/doctor")


@router.get("/live")
async def live() -> dict[str, str]:
    """Says that this process is alive."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "No turn can be run; `down` marks why.", "model": Ready}})
async def ready(services: Parts, response: Response) -> Ready:
    """Says whether turns can be run, and answers 503 if none can. Without Redis turns are slower; without an MCP server
    its tools are missing. `postgres_cause` and `redis_cause` say why one is `down`. `worker` is `off` in a process that
    leaves its turns to others. Without AUTH, `mcp` says why a server is away and what helps, and `mcp_stderr` what it
    wrote last. `mcp_config` is there if mcp.json was changed and the change was refused.
    """
    postgres, cause = "ok", {}
    try:
        await services.database.ping(CHANGES_NOTHING)
    except StorageUnavailable as error:
        postgres, cause = "down", {"postgres_cause": error.cause.name}
    redis = "ok" if await services.cache.ping() else "down"
    if redis == "down" and services.cache.cause is not None:
        cause["redis_cause"] = services.cache.cause.name
    worker = services.turns.worker if services.events.alive else "down"
    if "down" in (postgres, worker):
        response.status_code = 503
    state: Ready = {"postgres": postgres, **cause, "redis": redis, "worker": worker, **await _look_at_mcp(services)}
    if services.mcp.refused:
        state["mcp_config"] = REFUSED
    return {**state, "version": __version__}


async def _look_at_mcp(services: Services) -> Ready:
    """Says why servers are down and what they wrote, which may tell of users, only where every caller may operate."""
    try:
        anyone_operates = "ops" in (await services.authenticator.identify(None)).scopes
    except Unauthorized:
        anyone_operates = False
    if not anyone_operates:
        return {"mcp": {name: state.partition(":")[0] for name, state in services.mcp.states().items()}}
    down = [each for each in services.mcp.statuses() if each.state != "ready"]
    stderr = {each.name: "\n".join(each.stderr[-STDERR_SHOWN:]) for each in down if each.stderr}
    return {"mcp": services.mcp.states(), **({"mcp_stderr": stderr} if stderr else {})}


@metrics_router.get(
    "/metrics",
    dependencies=[Depends(may_read_metrics)],
    response_class=Response,
    responses={
        200: {"description": "The metrics, as text", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems("forbidden"),
    },
)
async def metrics(services: Parts) -> Response:
    """Shows the metrics in Prometheus' text format. If PostgreSQL or Redis is away, only the metrics that it knows are
    missing. Needs the scope `ops`, unless METRICS_PUBLIC is set.
    """
    (backlog, outbox), jobs, failed = await asyncio.gather(
        _of_postgres(services), services.turns.queue.waiting(), services.tools.failed_for_all()
    )
    of_tools = None if services.cache.degraded else {name: name in failed for name in services.tools.tools()}
    shared = shared_metrics(backlog=backlog, jobs=jobs, tools_failed=of_tools, outbox=outbox)
    return Response(await asyncio.to_thread(services.metrics.text, shared), media_type=CONTENT_TYPE)


async def _of_postgres(services: Services) -> tuple[Backlog | None, tuple[int, float] | None]:
    try:
        async with asyncio.timeout(1.0), services.database.read_only() as connection:
            return await read_backlog(connection), await read_pending(connection)
    except (AppError, TimeoutError):
        return None, None


@doctor_router.get("", responses=problems("forbidden", "session_not_found"))
async def examine(
    services: Parts,
    operator: Ops,
    *,
    session_id: Annotated[AnySession | None, Query(description="A session to examine, of any user.")] = None,
) -> dict[str, Any]:
    """Examines the service, or a session, as `segue doctor --json` does. Answers `healthy`, the `problems` and what to
    do about them, and what was found in each part. Asks the model a word, so it takes a second or more. Needs the
    scope `ops`; only `ops:content` shows what was said in a session, as the goal of its plan.
    """
    words = session_id is not None and "ops:content" in operator.scopes
    found = await services.examine(session_id, words=words)
    if words:
        await services.database.transact(record_act, operator, "read_session", session_id=session_id)
    return found
