"""Families of tests of one thing: a few members in every run, all of them with SWEEP=1 or if the test is named."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

import pytest


def first(count: int, members: Iterable[Any]) -> list[Any]:
    """Arguments for `parametrize`, of which those after the first `count` are a sweep."""
    found = list(members)
    return [*found[:count], *(_swept(each) for each in found[count:])]


def left_out(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that are swept only. Of the members of a test that is marked `in_turns` those run that have a value of
    a parameter which no other has yet, `in_turns(2)` at most two of them. Where they begin goes by the test's name, so
    that of tests over the same protocols not all run over the first.
    """
    families: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep"):
            yield item
        elif isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("in_turns"):
            families[item.nodeid.partition("[")[0]].append(item)
    for name, members in families.items():
        mark = members[0].get_closest_marker("in_turns")
        assert mark is not None
        begin = crc32(name.encode()) % len(members)
        values = [_values(each) for each in members]
        taken = _in_turns([*values[begin:], *values[:begin]], *mark.args)
        yield from (each for each, own in zip(members, values, strict=True) if own not in taken)


def _values(item: pytest.Function) -> frozenset[tuple[str, int]]:
    """Its parameters, each with which of the values it is: combinations share them."""
    return frozenset((name, id(value)) for name, value in item.callspec.params.items())


def _in_turns(
    members: Sequence[frozenset[tuple[str, int]]], at_most: int | None = None
) -> list[frozenset[tuple[str, int]]]:
    """Those with most that is new, one after the other, until nothing is new any more."""
    taken, seen = [members[0]], members[0]
    while len(taken) != at_most and (new := max(members, key=lambda each: len(each - seen))) - seen:
        taken.append(new)
        seen |= new
    return taken


def _swept(member: Any) -> Any:
    values = member if isinstance(member, tuple) else (member,)
    return pytest.param(*values, marks=pytest.mark.sweep)
