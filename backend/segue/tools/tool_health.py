"""Whether a tool may run now, and why not; how calls and people change its status; the tools it depends on. Pure. A
status set by a person stays through any success or failure. Groups are ANDed; only their required members decide.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal

from pydantic import AwareDatetime

from segue.domain.tool import DependencyGroup, ManualStatus, ReasonCode, ToolSpec, ToolState, ToolStatus
from segue.tools.run import CallOutcome
from segue.tools.tool_settings import ToolSettings

MAX_REASON_CHARS: Final = 500
BY_HAND: Final = frozenset({"unavailable", "maintenance"})
SUCCEEDED: Final = "Its last call succeeded."
TO_THE_SECOND: Final = "%Y-%m-%dT%H:%M:%SZ"
_TIMES: Final = ("last_updated", "last_success_time", "last_failure_time")
_KEPT: Final = ("consecutive_failures", "execution_count", *_TIMES)


@dataclass(frozen=True, slots=True)
class ToolHealth:
    """The stored health of a tool, in a session or for all."""

    status: ToolStatus = "available"
    reason: str | None = None  # of the last call that counted or of what a person did since
    reason_code: ReasonCode | None = None  # of the last change of status
    consecutive_failures: int = 0
    execution_count: int = 0
    failed_at: AwareDatetime | None = None  # when it became failed, or its last probe failed
    last_updated: AwareDatetime | None = None
    last_success_time: AwareDatetime | None = None
    last_failure_time: AwareDatetime | None = None
    marks: tuple[str, ...] = ()  # the sequences in which it has succeeded at its place
    version: int = 0  # that of its row, 0 if it has none


@dataclass(frozen=True, slots=True)
class ToolHold:
    """A tool's status that operators set for all sessions. It ends by itself at `until`, if that is given."""

    status: Literal["unavailable", "maintenance"]
    reason: str | None = None
    until: AwareDatetime | None = None

    def lasts(self, now: datetime) -> bool:
        return self.until is None or now < self.until


Healths = Mapping[str, ToolHealth]
Successes = Mapping[str, Collection[str]]  # the tools that have succeeded, each with its marks
Groups = Sequence[DependencyGroup]
ServerAway = tuple[str, datetime | None]  # why a server's tools cannot be called now; until when, if it has said so

NEVER_RAN: Final = ToolHealth()
# Of a tool without dependencies of which nothing is known: of most tools in most sessions.
UNTOUCHED: Final = ToolState(
    status="available", available=True, reason=None, reason_code=None, consecutive_failures=0, execution_count=0,
    last_updated=None, last_success_time=None, last_failure_time=None, retry_at=None, missing_dependencies=(),
    suggested_actions=(),
)  # fmt: skip


def tool_state(
    spec: ToolSpec,
    session: Healths,
    fleet: Healths,
    *,
    now: datetime,
    settings: ToolSettings,
    hold: ToolHold | None = None,
    away: ServerAway | None = None,
) -> ToolState:
    """Returns whether a tool may run now, and if not, why and what would help. `session` and `fleet` hold the tools
    with a history, there and for all. `away` says why its server cannot be asked.
    """
    hold = hold if hold and hold.lasts(now) else None
    own = session.get(spec.name, NEVER_RAN)
    kept = {name: getattr(own, name) for name in _KEPT}
    state = replace(UNTOUCHED, status=hold.status if hold else own.status, **kept)
    state = _judged(state, own, fleet.get(spec.name, NEVER_RAN), hold, away, now, settings)
    done = successes(session) if spec.depends_on else {}
    if missing := missing_members(spec.depends_on, done):
        state = replace(state, missing_dependencies=missing)
        if state.available:
            unlocking = [to_unlock(group, done) for group in unsatisfied(spec.depends_on, done)]
            reason = f"To unlock: {'; '.join(unlocking)}."
            return _closed(state, reason, "missing_dependencies", *unlocking, retry_at=state.retry_at)
    elif spec.depends_on and state.available and state.reason is None:
        met = (name for group in spec.depends_on for name in group.tools if name in done)
        return replace(state, reason=f"Unlocked, since these have succeeded: {', '.join(dict.fromkeys(met))}.")
    return state


