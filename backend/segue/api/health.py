"""Health checks: whether the process is alive, and whether it can run turns."""

from typing import Literal

from fastapi import APIRouter, Response

from segue.api.deps import Services, ServicesDep
from segue.api.problems import PROBLEMS
from segue.db.causes import StorageUnavailable
from segue.identity.authenticator import Unauthorized
from segue.mcp.status import STDERR_SHOWN
from segue.turns.queries import CHANGES_NOTHING
from segue.version import VERSION

Condition = Literal["ok", "down"]

REFUSED = "refused: the servers are those of the file before its change; GET /mcp/servers and segue doctor say why"

router = APIRouter(prefix="/health", tags=["ops"], responses=PROBLEMS)


@router.head("/live", include_in_schema=False)  # what many monitors ask with
@router.get("/live")
async def live() -> dict[str, str]:
    """Says that the process is alive."""
    return {"status": "ok"}


Ready = dict[str, str | dict[str, str]]


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"description": "No turn can be run.", "model": Ready}})
async def ready(services: ServicesDep, response: Response) -> Ready:
    """Says whether turns can be run. 503 if none can. Without Redis turns are slower, and without an MCP server its
    tools are missing: without AUTH `mcp` says why and what helps, `mcp_stderr` what it wrote last. `worker` is `off` in
    a process that leaves its turns to others. `postgres_cause` and `redis_cause` say why one is `down`. `mcp_config` is
    there if mcp.json was changed and the change was refused.
    """
    postgres: Condition = "ok"
    cause = {}
    try:
        await services.database.ping(CHANGES_NOTHING)
    except StorageUnavailable as error:
        postgres, cause = "down", {"postgres_cause": error.cause.name}
    redis: Condition = "ok" if await services.cache.ping() else "down"
    if redis == "down" and services.cache.cause is not None:
        cause["redis_cause"] = services.cache.cause.name
    worker = services.turns.worker if services.events.alive else "down"
    if "down" in (postgres, worker):
        response.status_code = 503
    told: Ready = {"postgres": postgres, **cause, "redis": redis, "worker": worker, **await _look_at_mcp(services)}
    if services.mcp.refused:
        told["mcp_config"] = REFUSED
    return {**told, "version": VERSION}


async def _look_at_mcp(services: Services) -> Ready:
    """Says why servers are down, and what they wrote last, only where every caller may operate: paths of this machine
    are in the one, the other may tell of users' calls.
    """
    if not await _anyone_operates(services):
        return {"mcp": {name: state.partition(":")[0] for name, state in services.mcp.states().items()}}
    down = [each for each in services.mcp.statuses() if each.state != "ready"]
    said = {each.name: "\n".join(each.stderr[-STDERR_SHOWN:]) for each in down if each.stderr}
    return {"mcp": services.mcp.states(), **({"mcp_stderr": said} if said else {})}


async def _anyone_operates(services: Services) -> bool:
    try:
        return "ops" in (await services.authenticator.identify(None)).scopes
    except Unauthorized:
        return False
