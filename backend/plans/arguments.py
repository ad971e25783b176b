"""The arguments of a step, made whole just before it starts. Pure: it is given what earlier steps produced.

`{"$from": 1, "path": "emails[0].id"}` is what step 1 gave, at that JMESPath; without a path it is the whole of it.
"""

from collections.abc import Mapping
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from backend.plans.draft import REFERENCE


class Unresolved(Exception):
    """Says which argument cannot be had, and why."""


def resolve(args: Mapping[str, Any] | None, results: Mapping[int, Any]) -> dict[str, Any]:
    """Plain arguments. One whose reference leads to nothing is left out, to be filled from what there is.

    Raises Unresolved for a step without a result and for a path that is not JMESPath.
    """
    given = args or {}
    resolved = {name: _resolved(value, results) for name, value in given.items()}
    return {name: value for name, value in resolved.items() if value is not None or given[name] is None}


def missing(args: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """The required arguments that are not there."""
    return [name for name in schema.get("required", ()) if name not in args]


def _resolved(value: Any, results: Mapping[int, Any]) -> Any:
    if isinstance(value, dict) and REFERENCE in value:
        return _referred(value, results)
    if isinstance(value, dict):
        return {key: _resolved(item, results) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, results) for item in value]
    return value


def _referred(reference: Mapping[str, Any], results: Mapping[int, Any]) -> Any:
    step, path = reference[REFERENCE], reference.get("path")
    if step not in results:
        raise Unresolved(f"step {step} has no result to refer to")
    if not path:
        return results[step]
    try:
        return jmespath.search(str(path), results[step])
    except JMESPathError as error:
        raise Unresolved(f"{str(path)[:200]!r} is not JMESPath") from error
