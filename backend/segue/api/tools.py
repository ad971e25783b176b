"""Lists the tools, as the model sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter

from segue.api.deps import Caller, ServicesDep
from segue.api.problems import PROBLEMS
from segue.api.schemas import Page
from segue.domain.doc import doc
from segue.domain.tool import DependencyGroup, Effect
from segue.plans.policy import needs_confirmation

router = APIRouter(prefix="/tools", tags=["tools"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """A tool, as the model sees it."""

    name: Annotated[str, doc("The name that the model calls it by.")]
    description: Annotated[str, doc("What the model is told of it.")]
    schema: Annotated[Mapping[str, Any], doc("JSON Schema of its arguments.")]
    effect: Annotated[Effect, doc("What a call does to the world.")]
    confirmation: Annotated[bool, doc("Whether a call waits for the user's yes.")]
    dependencies: Annotated[tuple[DependencyGroup, ...], doc("What has to have succeeded in the session first.")]
    source: Annotated[str, doc("`builtin`, `native` or `mcp:<server>`.")]


@router.get("")
async def list_tools(services: ServicesDep, _: Caller) -> Page[ToolDescription]:
    """Lists the tools, as the model sees them."""
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