def _judged(  # noqa: PLR0911 (one for each cause)
    state: ToolState,
    own: ToolHealth,
    for_all: ToolHealth,
    hold: ToolHold | None,
    away: ServerAway | None,
    now: datetime,
    settings: ToolSettings,
) -> ToolState:
    """Returns the first of these to decide: operators, a person or the model's endpoint, the server, failures."""
    if hold is not None:
        until = f"{hold.until:{TO_THE_SECOND}}" if hold.until else "an operator sets it to available again"
        reason = hold.reason or f"Set to {hold.status} for all by an operator."
        return _closed(state, reason, "set_for_all", f"wait until {until}", retry_at=hold.until)
    if own.status in BY_HAND and own.reason_code == "refused_by_model":
        action = "reset it once its definition has changed or another model answers"
        return _closed(state, own.reason, own.reason_code, action)
    if own.status in BY_HAND:
        reason = own.reason or f"Set to {own.status} by a person."
        return _closed(state, reason, "set_by_person", "wait until a person sets it to available again")
    if away is not None:
        reason, retry_at = away
        advice = f"wait until {retry_at:{TO_THE_SECOND}}" if retry_at else "wait: its server is tried again by itself"
        return _closed(state, reason[:MAX_REASON_CHARS], "server_away", advice, retry_at=retry_at)
    failed_at = [each.failed_at for each in (own, for_all) if each.status == "failed" and each.failed_at is not None]
    if not failed_at:
        return replace(state, reason=_reason_it_may_run(own, settings), reason_code=own.reason_code)
    shown = own if own.status == "failed" else for_all  # the session's own reason says more
    retry_at = max(failed_at) + timedelta(seconds=settings.tool_failure_duration_s)
    if now >= retry_at:
        tried = shown.reason and f"To be tried once: {shown.reason}"
        return replace(state, reason=tried, reason_code="half_open", retry_at=retry_at)
    actions = f"wait until {retry_at:{TO_THE_SECOND}}, then it is tried once", "reset it if the cause is mended"
    return _closed(state, shown.reason, shown.reason_code, *actions, retry_at=retry_at)


def _closed(
    state: ToolState, reason: str | None, code: ReasonCode | None, *advice: str, retry_at: datetime | None = None
) -> ToolState:
    return replace(state, available=False, reason=reason, reason_code=code, suggested_actions=advice, retry_at=retry_at)


def _reason_it_may_run(own: ToolHealth, settings: ToolSettings) -> str | None:
    """Returns how its last call ended, or what a person did since; None if it has not been called since a reset."""
    if own.consecutive_failures > 0:
        counted = f"{own.consecutive_failures} of {settings.tool_failure_threshold} failures in a row that fail it"
        return f"{counted}: {own.reason}" if own.reason else f"{counted}."
    return own.reason or (SUCCEEDED if own.last_success_time and own.reason_code != "reset" else None)


def needs_reset(health: ToolHealth) -> bool:
    return health.status != "available" or health.consecutive_failures > 0 or health.reason_code == "state_unreadable"


def is_blocked(state: ToolState) -> bool:
    """Whether the tool cannot run now, whatever else the agent does in this session."""
    return not state.available and state.reason_code != "missing_dependencies"


def without_words(session: Healths) -> dict[str, ToolHealth]:
    """Returns the tools without their reasons, which may quote a user's call or words."""
    return {name: replace(health, reason=None) for name, health in session.items()}


def successes(session: Healths) -> Successes:
    """Returns the tools that have succeeded in the session, each with its marks."""
    return {name: health.marks for name, health in session.items() if health.last_success_time is not None}


def counts(outcome: CallOutcome) -> bool:
    """Whether an outcome says anything about the tool: refused calls and those with bad arguments never reached it."""
    return outcome.status == "succeeded" or outcome.fault in ("tool", "unauthorized")


def after_call(
    health: ToolHealth, outcome: CallOutcome, now: datetime, *, settings: ToolSettings, marks: tuple[str, ...] = ()
) -> ToolHealth:
    """Returns the health after a call; `marks` are the sequences in which a success would stand at its place. A refused
    credential fails the tool at once, a failed probe fails it again.
    """
    if not counts(outcome):
        return health
    counted = replace(health, execution_count=health.execution_count + 1, last_updated=now)
    if outcome.status == "succeeded":
        known = tuple(dict.fromkeys((*health.marks, *marks)))
        counted = replace(counted, consecutive_failures=0, last_success_time=now, marks=known)
        if health.status in BY_HAND:
            return counted
        return _available(counted, "succeeded" if health.status == "failed" else None, SUCCEEDED)
    counted = replace(counted, consecutive_failures=health.consecutive_failures + 1, last_failure_time=now)
    if health.status in BY_HAND:
        return counted
    counted = replace(counted, reason=(outcome.error or "")[:MAX_REASON_CHARS])
    is_refused = outcome.fault == "unauthorized"
    if not is_refused and counted.consecutive_failures < settings.tool_failure_threshold and health.status != "failed":
        return counted
    code: ReasonCode = "unauthorized" if is_refused else "consecutive_failures"
    return replace(counted, status="failed", reason_code=code, failed_at=now)


