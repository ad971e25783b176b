"""Families of tests of one thing: a few members in every run, all of them with SWEEP=1 or if the test is named."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, members: Iterable[Any]) -> list[Any]:
    """Arguments for `parametrize`, of which those after the first `count` are a sweep."""
    found = list(members)
    return [*found[:count], *(_swept(each) for each in found[count:])]


def _swept(member: Any) -> Any:
    values = member if isinstance(member, tuple) else (member,)
    return pytest.param(*values, marks=pytest.mark.sweep)
