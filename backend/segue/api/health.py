"""Health checks: whether the process is alive, and whether it can run turns."""

from typing import Literal

from fastapi import APIRouter, Response

from segue.api.deps import ServicesDep
from segue.api.problems import PROBLEMS
from segue.domain.errors import AppError

Condition = Literal["ok", "down"]

router = APIRouter(prefix="/health", tags=["ops"], responses=PROBLEMS)


@router.get("/live")
async def live() -> dict[str, str]:
    """Says that the process is alive."""
    return {"status": "ok"}


Ready = dict[str, str | dict[str, str]]


@router.get("/ready", responses={503: {"description": "No turn can be run.", "model": Ready}})
async def ready(services: ServicesDep, response: Response) -> Ready:
    """Says whether turns can be run. 503 if none can. Without Redis turns are slower, and without an MCP server its
    tools are missing. `worker` is `off` in a process that leaves its turns to others.
    """
    postgres: Condition = "ok"
    try:
        await services.database.ping()
    except AppError:
        postgres = "down"
    redis: Condition = "ok" if await services.cache.ping() else "down"
    worker = services.turns.worker if services.events.alive else "down"
    if "down" in (postgres, worker):
        response.status_code = 503
    return {"postgres": postgres, "redis": redis, "worker": worker, "mcp": services.mcp_states()}
