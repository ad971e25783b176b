"""The tools of this process (built-in, native, of MCP servers), and how definitions have changed since the last
process. Owns `tool_definitions`, for which no turn waits. Mandates and plans decide what a change means for a yes.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Protocol

from sqlalchemy import delete, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from segue.db.engine import Connection, Database
from segue.db.models import tool_definitions
from segue.db.outages import StorageUnavailable
from segue.db.rows import readable, reader
from segue.domain.errors import AppError, app_error
from segue.domain.field_types import doc
from segue.domain.tool import Effect, Tool, ToolSpec, definition_of
from segue.log import log
from segue.tools.tool_health import ServerAway, check_groups, unknown_members
from segue.tools.unknown_outcomes import unfit
from segue.watch import Watch

MAX_ROWS: Final = 3000  # of a source: one that renames its tools all the time would fill the store
MAX_LISTED: Final = 200  # lists that wait to be noted
RETRY_S: Final = 5.0


class ToolServers(Protocol):
    """MCP servers, which come and go. None of them has to be asked while there are no `servers`."""

    @property
    def servers(self) -> Sequence[object]: ...

    def tools(self, owner: str = "") -> Iterable[Tool]: ...

    def away(self, owner: str = "") -> Mapping[str, ServerAway]:
        """Returns by source of tools why the owner's calls cannot be sent there."""

    def groups(self) -> frozenset[str]:
        """Returns the groups that some of their tools are for, also of servers that are away."""


class ToolCatalog:
    """The `own` tools of a service, and those that its servers offer now."""

    def __init__(self, own: Sequence[Tool], offering: ToolServers | None = None) -> None:
        """Raises AppError `tool_invalid` for two own tools of one name, and for dependencies that cannot be met."""
        self._own = {tool.spec.name: tool for tool in own}
        self._offering = offering
        twice = [name for name, times in Counter(tool.spec.name for tool in own).items() if times > 1]
        if twice:
            raise _invalid(f"two tools are called {twice[0]}: rename one, or take a built-in one away (DISABLED_TOOLS)")
        depends_on = {tool.spec.name: tool.spec.depends_on for tool in own if not tool.spec.ephemeral}
        try:
            check_groups(depends_on)
        except ValueError as error:
            raise _invalid(str(error)) from None
        if unknown := unknown_members(depends_on, depends_on):
            raise _invalid(f"tools depend on tools that do not exist: {', '.join(unknown)}")
        specs = {name: tool.spec for name, tool in self._own.items()}
        for name, spec in specs.items():
            if spec.verify is not None and (why := unfit(name, spec.verify, specs)):
                raise _invalid(why)

    def tools(self, owner: str = "") -> Mapping[str, Tool]:
        """Returns all tools by name, as they are for the owner. A server cannot take the name of an own tool."""
        if self._offering is None or not self._offering.servers:
            return self._own
        return {tool.spec.name: tool for tool in self._offering.tools(owner)} | self._own

    def away(self, owner: str) -> Mapping[str, ServerAway]:
        return self._offering.away(owner) if self._offering is not None and self._offering.servers else {}

    def groups(self) -> frozenset[str]:
        own = (tool.audience.named_groups for tool in self._own.values() if tool.audience)
        return frozenset[str]().union(*own, self._offering.groups() if self._offering is not None else ())


def _invalid(why: str) -> AppError:
    return app_error("tool_invalid", why=f"{why[0].upper()}{why[1:]}")


@dataclass(frozen=True, slots=True)
class Definition:
    """How a server defines a tool."""

    description: Annotated[str, doc("The description that the model reads.")]
    input_schema: Annotated[Mapping[str, Any], doc("JSON Schema of the tool's arguments.")]
    title: Annotated[str, doc("The name of the tool as people read it; may be empty.")]
    effect: Annotated[Effect, doc("Whether a call only reads, changes something, or destroys it.")]
    idempotent: Annotated[bool, doc("Whether a repeated call has no further effect.")]


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """How a tool is defined now, and how it was before."""

    tool: Annotated[str, doc("The name of the tool.")]
    changed_at: Annotated[datetime, doc("When a process first saw the new definition.")]
    changed: Annotated[tuple[str, ...], doc("What differs: `description`, `inputSchema`, `title`, `annotations`.")]
    before: Annotated[Definition, doc("The definition before the change.")]
    now: Annotated[Definition, doc("The definition after the change.")]


_Redefined = tuple[ToolSpec, str, datetime]  # the digest of the definition before, and when it changed


