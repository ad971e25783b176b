"""What rows hold of a dataclass: a member that has its default is left out, and reading.py's readers fill it in.

So a default is part of what is stored: with another one, rows that were written before would say something else.
"""

from dataclasses import fields, is_dataclass
from typing import Any, Final

# The figures of operators count turns by it, in this release and in the one before.
_ALWAYS_STORED: Final = frozenset({"llm_calls"})


def without_defaults(value: Any) -> Any:
    """Returns members of a dataclass, and of dataclasses that are members of it. Anything else is returned as it is."""
    if not is_dataclass(value):
        return value
    members = [(each, getattr(value, each.name)) for each in fields(value)]
    return {
        each.name: without_defaults(member)
        for each, member in members
        if member != each.default or each.name in _ALWAYS_STORED
    }
