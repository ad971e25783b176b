"""Lists the tools, as the model sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from segue.api.deps import Caller, ServicesDep
from segue.api.problems import PROBLEMS
from segue.api.schemas import Page
from segue.domain.tool import DependencyGroup, Effect
from segue.plans.policy import needs_confirmation

router = APIRouter(prefix="/tools", tags=["tools"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """`confirmation`: whether a call waits for the user's yes; `source` is `builtin`, `native` or `mcp:<server>`."""

    name: str
    description: str
    schema: Mapping[str, Any]
    effect: Effect
    confirmation: bool
    dependencies: tuple[DependencyGroup, ...]
    source: str


@router.get("")
async def list_tools(services: ServicesDep, _: Caller) -> Page[ToolDescription]:
    described = [
        ToolDescription(
            name=spec.name,
            description=spec.description,
            schema=spec.input_schema,
            effect=spec.effect,
            confirmation=needs_confirmation(spec, services.confirm),
            dependencies=spec.depends_on,
            source=spec.source,
        )
        for spec in (tool.spec for tool in services.tools.tools().values())
    ]
    return Page(described, None)
