"""How an MCP server stands, as operators read it. Knows nothing of the protocol."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from segue.domain.doc import doc
from segue.tools.definitions import DefinitionChange

STDERR_SHOWN: Final = 10  # lines, but where all are


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A tool that a server lists and that is not offered."""

    name: Annotated[str, doc("What the server calls it.")]
    reason: Annotated[str, doc("Why it is left out.")]


@dataclass(frozen=True, slots=True)
class McpServerStatus:
    """A server of mcp.json, as this process sees it."""

    name: Annotated[str, doc("Its name in mcp.json.")]
    state: Annotated[str, doc("`connecting`, `ready`, or `failed: ` and why.")]
    since: Annotated[datetime, doc("Since when.")]
    tools: Annotated[list[str], doc("The tools that it offers; those it offered last while it is away.")]
    left_out: Annotated[list[LeftOut], doc("Tools that it lists and that cannot be offered, 50 at most.")]
    last_error: Annotated[str | None, doc("Why it failed last; null if it never did.")]
    last_error_at: Annotated[datetime | None, doc("When.")]
    stderr: Annotated[list[str], doc("The last lines that its process wrote there, 50 at most, without secrets.")]
    changes: Annotated[list[DefinitionChange], doc("The tools that it defined otherwise before, and how.")] = field(
        default_factory=list
    )
