import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from segue.tools.normalize import CIRCULAR, MAX_DEPTH, TOO_DEEP, TOO_MUCH, Payload, clean, make_payload

MEGABYTE = 1_000_000
CONTROL = {chr(code) for code in range(32)} - set("\t\n\r") | {"\x7f"}


class Colour(Enum):
    RED = "red"


class Label(StrEnum):
    WORK = "work\x00"


class Level(IntEnum):
    HIGH = 3


class Mail(BaseModel):
    id: str
    sent: datetime
    password: SecretStr


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    name: str


@dataclass
class Node:
    name: str
    children: list["Node"] = field(default_factory=list)


class Reading(float):
    """What numpy.float64 is: a float that is not quite one."""


def kept(payload: Payload) -> Any:
    """The value as it comes back from storage."""
    return orjson.loads(payload.text) if payload.kind == "json" else payload.text


def self_containing_list() -> object:
    items: list[object] = [1]
    items.append(items)
    return items


def self_containing_dict() -> object:
    outer: dict[str, object] = {}
    outer["inner"] = [{"outer": outer}]
    return outer


def self_containing_dataclass() -> object:
    node = Node("root")
    node.children.append(node)
    return node


def nested(levels: int) -> object:
    value: object = "core"
    for _ in range(levels):
        value = [value]
    return value


def shared(levels: int) -> object:
    """Two to the power of `levels` items, held in a few hundred bytes."""
    value: object = "core"
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a\x00b\x1b[0m\x7f\ttab\r\nend", "ab[0m\ttab\r\nend"),
        ("zero\x00 è 好\x08", "zero è 好"),
        ("\ud800 alone, \udc00 too", "\ufffd alone, \ufffd too"),
        ("\ud83d\ude00", "😀"),
        (
            {"a\x00": 1, 2: "two", None: "none", (1, "x"): "pair"},
            {"a": 1, "2": "two", "None": "none", "[1, 'x']": "pair"},
        ),
        ({Colour.RED: 1, Level.HIGH: 2, 10**30: 3}, {"red": 1, "3": 2, "1" + "0" * 30: 3}),
        ([math.nan, math.inf, -math.inf, 0.1], ["nan", "inf", "-inf", 0.1]),
        ([Reading(1.5), Reading("nan")], [1.5, "nan"]),
        ([2**63 - 1, -(2**63), 2**63, -(2**64)], [2**63 - 1, -(2**63), str(2**63), str(-(2**64))]),
        ([Colour.RED, Label.WORK, Level.HIGH], ["red", "work", 3]),
        (datetime(2026, 3, 1, 12, 30, tzinfo=UTC), "2026-03-01T12:30:00+00:00"),
        ([date(2026, 3, 1), time(12, 30)], ["2026-03-01", "12:30:00"]),
        (b"\x89PNG\x00", "[5 bytes of binary data]"),
        ([bytearray(b"abc"), memoryview(b"abcd")], ["[3 bytes of binary data]", "[4 bytes of binary data]"]),
        (((1, 2), {3}, frozenset({4})), [[1, 2], [3], [4]]),
        (MappingProxyType({"a": MappingProxyType({"b": 1})}), {"a": {"b": 1}}),
        (Point(1.5, "p\x00"), {"x": 1.5, "name": "p"}),
        (
            Mail(id="eml-1", sent=datetime(2026, 3, 1, tzinfo=UTC), password=SecretStr("hunter2")),
            {"id": "eml-1", "sent": "2026-03-01T00:00:00+00:00", "password": "**********"},
        ),
        ([Decimal("1.10"), UUID(int=1), PurePosixPath("/a")], ["1.10", "00000000-0000-0000-0000-000000000001", "/a"]),
        (ValueError("broken"), "broken"),
        (Node, f"<class '{Node.__module__}.Node'>"),
        ([True, False, None, ""], [True, False, None, ""]),
    ],
)
def test_what_json_cannot_hold_is_kept_in_a_readable_form(value: object, stored: object) -> None:
    payload = make_payload(value, max_bytes=MEGABYTE)
    assert payload.value == stored == kept(payload)
    assert payload.size_bytes == len(payload.text.encode())


def test_a_number_too_long_to_write_in_decimal_is_kept_in_hexadecimal() -> None:
    assert clean(-(1 << 400_000)) == "-0x1" + "0" * 100_000