def set_by_person(health: ToolHealth, now: datetime, status: ManualStatus, reason: str | None) -> ToolHealth:
    """Returns the health with a status that only a person lifts again."""
    reason = reason or f"Set to {status} by a person."
    return replace(_available(health, "set_by_person", reason), status=status, consecutive_failures=0, last_updated=now)


def refused_by_model(health: ToolHealth, now: datetime, why: str) -> ToolHealth:
    """Returns the health of a tool that the model's endpoint refuses to be offered. Only a person lifts that."""
    if health.status in BY_HAND:
        return health
    reason = f"The model's endpoint refuses it: {why}"[:MAX_REASON_CHARS]
    return replace(_available(health, "refused_by_model", reason), status="unavailable", last_updated=now)


def reset(health: ToolHealth, now: datetime) -> ToolHealth:
    """Returns the health as available, without failures. Successes in the session still count."""
    return replace(_available(health, "reset", None), consecutive_failures=0, last_updated=now)


def _available(health: ToolHealth, code: ReasonCode | None, reason: str | None) -> ToolHealth:
    return replace(health, status="available", reason=reason, reason_code=code, failed_at=None)


def unsatisfied(groups: Groups, successes: Successes) -> tuple[DependencyGroup, ...]:
    return tuple(group for group in groups if _missing(group, successes))


def missing_members(groups: Groups, successes: Successes) -> tuple[str, ...]:
    """Returns the tools that still have to succeed; of an `any` group, all of which one is enough."""
    return tuple(dict.fromkeys(name for group in unsatisfied(groups, successes) for name in _missing(group, successes)))


def to_unlock(group: DependencyGroup, successes: Successes) -> str:
    """Returns the way to satisfy a group, as in `run find, then open first`."""
    missing = _missing(group, successes)
    match group.type:
        case "any":
            advice = f"run one of {', '.join(missing)} first" if len(missing) > 1 else f"run {missing[0]} first"
        case "all":
            advice = f"run {' and '.join(missing)} first"
        case "sequence":
            advice = f"run {', then '.join(missing)} first"
    hints = [name for name in group.optional if name not in successes]
    return f"{advice} ({', '.join(hints)} may help)" if hints else advice


def marks_of_success(name: str, specs: Iterable[ToolSpec], successes: Successes) -> tuple[str, ...]:
    """Returns the keys of the sequences in which a success of this tool would now be at its place."""
    keys = []
    for group in (group for spec in specs for group in spec.depends_on if group.type == "sequence"):
        place = group.tools.index(name) if name in group.tools else -1
        if place == 0 or (place > 0 and _key(group) in successes.get(group.tools[place - 1], ())):
            keys.append(_key(group))
    return tuple(dict.fromkeys(keys))


def check_groups(depends_on: Mapping[str, Groups]) -> None:
    """Raises ValueError, with the names, for groups that could never be satisfied or never decide."""
    for tool, group in ((tool, group) for tool, groups in depends_on.items() for group in groups):
        members = (*group.tools, *group.optional)
        if not members:
            raise ValueError(f"a dependency group of {tool} is empty: name the tools it needs, or remove it")
        if not group.tools:
            raise ValueError(
                f"a dependency group of {tool} has optional members only, which never decide "
                f"({', '.join(group.optional)}): name a required tool, or remove it"
            )
        if len(set(members)) < len(members):
            raise ValueError(f"a dependency group of {tool} names a tool twice: {', '.join(members)}")
    required = {tool: {name for group in groups for name in group.tools} for tool, groups in depends_on.items()}
    try:
        TopologicalSorter(required).prepare()
    except CycleError as error:
        raise ValueError(f"the dependencies go round in a circle: {' → '.join(error.args[1])}") from None


def unknown_members(depends_on: Mapping[str, Groups], known: Collection[str]) -> tuple[str, ...]:
    """Returns the names of dependents and of members that are no tool's."""
    members = (name for groups in depends_on.values() for group in groups for name in (*group.tools, *group.optional))
    return tuple(dict.fromkeys(name for name in (*depends_on, *members) if name not in known))


def _missing(group: DependencyGroup, successes: Successes) -> tuple[str, ...]:
    """Returns the missing members of a group, none if it is satisfied."""
    match group.type:
        case "any":
            return () if any(name in successes for name in group.tools) else group.tools
        case "all":
            return tuple(name for name in group.tools if name not in successes)
        case "sequence" if _key(group) in successes.get(group.tools[-1], ()):
            return ()
        case "sequence":
            return tuple(name for name in group.tools if _key(group) not in successes.get(name, ()))


def _key(group: DependencyGroup) -> str:
    return ">".join(group.tools)
