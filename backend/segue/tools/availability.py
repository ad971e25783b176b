"""Which tools may run, why not, and both ways a tool's state changes: after a call, and by a person. Joins the rules
(`tool_health.py`) and the stored states (`tool_states.py`). Callers check whose a session is.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from segue.db.engine import Connection, Database
from segue.domain import tool as domain
from segue.domain.agent import Agent
from segue.domain.errors import app_error
from segue.domain.session import TurnKey
from segue.domain.telemetry import Observe, SessionToolStateChanged
from segue.domain.tool import ManualStatus, SessionToolState, Tool, ToolOverview, ToolSpec, ToolState, ToolStatus
from segue.log import log
from segue.tools import tool_health, tool_states
from segue.tools.builtin.builtin_tools import SEARCH_CONVERSATION
from segue.tools.catalog import ToolCatalog
from segue.tools.run import LONGEST, CallOutcome
from segue.tools.tool_health import NEVER_RAN, Healths, ToolHold
from segue.tools.tool_settings import ToolSettings
from segue.tools.tool_states import Changed, GlobalToolState, StatePosition, Transition

PROBE_SLACK_S: Final = 5.0

Specs = Mapping[str, ToolSpec]
Holds = Mapping[str, ToolHold]


@dataclass(eq=False, repr=False)
class ToolAvailability:
    """The tools of a process and their health, in any session."""

    catalog: ToolCatalog
    database: Database
    everywhere: GlobalToolState
    settings: ToolSettings
    _: KW_ONLY
    clock: Callable[[], datetime]
    observe: Observe

    def __post_init__(self) -> None:
        self.tools, self.groups = self.catalog.tools, self.catalog.groups
        self.failed_for_all = self.everywhere.load

    def tools_for(self, owner: str, groups: Collection[str], agent: str | None = None) -> Mapping[str, Tool]:
        """Returns those that the user in these groups may use with the agent, or with any agent."""
        tools, who = self.tools(owner), (owner, groups, agent)
        closed = {name for name, tool in tools.items() if tool.audience and not tool.audience.admits(*who)}
        return {name: tool for name, tool in tools.items() if name not in closed} if closed else tools

    def specs(self, name: str | None = None, *, owner: str = "", groups: Collection[str] | None = None) -> Specs:
        """Returns all tools by name, or one; with `groups`, what the owner may use. Raises AppError `unknown_tool`."""
        tools = self.tools(owner) if groups is None else self.tools_for(owner, groups)
        specs = {tool.spec.name: tool.spec for tool in tools.values()}
        if name is None:
            return specs
        if name not in specs:
            raise app_error("unknown_tool", name=name[:100])
        return {name: specs[name]}

    def judge(
        self, specs: Iterable[ToolSpec], session: Healths, fleet: Healths, holds: Holds, owner: str = ""
    ) -> dict[str, ToolState]:
        away, now, settings = self.catalog.away(owner), self.clock(), self.settings
        state_of = partial(tool_health.tool_state, session=session, fleet=fleet, now=now, settings=settings)
        known = session.keys() | fleet.keys() | holds.keys()
        return {
            spec.name: state_of(spec, hold=holds.get(spec.name), away=away.get(spec.source))
            if spec.name in known or spec.source in away or spec.depends_on
            else tool_health.UNTOUCHED
            for spec in specs
        }

    async def session_states(
        self, session_id: str, owner: str = "", groups: Collection[str] | None = None, *, words: bool = True
    ) -> dict[str, ToolState]:
        """Returns the state of every tool, or of those that the user may use, also of one that never ran."""
        stored, holds = await self.database.read(tool_states.load_with_holds, session_id)
        stored = stored if words else tool_health.without_words(stored)
        specs = self.specs(owner=owner, groups=groups).values()
        return self.judge(specs, stored, await self.failed_for_all(), holds, owner)

    async def set_by_person(
        self, connection: Connection, session_id: str, tool: str, status: ManualStatus, reason: str | None
    ) -> dict[str, Changed]:
        """Sets a status that no call changes, in the caller's transaction; `committed` comes after it."""
        now = self.clock()
        transition = partial(tool_health.set_by_person, now=now, status=status, reason=reason)
        return {tool: await tool_states.change_state(connection, session_id, tool, transition, now=now)}

    async def reset(self, connection: Connection, session_id: str, tools: Collection[str]) -> dict[str, Changed]:
        """Makes failed tools and those that a person has set available; `committed` comes after the transaction."""
        now, (stored, _) = self.clock(), await tool_states.load_with_holds(connection, session_id)
        return {
            tool: await tool_states.change_state(
                connection, session_id, tool, lambda health: tool_health.reset(health, now), known=stored[tool], now=now
            )
            for tool in sorted(stored.keys() & set(tools))
            if tool_health.needs_reset(stored[tool])
        }

    async def set_for_all(
        self, connection: Connection, tool: str, status: ManualStatus, reason: str | None, until: datetime | None
    ) -> None:
        """Sets a status over that of every session, which no call changes."""
        if status == "available":
            await tool_states.lift_holds(connection, [tool])
        else:
            await tool_states.set_hold(connection, tool, ToolHold(status, reason, until), now=self.clock())

    async def reset_in_sessions(self, tools: Collection[str]) -> None:
        """Resets tools in every session that holds something against them, batch by batch."""
        after: str | None = ""
        while after is not None:
            async with self.database.transaction() as connection:
                after, changes = await tool_states.reset_sessions(connection, tools, after=after, now=self.clock())
            for (_, tool), changed in changes.items():
                self.committed({tool: changed})

    def committed(self, changes: Mapping[str, Changed]) -> None:
        """Logs and counts changes by a person."""
        for tool, changed in changes.items():
            _log_change(tool, changed)
            if changed.moved:
                self.observe(SessionToolStateChanged(tool, changed.after.status))

    async def overview(
        self, specs: Specs, *, status: ToolStatus | None, after: StatePosition | None, limit: int
    ) -> tuple[dict[str, ToolOverview], list[SessionToolState]]:
        """Returns how each tool is doing for all, and the sessions' states that are not available, after a position.
        With a `status` only the tools that have it, for all or in a session. Without any words of sessions.
        """
        async with self.database.read_only() as connection:
            counted = await tool_states.count_by_status(connection, specs)
            found = await tool_states.list_not_available(connection, specs, status=status, after=after, limit=limit)
            sessions = await tool_states.load_states_of(connection, {session_id for session_id, _ in found})
            holds = await tool_states.load_holds(connection)
        for_all = await self.failed_for_all()
        alone = (replace(spec, depends_on=()) for spec in specs.values())
        tools = {
            # Only sessions count calls.
            name: ToolOverview(replace(state, consecutive_failures=None, execution_count=None), counted.get(name, {}))
            for name, state in self.judge(alone, for_all, {}, holds).items()
        }
        listed = []
        for session_id, tool in found:
            [state] = self.judge([specs[tool]], tool_health.without_words(sessions[session_id]), for_all, {}).values()
            listed.append(SessionToolState(session_id=session_id, tool=tool, **asdict(state)))
        if status is None:
            return tools, listed
        return {name: of for name, of in tools.items() if of.fleet.status == status or status in of.sessions}, listed


