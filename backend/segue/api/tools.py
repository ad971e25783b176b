"""Lists the tools, as the model sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter

from segue.api.deps import Caller, ServicesDep
from segue.api.problems import PROBLEMS
from segue.api.schemas import Page
from segue.domain.doc import doc
from segue.domain.tool import DependencyGroup, Effect
from segue.plans.policy import needs_confirmation
from segue.tools.definitions import changed_at

router = APIRouter(prefix="/tools", tags=["tools"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """A tool, as the model sees it."""

    name: Annotated[str, doc("The name that the model calls it by.")]
    description: Annotated[str, doc("What the model is told of it.")]
    schema: Annotated[Mapping[str, Any], doc("JSON Schema of its arguments.")]
    effect: Annotated[Effect, doc("What a call does to the world.")]
    effect_guessed: Annotated[bool, doc("Whether nobody has said so: it was read from the name.")]
    confirmation: Annotated[bool, doc("Whether a call waits for the user's yes.")]
    always_asks: Annotated[bool, doc("Whether only the answer to the question about a call is that yes.")]
    dependencies: Annotated[tuple[DependencyGroup, ...], doc("What has to have succeeded in the session first.")]
    source: Annotated[str, doc("`builtin`, `native` or `mcp:<server>`.")]
    changed_at: Annotated[datetime | None, doc("Since when its server defines it like this; null if it always did.")]


@router.get("")
async def list_tools(services: ServicesDep, caller: Caller) -> Page[ToolDescription]:
    """Lists the tools that the caller may use, as the model sees them."""
    specs = [tool.spec for tool in services.tools.tools_for(caller).values()]
    changed = await changed_at(services.database, specs)
    described = [
        ToolDescription(
            name=spec.name,
            description=spec.description,
            schema=spec.input_schema,
            effect=spec.effect,
            effect_guessed=spec.effect_guessed,
            confirmation=needs_confirmation(spec, services.confirm),
            always_asks=spec.always_asks and needs_confirmation(spec, services.confirm),
            dependencies=spec.depends_on,
            source=spec.source,
            changed_at=changed.get(spec.name),
        )
        for spec in specs
    ]
    return Page(described, None)