async def note(
    connection: Connection, source: str, specs: Sequence[ToolSpec], *, now: datetime
) -> list[DefinitionChange]:
    """Stores the definitions that are not the newest known of their tools. Returns what has changed."""
    known = await _history(connection, [spec.name for spec in specs])
    new = [spec for spec in specs if not known[spec.name] or known[spec.name][0][0] != definition_of(spec)]
    if not new:
        return []
    listed = {"source": source, "since": now}
    rows = [
        {"tool": spec.name, "digest": definition_of(spec), "definition": asdict(_definition(spec)), **listed}
        for spec in new
    ]
    added = insert(tool_definitions)
    again = {name: added.excluded[name] for name in ("seq", "since", "source")}  # a definition that is back
    await connection.execute(added.on_conflict_do_update(constraint=tool_definitions.primary_key, set_=again), rows)
    found = await _with_before(connection, [(spec, known[spec.name][0][0], now) for spec in new if known[spec.name]])
    table = tool_definitions.c
    of_source = select(table.tool, table.digest).where(table.source == source)
    too_many = of_source.order_by(table.seq.desc()).offset(MAX_ROWS)
    await connection.execute(delete(tool_definitions).where(tuple_(table.tool, table.digest).in_(too_many)))
    return found


async def changed_at(database: Database, specs: Iterable[ToolSpec]) -> dict[str, datetime]:
    """Returns, by name, when tools were last redefined."""
    return {spec.name: since for spec, _, since in await database.read(_changed, specs)}


async def definition_changes(database: Database, specs: Iterable[ToolSpec]) -> dict[str, DefinitionChange]:
    """Returns by name the redefined tools, with their definitions of now and before."""
    async with database.read_only() as connection:
        changed = await _with_before(connection, await _changed(connection, specs))
    return {each.tool: each for each in changed}


async def changed_since(connection: Connection, digest: str, spec: ToolSpec) -> tuple[str, ...]:
    """Returns the parts of a tool that differ from its definition of that digest; empty if that is not known."""
    table = tool_definitions.c
    statement = select(table.definition).where(table.tool == spec.name, table.digest == digest)
    if (shown := await connection.scalar(statement)) is None:
        return ()
    before = readable(reader(Definition), shown, "tool_definitions", spec.name)
    return _differences(before, _definition(spec)) if before else ()


class DefinitionNotes(Watch):
    """Notes the tools that servers list while it is entered; the rest is noted at the next start."""

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        super().__init__("tool definitions", self.note_listed, every_s=RETRY_S)
        self._database = database
        self._clock = clock
        self._listed: deque[tuple[str, Sequence[ToolSpec]]] = deque(maxlen=MAX_LISTED)

    def listed(self, source: str, specs: Sequence[ToolSpec]) -> None:
        self._listed.append((source, specs))
        self.wake()

    async def note_listed(self) -> None:
        while self._listed:
            source, specs = self._listed.popleft()
            try:
                changed = await self._database.transact(note, source, specs, now=self._clock())
            except StorageUnavailable:
                self._listed.appendleft((source, specs))
                return
            except SQLAlchemyError as error:
                log.warning("tool_definitions_not_noted", source=source, error=type(error).__name__)
            else:
                for each in changed:
                    log.warning("tool_changed", tool=each.tool, source=source, changed=each.changed)


async def _history(connection: Connection, names: Iterable[str]) -> dict[str, list[tuple[str, datetime]]]:
    """Returns digests and times by tool, the newest first."""
    table = tool_definitions.c
    statement = select(table.tool, table.digest, table.since).where(table.tool.in_(list(names)))
    found: dict[str, list[tuple[str, datetime]]] = defaultdict(list)
    for row in await connection.execute(statement.order_by(table.seq.desc())):
        found[row.tool].append((row.digest, row.since))
    return found


async def _changed(connection: Connection, specs: Iterable[ToolSpec]) -> list[_Redefined]:
    by_name = {spec.name: spec for spec in specs if spec.source.startswith("mcp:")}
    found = []
    for name, rows in (await _history(connection, by_name)).items():
        digest = definition_of(by_name[name])
        at = next((place for place, (known, _) in enumerate(rows) if known == digest), len(rows))
        if at + 1 < len(rows):
            found.append((by_name[name], rows[at + 1][0], rows[at][1]))
    return found


async def _with_before(connection: Connection, changed: Sequence[_Redefined]) -> list[DefinitionChange]:
    if not changed:
        return []
    table = tool_definitions.c
    keys = [(spec.name, digest) for spec, digest, _ in changed]
    statement = select(table.tool, table.definition).where(tuple_(table.tool, table.digest).in_(keys))
    before = {row.tool: row.definition for row in await connection.execute(statement)}
    changes = []
    for spec, _, at in changed:
        now = _definition(spec)
        was = readable(reader(Definition), before.get(spec.name), "tool_definitions", spec.name) or now
        changes.append(DefinitionChange(spec.name, at, _differences(was, now), was, now))
    return changes


def _definition(spec: ToolSpec) -> Definition:
    return Definition(spec.description, spec.input_schema, spec.title, spec.effect, spec.idempotent)


def _differences(before: Definition, now: Definition) -> tuple[str, ...]:
    """Returns the members that differ, in the protocol's words."""
    same = {
        "description": before.description == now.description,
        "inputSchema": before.input_schema == now.input_schema,
        "title": before.title == now.title,
        "annotations": (before.effect, before.idempotent) == (now.effect, now.idempotent),
    }
    return tuple(name for name, is_same in same.items() if not is_same)