@dataclass(slots=True, eq=False)
class ToolGuard:
    """The tools of one turn: those of its agent and user, asked for before every model call and around every tool call.

    `who` are the user, their groups and the agent's id. `stored` holds the session's states as the turn's claim has
    read them, `page` the tools of the client's page. Only a session that `is_summarised` has anything to search that
    the model does not see, and only a turn that `proposes` or `ends` standing approvals has the tool for it.
    """

    _availability: ToolAvailability
    _turn: TurnKey
    _stored: Healths
    _: KW_ONLY
    holds: Holds
    agent: Agent
    who: tuple[str, tuple[str, ...], str]
    page: Mapping[str, Tool] = field(default_factory=dict)
    is_summarised: bool = False
    proposes: bool = False
    ends: bool = False
    chosen_names: tuple[str, ...] | None = None
    later_names: frozenset[str] = frozenset()
    _own: dict[str, Tool] = field(default_factory=dict)
    _failed_for_all: Healths = field(default_factory=dict)
    _probing: set[str] = field(default_factory=set)

    @property
    def groups(self) -> tuple[str, ...]:
        return self.who[1]

    def may_use(self, name: str) -> bool:
        """Whether the user may use a tool, also one that is away now."""
        tool = self._availability.tools(self.who[0]).get(name)
        is_closed = tool is not None and tool.audience is not None and not tool.audience.admits(*self.who)
        return self.agent.may_use(name) and not is_closed

    def state(self, spec: ToolSpec) -> ToolState:
        return self.states([spec])[spec.name]

    def states(self, specs: Iterable[ToolSpec]) -> dict[str, ToolState]:
        return self._availability.judge(specs, self._stored, self._failed_for_all, self.holds, self.who[0])

    def tools(self) -> Mapping[str, Tool]:
        tools = self._availability.tools_for(*self.who)
        if not self.agent.may_use_all:
            tools = {name: tool for name, tool in tools.items() if self.agent.may_use(name)}
        rare = {
            SEARCH_CONVERSATION.name: self.is_summarised,
            domain.PROPOSE_MANDATE: self.proposes,
            domain.END_MANDATES: self.ends,
        }
        last = {name: tools[name] for name, has_it in rare.items() if has_it and name in tools}
        tools = {name: tool for name, tool in tools.items() if name not in rare} | last  # requests begin as they did
        if not (self._own or self.page):
            return tools
        return {**tools, **self._own, **{name: tool for name, tool in self.page.items() if name not in tools}}

    def choose(self, names: Sequence[str], own: Iterable[Tool], later: Collection[str] = ()) -> None:
        """Requests have the turn's `own` tools and these, in this order; messages tell of those that came `later`."""
        self.chosen_names, self.later_names = (*names, *later), frozenset(later)
        self._own = {tool.spec.name: tool for tool in own}

    def chosen(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """Returns those of the tools that requests may have: all of them, unless some were chosen."""
        if self.chosen_names is None:
            return tools
        names = (*self._own, *self.chosen_names, *self.page, domain.PROPOSE_MANDATE, domain.END_MANDATES)
        return {name: tools[name] for name in names if name in tools}

    def offered(self, tools: Mapping[str, Tool]) -> list[ToolSpec]:
        """Returns the tools that requests begin with and that may run now. Those that others unlock come last, so that
        one is only ever appended: providers cache a request from its beginning.
        """
        chosen = self.chosen(tools)
        states = self.states(tool.spec for tool in chosen.values())
        now = [tool.spec for name, tool in chosen.items() if states[name].available and name not in self.later_names]
        return now if self.chosen_names else sorted(now, key=lambda spec: bool(spec.depends_on))

    async def load_global_state(self) -> None:
        """Asks Redis only if some tool has failed for all: it may work again by now."""
        everywhere = self._availability.everywhere
        self._failed_for_all = await everywhere.load() if everywhere.known else {}

    async def refresh(self) -> None:
        """Loads changes by people and other processes, right before something runs."""
        loaded, self.holds = await self._availability.database.read(tool_states.load_with_holds, self._turn.session_id)
        newer = {tool: own for tool, own in self._stored.items() if own.version > loaded.get(tool, NEVER_RAN).version}
        self._stored = loaded | newer  # a call may have ended while this was read
        self._failed_for_all = await self._availability.failed_for_all()

    @asynccontextmanager
    async def admitting(self, spec: ToolSpec) -> AsyncIterator[str | None]:
        """Yields why the tool may not run now, or None. Holds the one probe of a half-open tool meanwhile."""
        state = self.state(spec)
        if state.reason_code != "half_open":
            yield refusal(spec, state)
        elif spec.name in self._probing:
            yield _being_probed(spec)
        else:
            self._probing.add(spec.name)
            everywhere, settings = self._availability.everywhere, self._availability.settings
            longest_s = spec.max_timeout_s or LONGEST * (spec.timeout_s or settings.tool_timeout_s)
            try:
                async with everywhere.probe(spec.name, self._turn.turn_id, ttl_s=longest_s + PROBE_SLACK_S) as alone:
                    await self.refresh()
                    yield refusal(spec, self.state(spec)) if alone else _being_probed(spec)
            finally:
                self._probing.discard(spec.name)

    async def record(self, connection: Connection, spec: ToolSpec, outcome: CallOutcome) -> Changed | None:
        """Counts an outcome in the transaction that stores it; returns None if it says nothing about the tool."""
        if not tool_health.counts(outcome):
            return None
        now, settings = self._availability.clock(), self._availability.settings
        before = tool_health.successes(self._stored)
        marks = tool_health.marks_of_success(spec.name, self._availability.specs().values(), before)
        after = partial(tool_health.after_call, outcome=outcome, now=now, settings=settings, marks=marks)
        return await self._change(connection, spec, after, now)

    async def committed(self, spec: ToolSpec, changed: Changed) -> None:
        """Takes a recorded outcome over, for this turn and for all sessions."""
        self.take_over(spec, changed)
        health, everywhere = changed.after, self._availability.everywhere
        if health.consecutive_failures == 0:
            self._failed_for_all = {name: kept for name, kept in self._failed_for_all.items() if name != spec.name}
            await everywhere.record_success(spec.name)
        else:
            failed_in = self._turn.session_id if health.status == "failed" else None
            await everywhere.record_failure(spec.name, failed_in, now=self._availability.clock())
            self._failed_for_all = await everywhere.load()

    async def mark_refused(self, connection: Connection, spec: ToolSpec, why: str) -> Changed:
        """Takes a tool out of the session that the model's endpoint does not take; `take_over` comes after it."""
        now = self._availability.clock()
        return await self._change(connection, spec, lambda health: tool_health.refused_by_model(health, now, why), now)

    def take_over(self, spec: ToolSpec, changed: Changed) -> None:
        self._stored = {**self._stored, spec.name: changed.after}
        _log_change(spec.name, changed)

    async def _change(self, connection: Connection, spec: ToolSpec, change: Transition, now: datetime) -> Changed:
        known = self._stored.get(spec.name, NEVER_RAN)
        return await tool_states.change_state(
            connection, self._turn.session_id, spec.name, change, known=known, turn_id=self._turn.turn_id, now=now
        )

    def summary(self) -> dict[str, Any]:
        """Returns log fields on a turn's tools: how many may run, and the names of those that may not."""
        found = self.states(tool.spec for tool in self.tools().values())
        closed = {name: state for name, state in found.items() if not state.available}
        blocked = [name for name, state in closed.items() if tool_health.is_blocked(state)]
        locked = [name for name in closed if name not in blocked]
        return {"tools_available": len(found) - len(closed), "tools_blocked": blocked, "tools_locked": locked}


def refusal(spec: ToolSpec, state: ToolState) -> str | None:
    """Returns the model's text on a tool that may not run now; None for one that may."""
    if state.available:
        return None
    if state.reason_code == "missing_dependencies":
        return f"{spec.name} cannot run now. {state.reason}"
    reason = (state.reason or state.status).rstrip(".")
    return f"{spec.name} cannot run now: {reason}. What helps: {'; '.join(state.suggested_actions)}."


def _being_probed(spec: ToolSpec) -> str:
    return f"{spec.name} has failed and is just being tried again by another call. Go on without it for now."


def _log_change(tool: str, changed: Changed) -> None:
    if changed.moved:
        before, after = changed.before.status, changed.after
        log.info("tool_state_changed", tool=tool, before=before, after=after.status, reason_code=after.reason_code)
