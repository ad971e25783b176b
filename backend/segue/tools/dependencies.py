"""What has to have succeeded in a session before a tool may run. Pure.

Groups are ANDed; only their required members decide. A sequence is followed by its members themselves: a success at its
place, after those before it, is marked with the sequence's key. Above stands `health.py`, which keeps the marks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from segue.domain.tool import DependencyGroup, ToolSpec

Successes = Mapping[str, Collection[str]]  # the tools that have succeeded, each with its marks
Groups = Sequence[DependencyGroup]


def unsatisfied(groups: Groups, successes: Successes) -> tuple[DependencyGroup, ...]:
    return tuple(group for group in groups if not _is_satisfied(group, successes))


def missing_members(groups: Groups, successes: Successes) -> tuple[str, ...]:
    """The tools that are still to succeed; of an `any` group, every one that would do."""
    return tuple(dict.fromkeys(name for group in unsatisfied(groups, successes) for name in _missing(group, successes)))


def to_unlock(group: DependencyGroup, successes: Successes) -> str:
    """What to do about a group that is not satisfied, as in `run find, then open first`."""
    missing = _missing(group, successes)
    match group.type:
        case "any":
            said = f"run one of {', '.join(missing)} first" if len(missing) > 1 else f"run {missing[0]} first"
        case "all":
            said = f"run {' and '.join(missing)} first"
        case "sequence":
            said = f"run {', then '.join(missing)} first"
    hints = [name for name in group.optional if name not in successes]
    return f"{said} ({', '.join(hints)} may help)" if hints else said


def marks_of_success(name: str, specs: Iterable[ToolSpec], successes: Successes) -> tuple[str, ...]:
    """The keys of the sequences in which a success of this tool now would stand at its place."""
    keys = []
    for group in _sequences(specs):
        place = group.tools.index(name) if name in group.tools else -1
        if place == 0 or (place > 0 and _key(group) in successes.get(group.tools[place - 1], ())):
            keys.append(_key(group))
    return tuple(dict.fromkeys(keys))


def check_groups(depends_on: Mapping[str, Groups]) -> None:
    """Raises ValueError, with the names, for what could never be satisfied or never decides."""
    for tool, groups in depends_on.items():
        for group in groups:
            _check_group(tool, group)
    required = {tool: {name for group in groups for name in group.tools} for tool, groups in depends_on.items()}
    try:
        TopologicalSorter(required).prepare()
    except CycleError as error:
        raise ValueError(f"the dependencies go round in a circle: {' → '.join(error.args[1])}") from None


def unknown_members(depends_on: Mapping[str, Groups], known: Collection[str]) -> tuple[str, ...]:
    """The names in it, of dependents and of members, that are no tool's."""
    members = (name for groups in depends_on.values() for group in groups for name in (*group.tools, *group.optional))
    return tuple(dict.fromkeys(name for name in (*depends_on, *members) if name not in known))


def _check_group(tool: str, group: DependencyGroup) -> None:
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


def _is_satisfied(group: DependencyGroup, successes: Successes) -> bool:
    match group.type:
        case "any":
            return any(name in successes for name in group.tools)
        case "all":
            return all(name in successes for name in group.tools)
        case "sequence":
            return _key(group) in successes.get(group.tools[-1], ())


def _missing(group: DependencyGroup, successes: Successes) -> tuple[str, ...]:
    match group.type:
        case "any":
            return group.tools
        case "all":
            return tuple(name for name in group.tools if name not in successes)
        case "sequence":
            return tuple(name for name in group.tools if _key(group) not in successes.get(name, ()))


def _sequences(specs: Iterable[ToolSpec]) -> Iterable[DependencyGroup]:
    return (group for spec in specs for group in spec.depends_on if group.type == "sequence")


def _key(group: DependencyGroup) -> str:
    return ">".join(group.tools)