@pytest.mark.parametrize(
    ("make", "stored"),
    [
        (self_containing_list, [1, CIRCULAR]),
        (self_containing_dict, {"inner": [{"outer": CIRCULAR}]}),
        (self_containing_dataclass, {"name": "root", "children": [CIRCULAR]}),
    ],
)
def test_a_structure_that_contains_itself_says_where(make: Callable[[], object], stored: object) -> None:
    assert clean(make()) == stored


def test_an_object_that_is_only_shared_is_written_each_time() -> None:
    shared_once = {"id": 1}
    assert clean([shared_once, shared_once]) == [{"id": 1}, {"id": 1}]


@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 100_000])
def test_nesting_ends_at_a_depth_every_parser_takes(levels: int) -> None:
    stored = kept(make_payload(nested(levels), max_bytes=MEGABYTE))
    depth, innermost = (levels, "core") if levels <= MAX_DEPTH else (MAX_DEPTH, TOO_DEEP)
    for _ in range(depth):
        (stored,) = stored
    assert stored == innermost


def test_a_few_lists_that_would_fill_any_memory_written_out_are_cut_short() -> None:
    stored = clean(shared(60), max_chars=10_000)
    assert len(orjson.dumps(stored)) < 20_000
    assert TOO_MUCH in orjson.dumps(stored).decode()
    assert clean(shared(4), max_chars=10_000) == shared(4)


@pytest.mark.sweep
def test_fifty_megabytes_of_text_are_cut_at_the_limit_with_a_note() -> None:
    payload = make_payload("è\x00" * 25 * MEGABYTE, max_bytes=10 * MEGABYTE)
    assert (payload.kind, payload.cut_from) == ("text", 50 * MEGABYTE)
    assert payload.text.endswith("è\n[cut by Segue: 10000000 of 50000000 bytes kept]")
    assert payload.size_bytes == len(payload.text.encode()) < 10 * MEGABYTE + 100


def test_a_cut_never_leaves_half_a_character() -> None:
    for max_bytes in range(1, 9):
        kept, _, note = make_payload("好😀" * 3, max_bytes=max_bytes).text.partition("\n")
        assert "好😀好😀".startswith(kept)
        assert note == f"[cut by Segue: {max_bytes} of 21 bytes kept]"


def test_json_over_the_limit_becomes_text_since_half_a_document_is_no_document() -> None:
    payload = make_payload([{"id": number} for number in range(1000)], max_bytes=100)
    assert (payload.kind, payload.cut_from) == ("text", 10_891)
    assert payload.value.startswith('[{"id":0},{"id":1}')


@pytest.mark.parametrize("value", ["", [], {}, None, 0, False])
def test_an_empty_answer_is_stored_as_what_it_is(value: object) -> None:
    payload = make_payload(value, max_bytes=MEGABYTE)
    assert kept(payload) == payload.value == value
    assert type(payload.value) is type(value)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())  # with surrogates and control characters
    | st.binary()
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.complex_numbers()
    | st.sampled_from([Colour.RED, Label.WORK, Level.HIGH, Node, ..., range(10**12)])
    | st.builds(Point, st.floats(), st.text(st.characters()))
)
hashable = st.none() | st.booleans() | st.integers() | st.text(st.characters()) | st.dates() | st.binary()
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(hashable)
        | st.dictionaries(hashable, inner)
        | st.builds(Node, st.text(), st.lists(inner))
    ),
    max_leaves=20,
)


def is_plain(value: Any) -> bool:
    match value:
        case str():
            return CONTROL.isdisjoint(value) and value.encode().decode() == value
        case dict():
            return all(type(key) is str and is_plain(key) and is_plain(item) for key, item in value.items())
        case list():
            return all(map(is_plain, value))
        case float():
            return type(value) is float and math.isfinite(value)
        case _:
            return value is None or type(value) in (bool, int)


@pytest.mark.sweep
@given(anything)
def test_any_python_value_gives_storable_json_that_comes_back_as_it_was(value: object) -> None:
    cleaned = clean(value)
    assert is_plain(cleaned)
    assert orjson.loads(orjson.dumps(cleaned)) == cleaned
    assert clean(cleaned) == cleaned
    payload = make_payload(value, max_bytes=10 * MEGABYTE)
    assert payload.value == cleaned == kept(payload)
    assert payload.cut_from is None


@given(anything, st.integers(1, 200))
def test_a_payload_never_exceeds_the_limit_by_more_than_its_note(value: object, max_bytes: int) -> None:
    payload = make_payload(value, max_bytes=max_bytes)
    assert payload.size_bytes == len(payload.text.encode()) <= max_bytes + 100
    assert (payload.cut_from is None) == ("[cut by Segue: " not in payload.text)
