"""Which tools have to succeed in a session before another may run. Pure.

Groups are ANDed; only their required members decide. A success at its place in a sequence, after those before it, is
marked with the sequence's key; `health.py` keeps the marks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from segue.domain.tool import DependencyGroup, ToolSpec

Successes = Mapping[str, Collection[str]]  # the tools that have succeeded, each with its marks
Groups = Sequence[DependencyGroup]


def unsatisfied(groups: Groups, successes: Successes) -> tuple[DependencyGroup, ...]:
    return tuple(group for group in groups if not _is_satisfied(group, successes))


def missing_members(groups: Groups, successes: Successes) -> tuple[str, ...]:
    """Returns the tools that still have to succeed; of an `any` group, all of which one is enough."""
    return tuple(dict.fromkeys(name for group in unsatisfied(groups, successes) for name in _missing(group, successes)))


def to_unlock(group: DependencyGroup, successes: Successes) -> str:
    """Returns what satisfies a group, as in `run find, then open first`."""
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
    for tool, groups in depends_on.items():
        for group in groups:
            _check_group(tool, group)
    required = {tool: {name for group in groups for name in group.tools} for tool, groups in depends_on.items()}
    try:
        TopologicalSorter(required).prepare()
    except CycleError as error:
        raise ValueError(f"the dependencies go round in a circle: {' → '.join(error.args[1])}") from None


def unknown_members(depends_on: Mapping[str, Groups], known: Collection[str]) -> tuple[str, ...]:
    """Returns the names of dependents and of members that are no tool's."""
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


def _key(group: DependencyGroup) -> str:
    return ">".join(group.tools)
