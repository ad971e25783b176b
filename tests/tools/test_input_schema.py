"""Schemas and arguments that were made to take long, and what they are checked for all the same."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from segue.tools.input_schema import MAX_EXPLAINED_DEPTH, InputSchema, UnfitSchema

RECURSIVE = {
    "type": "object",
    "properties": {"child": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "n": {"type": "integer"}},
}


def doubling(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice, so that the last one is reached 2^levels times."""
    twice = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**twice, f"a{levels}": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a0"}}}


def nested(levels: int) -> dict[str, Any]:
    args: dict[str, Any] = {"n": "not a number"}
    for _ in range(levels):
        args = {"child": args}
    return args


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "(.*)*x$"])
def test_a_pattern_takes_linear_time(pattern: str) -> None:
    schema = InputSchema({"properties": {"a": {"pattern": pattern}}}, tool="find")
    (fault,) = schema.faults({"a": "a" * 200_000 + "!"})
    assert fault.startswith("$.a: ")
    assert len(fault) < 300


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(a{1000}){1000}", "("])
def test_a_pattern_without_a_linear_form_is_left_out_and_the_rest_is_checked(pattern: str) -> None:
    with capture_logs() as logs:
        schema = InputSchema(
            {"properties": {"a": {"type": "string", "pattern": pattern}}, "patternProperties": {pattern: {}}},
            tool="find",
        )
    left_out = [(entry["event"], entry["tool"], entry["pattern"]) for entry in logs]
    assert left_out == [("tool_pattern_left_out", "find", pattern)] * 2
    assert (schema.faults({"a": "anything"}), schema.faults({"a": 7})) == ([], ['$.a: 7 is not of type "string"'])


def test_a_property_that_is_called_pattern_is_no_pattern() -> None:
    schema = InputSchema({"properties": {"pattern": {"type": "string", "pattern": "^a"}}}, tool="find")
    assert schema.faults({"pattern": "b"}) == ['$.pattern: "b" does not match "^a"']


def test_references_that_double_are_counted_and_refused() -> None:
    assert InputSchema(doubling(10), tool="find").faults({"x": "fits"}) == []
    with pytest.raises(UnfitSchema, match="over 100000 subschemas"):
        InputSchema(doubling(60), tool="find")


def test_a_schema_that_refers_to_itself_is_checked_and_explained_while_that_is_cheap() -> None:
    schema = InputSchema(RECURSIVE, tool="find")
    assert schema.faults({"child": {"child": {"n": 1}}}) == []
    assert schema.faults(nested(MAX_EXPLAINED_DEPTH - 1))[0].startswith("$.child: ")
    assert schema.faults(nested(60)) == ["$: they do not fit its input schema"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/s.json"},
        {"$ref": "#/missing"},
        {"type": "strin"},
        {"$defs": {"a": {"required": 3}}},
        {"patternProperties": {"": {"$ref": False, "a": {"patternProperties": [7]}}}},
        {"properties": {"patternProperties": {"$ref": False}}},
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnfitSchema):
        InputSchema(schema, tool="find")


@pytest.mark.parametrize(
    "schema", [{"$schema": "http://x.example/own", "type": "object"}, {"$schema": 3}, {"$ref": "#"}], ids=str
)
def test_an_odd_schema_is_read_for_what_it_means(schema: dict[str, Any]) -> None:
    assert InputSchema(schema, tool="find").faults({}) == []
