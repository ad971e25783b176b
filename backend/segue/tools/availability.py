"""How the tools of a session stand, for one turn: what may be offered, what may run, and what a call makes of it.

Joins the session tier (`states.py`), the fleet tier (`fleet.py`) and the rules (`health.py`). The agent asks it before
every model call and around every tool call; whether a person has to say yes is not its matter.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.domain.tool import Tool, ToolSpec
from segue.domain.tool_state import ToolState
from segue.tools.catalog import ToolCatalog
from segue.tools.dependencies import marks_of_success
from segue.tools.global_state import Fleet
from segue.tools.health import (
    HealthRules,
    ToolHealth,
    after_call,
    counts,
    is_blocked,
    successes,
    tool_state,
)
from segue.tools.outcome import Outcome
from segue.tools.states import Changed, StoredHealth, change_state, healths, load_states, log_move

TRY_SLACK_S: Final = 5.0
UNSTORED: Final = StoredHealth()

NewGuard = Callable[..., "ToolGuard"]  # of a session and a turn, by the keywords below


class ToolGuard:
    """`stored` is the session's states as the snapshot had them; `timeout_s` limits a call whose tool does not."""

    def __init__(
        self,
        catalog: ToolCatalog,
        database: Database,
        fleet: Fleet,
        rules: HealthRules,
        clock: Callable[[], datetime],
        *,
        session_id: str,
        turn_id: str,
        stored: Mapping[str, StoredHealth],
        timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._database = database
        self._fleet = fleet
        self._rules = rules
        self._clock = clock
        self._session_id = session_id
        self._turn_id = turn_id
        self._timeout_s = timeout_s
        self._stored = dict(stored)
        self._failed_for_all: Mapping[str, ToolHealth] = {}
        self._tried: set[str] = set()

    def tools(self) -> Mapping[str, Tool]:
        return self._catalog.tools()

    def state(self, spec: ToolSpec) -> ToolState:
        return tool_state(spec, healths(self._stored), self._failed_for_all, now=self._clock(), rules=self._rules)

    def states(self, tools: Iterable[Tool]) -> dict[str, ToolState]:
        session, now = healths(self._stored), self._clock()
        return {
            tool.spec.name: tool_state(tool.spec, session, self._failed_for_all, now=now, rules=self._rules)
            for tool in tools
        }

    async def look_at_fleet(self) -> None:
        self._failed_for_all = await self._fleet.load()

    async def refresh(self) -> None:
        """What people and other instances have changed since: the truth right before something runs."""
        async with self._database.read_only() as connection:
            loaded = await load_states(connection, self._session_id)
        newer = {tool: ours for tool, ours in self._stored.items() if ours.version > loaded.get(tool, UNSTORED).version}
        self._stored = loaded | newer  # a call may have ended while this was read
        await self.look_at_fleet()

    @asynccontextmanager
    async def admitting(self, spec: ToolSpec) -> AsyncIterator[str | None]:
        """Gives why the tool may not run now, or None. Of a half-open tool it holds the fleet's one try meanwhile."""
        state = self.state(spec)
        if state.reason_code != "half_open":
            yield refusal(spec, state)
        elif spec.name in self._tried:
            yield _being_tried(spec)
        else:
            self._tried.add(spec.name)
            try:
                async with self._fleet.trying(spec.name, self._turn_id, ttl_s=self._longest_s(spec)) as alone:
                    await self.refresh()
                    yield refusal(spec, self.state(spec)) if alone else _being_tried(spec)
            finally:
                self._tried.discard(spec.name)

    async def record(self, connection: AsyncConnection, spec: ToolSpec, outcome: Outcome) -> Changed | None:
        """Counts an outcome in the transaction that stores it; None for one that says nothing about the tool."""
        if not counts(outcome):
            return None
        now, specs = self._clock(), [tool.spec for tool in self.tools().values()]
        marks = marks_of_success(spec.name, specs, successes(healths(self._stored)))

        def transition(health: ToolHealth) -> ToolHealth:
            return after_call(health, outcome, now, rules=self._rules, marks=marks)

        known = self._stored.get(spec.name, UNSTORED)
        return await change_state(
            connection, self._session_id, spec.name, transition, known=known, turn_id=self._turn_id, now=now
        )

    async def settle(self, spec: ToolSpec, changed: Changed) -> None:
        """After the commit: this turn goes on with the new state, and the fleet hears of it."""
        self._stored[spec.name] = changed.after
        health = changed.after.health
        log_move(spec.name, changed)
        if health.consecutive_failures == 0:
            self._failed_for_all = {name: kept for name, kept in self._failed_for_all.items() if name != spec.name}
            await self._fleet.succeeded(spec.name)
        else:
            failed_out = self._session_id if health.status == "failed" else None
            await self._fleet.failed(spec.name, failed_out, now=self._clock())
            await self.look_at_fleet()

    def summary(self) -> dict[str, Any]:
        """What the log says of a turn's tools: how many may run, and the names of those that may not."""
        states = self.states(self.tools().values())
        locked = [name for name, state in states.items() if state.reason_code == "missing_dependencies"]
        blocked = [name for name, state in states.items() if is_blocked(state)]
        free = len(states) - len(locked) - len(blocked)
        return {"tools_available": free, "tools_blocked": blocked, "tools_locked": locked}

    def _longest_s(self, spec: ToolSpec) -> float:
        """What a call may take at most, until its outcome is stored."""
        return (spec.timeout_s or self._timeout_s) + TRY_SLACK_S


def refusal(spec: ToolSpec, state: ToolState) -> str | None:
    """What a caller is told of a tool that may not run now."""
    if state.available:
        return None
    if state.reason_code == "missing_dependencies":
        return f"{spec.name} cannot run now. {state.reason}"
    reason = (state.reason or state.status).rstrip(".")
    return f"{spec.name} cannot run now: {reason}. What helps: {'; '.join(state.suggested_actions)}."


def _being_tried(spec: ToolSpec) -> str:
    return f"{spec.name} has failed and is just being tried again by another call. Go on without it for now."
