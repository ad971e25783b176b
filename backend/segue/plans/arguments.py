"""Resolves the references in the arguments of a step, just before it starts. It gets the earlier results.

`{"$from": 1, "path": "emails[0].id"}` is the result of step 1 at that JMESPath, without a path the whole result. What a
result is, only `at_path` knows.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from segue.plans.plan_parser import REFERENCE

MAX_BYTES = 1_000_000  # of the arguments of a step, about what a model can write itself

AtPath = Callable[[Any, str], Awaitable[Any]]


class Unresolved(Exception):
    """A reference to a step without a result, or to too much; the text says which."""


class _NoValue(Exception):
    """There is nothing at the path of a reference."""


async def resolve(args: Mapping[str, Any] | None, results: Mapping[int, Any], *, at_path: AtPath) -> dict[str, Any]:
    """Returns plain arguments, without those whose references lead to nothing: the model fills them in.

    Raises Unresolved for a step without a result and for more than MAX_BYTES, and what `at_path` raises.
    """
    resolved: dict[str, Any] = {}
    for name, value in (args or {}).items():
        with suppress(_NoValue):
            resolved[name] = await _resolved(value, results, at_path)
    if _is_large(resolved):
        raise Unresolved(f"its arguments are over {MAX_BYTES // 10**6} MB: refer to a part of a result by a path")
    return resolved


def _is_large(value: Any) -> bool:
    """Whether a value is over MAX_BYTES, told without writing it: a thousand references may lead to one result."""
    left, unseen = MAX_BYTES, [value]
    while unseen and left > 0:
        match unseen.pop():
            case str() as text:
                left -= len(text)
            case dict() as members:
                unseen += (*members, *members.values())
            case list() as items:
                unseen += items
        left -= 4
    return left <= 0


def referred_to(value: Any) -> set[int]:
    """Returns the ids of the steps whose results these arguments refer to."""
    match value:
        case dict() if REFERENCE in value:
            return {value[REFERENCE]} if isinstance(value[REFERENCE], int) else set()
        case dict():
            return set().union(*map(referred_to, value.values()))
        case list():
            return set().union(*map(referred_to, value))
        case _:
            return set()


def missing(args: Mapping[str, Any], schema: Mapping[str, Any], planned: Iterable[str] = ()) -> list[str]:
    """Returns the names of required and planned arguments that are absent: without them it would be another call."""
    return [name for name in dict.fromkeys((*schema.get("required", ()), *planned)) if name not in args]


async def _resolved(value: Any, results: Mapping[int, Any], at_path: AtPath) -> Any:
    if isinstance(value, dict) and REFERENCE in value:
        return await _referred(value, results, at_path)
    if isinstance(value, dict):
        return {key: await _resolved(item, results, at_path) for key, item in value.items()}
    if isinstance(value, list):
        return [await _resolved(item, results, at_path) for item in value]
    return value


async def _referred(reference: Mapping[str, Any], results: Mapping[int, Any], at_path: AtPath) -> Any:
    step, path = reference[REFERENCE], reference.get("path")
    if not isinstance(step, int) or step not in results:
        raise Unresolved(f"step {step} has no result to refer to")
    found = await at_path(results[step], str(path or ""))
    if found is None and path:
        raise _NoValue
    return found
