"""Schemas as endpoints take them: each rule one that some endpoint refuses a whole request for."""

import json
import math
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import jsonschema_rs
import orjson
import pytest
from hypothesis import strategies as st

from segue.models.tool_schemas import Bounds, acceptable_schema, shown_schema

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2")) * 20
BOUNDS = Bounds(description_chars=60)
KNOWN = {
    *("type", "description", "default", "enum", "anyOf", "properties", "required", "additionalProperties", "items"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
    *("minLength", "maxLength", "minItems", "maxItems"),
}
TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


def schemas_in(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and all below it."""
    yield schema
    others = schema.get("additionalProperties")
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for each in (*below, schema.get("items"), others):
        if isinstance(each, dict):
            yield from schemas_in(each)


def faults(schema: dict[str, Any], bounds: Bounds = BOUNDS) -> Iterator[str]:
    """Why an endpoint might refuse it."""
    if schema.get("type") != "object" or "properties" not in schema or "anyOf" in schema or "enum" in schema:
        yield "the top is not simply an object"
    everything = list(schemas_in(schema))
    if len(everything) > bounds.nodes + 20:
        yield "too large"
    for part in everything:
        broken = {
            "an unknown keyword": bool(part.keys() - KNOWN),
            "no type": part.get("type", "null") not in TYPES,
            "a type beside choices": "type" in part and "anyOf" in part,
            "items of no array, or an array without": ("items" in part) != (part.get("type") == "array"),
            "it requires what it does not have": not set(part.get("required", ())) <= part.get("properties", {}).keys(),
            "a choice that is no text": not all(isinstance(value, str) and value for value in part.get("enum", ())),
            "no choice": not part.get("enum", ["x"]),
            "one choice": len(part.get("anyOf", "xx")) < 2,
            "a long description": len(part.get("description", "")) > bounds.description_chars,
            "a format": part.get("format", "date-time") not in {"date-time", "int32", "int64", "float", "double"},
        }
        yield from (f"{fault}: {part}" for fault, is_so in broken.items() if is_so)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text(max_size=5), st.just("\ud800")
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
names = st.sampled_from(["a", "b", "c", "größe", "\x00", "\ud800", ""])
references = st.sampled_from(
    ["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/anyOf/0", "#/anyOf/x", "http://there/", "#a", "#/%24defs/a"]
)
kinds = st.sampled_from([*sorted(TYPES), "date", "any"])


def _nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas with any keywords, most of them as JSON Schema has them, some with anything."""
    several, named = st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)
    keywords = {
        "type": kinds | st.lists(kinds, max_size=4),
        "description": st.text(max_size=100),
        "title": st.text(max_size=5),
        "default": scalars,
        "const": scalars,
        "enum": st.lists(scalars, max_size=4) | st.lists(st.sampled_from(["x", "y", "z"]), max_size=3),
        "format": st.sampled_from(["date", "date-time", "uri", "int32"]),
        "pattern": st.sampled_from(["^a$", "[", "\\d+"]),
        "$ref": references,
        "required": st.lists(names, max_size=3),
        "minimum": st.integers() | st.floats(),
        "multipleOf": st.integers(-1, 2),
        "maxLength": st.integers(-1, 5000),
        "minItems": st.booleans() | st.integers(0, 5),
        "additionalProperties": inner | st.booleans(),
        "items": inner | several | st.booleans(),
        **dict.fromkeys(("not", "if", "contains", "propertyNames"), inner),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("properties", "$defs", "patternProperties", "dependentSchemas"), named),
    }
    as_meant = st.fixed_dictionaries({}, optional=keywords)
    return as_meant | st.dictionaries(st.sampled_from(sorted(keywords)), anything, max_size=3)


any_schema = st.recursive(st.booleans() | scalars, _nodes, max_leaves=25)


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(any_schema)
def test_any_schema_becomes_one_that_endpoints_take_and_that_stays_as_it_is(schema: Any) -> None:
    found = acceptable_schema(schema, BOUNDS)
    assert list(faults(found)) == []
    jsonschema_rs.Draft7Validator(found)
    jsonschema_rs.Draft202012Validator(found)
    orjson.dumps(found)  # it can be sent
    assert acceptable_schema(found, BOUNDS) == found


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(any_schema, st.integers(1, 20), st.integers(0, 3))
def test_bounds_hold_for_any_schema(schema: Any, nodes: int, depth: int) -> None:
    bounds = Bounds(60, nodes=nodes, depth=depth)
    assert list(faults(acceptable_schema(schema, bounds), bounds)) == []


def only(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


TEXT, NUMBER, ANY_LIST = {"type": "string"}, {"type": "integer"}, {"type": "array", "items": {}}
CONVERTED = {
    "an object with nothing in it": ({}, only({})),
    "no schema at all": (True, only({})),
    "a list of anything": (only({"a": {"type": "array"}}), only({"a": ANY_LIST})),
    "a list in a list": (
        only({"a": {"type": "array", "items": {"type": "array"}}}),
        only({"a": {"type": "array", "items": ANY_LIST}}),
    ),
    "places of a tuple": (
        only({"a": {"type": "array", "prefixItems": [TEXT, NUMBER]}}),
        only({"a": {"type": "array", "items": {"anyOf": [TEXT, NUMBER]}}}),
    ),
    "alternatives at the top": (
        {"oneOf": [only({"a": TEXT, "b": TEXT}, required=["a", "b"]), only({"b": NUMBER}, required=["b"])]},
        only({"a": TEXT, "b": {"anyOf": [TEXT, NUMBER]}}, required=["b"]),
    ),
    "one of two needed": (
        only({"a": TEXT, "b": NUMBER}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
        only({"a": TEXT, "b": NUMBER}),
    ),
    "kinds told apart by a constant": (
        {"anyOf": [only({"kind": {"const": "x"}}), only({"kind": {"const": "y"}, "size": NUMBER})]},
        only({"kind": {"type": "string", "enum": ["x", "y"]}, "size": NUMBER}),
    ),
    "all of several": (
        {"allOf": [only({"a": TEXT}, required=["a"]), only({"b": NUMBER}, required=["b"])]},
        only({"a": TEXT, "b": NUMBER}, required=["a", "b"]),
    ),
    "a definition": (
        only({"a": {"$ref": "#/$defs/x", "description": "mine"}}, **{"$defs": {"x": {**TEXT, "description": "its"}}}),
        only({"a": {**TEXT, "description": "mine"}}),
    ),
    "a definition of itself": (
        only({"a": {"$ref": "#"}}),
        only({"a": only({"a": {}})}),
    ),
    "a reference to elsewhere": (only({"a": {"$ref": "https://there/x.json"}}), only({"a": {}})),
    "two types": (
        only({"a": {"type": ["string", "null"], "maxLength": 3}}),
        only({"a": {"anyOf": [{**TEXT, "maxLength": 3}, {"type": "null"}]}}),
    ),
    "an optional one of pydantic": (
        only({"a": {"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "A"}}),
        only({"a": {"anyOf": [TEXT, {"type": "null"}], "default": None}}),
    ),
    "what is said in words": (
        only({"a": {**TEXT, "format": "uri", "pattern": "x+"}, "b": {**NUMBER, "enum": [1, 2]}}),
        only(
            {
                "a": {**TEXT, "description": "(format: uri) (pattern: x+)"},
                "b": {**NUMBER, "description": "(one of: [1, 2])"},
            }
        ),
    ),
    "a moment": (
        only({"a": {**TEXT, "format": "date-time"}}),
        only({"a": {**TEXT, "format": "date-time"}}),
    ),
    "needed and not described": ({"type": "object", "required": ["a"]}, only({"a": {}}, required=["a"])),
    "open by a pattern": (
        {"type": "object", "patternProperties": {"^x": TEXT}, "additionalProperties": False},
        only({}),
    ),
    "a map": (only({}, additionalProperties=TEXT), only({}, additionalProperties=TEXT)),
    "draft 4's exclusive bound": (
        only({"a": {**NUMBER, "minimum": 1, "exclusiveMinimum": True}}),
        only({"a": {**NUMBER, "minimum": 1}}),
    ),
    "numbers and texts too large to send": (
        only({"a": {**NUMBER, "maximum": 10**30, "default": 10**30}, "b": {**TEXT, "maxLength": 10**6}}),
        only({"a": NUMBER, "b": TEXT}),
    ),
    "half a character": (only({"a": {**TEXT, "enum": ["\ud800"]}, "\ud800": TEXT}), only({"a": TEXT})),
}


@pytest.mark.parametrize(("schema", "expected"), CONVERTED.values(), ids=CONVERTED)
def test_a_schema_keeps_what_endpoints_can_be_told(schema: Any, expected: dict[str, Any]) -> None:
    given = json.dumps(schema)
    found = acceptable_schema(schema, Bounds())
    if found["properties"].get("a", {}).get("description", "").startswith("(one of"):
        del found["properties"]["a"]["description"]  # what half a character is told as
    assert found == expected
    assert list(faults(found, Bounds())) == []
    assert json.dumps(schema) == given


def test_references_that_multiply_with_each_step_end_at_the_bound() -> None:
    steps = {f"d{n}": only({side: {"$ref": f"#/$defs/d{n + 1}"} for side in "abcd"}) for n in range(60)}
    found = acceptable_schema({"$ref": "#/$defs/d0", "$defs": steps}, Bounds())
    assert list(faults(found, Bounds())) == []
    assert len(list(schemas_in(found))) > 100


def test_a_schema_nested_beyond_any_stack_is_cut_and_not_an_error() -> None:
    schema: dict[str, Any] = {}
    for keyword in ("allOf", "anyOf", "items", "properties") * 5000:
        schema = {keyword: {"a": schema} if keyword == "properties" else [schema]}
    assert list(faults(acceptable_schema(schema, Bounds()), Bounds())) == []
    chain = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5000)}
    assert acceptable_schema({"$ref": "#/$defs/0", "$defs": chain}, Bounds()) == only({})


def test_numbers_that_are_none_are_left_out() -> None:
    found = acceptable_schema(only({"a": {"type": "number", "minimum": math.inf, "multipleOf": 0}}), Bounds())
    assert found == only({"a": {"type": "number"}})


def test_a_schema_too_long_to_show_keeps_whole_properties_the_required_first_and_names_the_others() -> None:
    long = {**TEXT, "description": "x" * 150, "enum": [f"choice {n}" for n in range(200)]}
    schema = only({"a": long, **{f"b{n}": {**TEXT, "description": "y" * 150} for n in range(30)}, "c": NUMBER})
    schema["required"] = ["c", "a"]
    found = shown_schema(schema, 2000)
    jsonschema_rs.Draft202012Validator(found)
    assert list(found["properties"])[:2] == ["a", "c"]
    assert found["properties"]["a"] == {**TEXT, "description": "x" * 99 + "…"}
    assert found["properties"]["c"] == NUMBER
    assert found["required"] == ["c", "a"]
    assert "it also takes" in found["description"]
    assert "b29" in found["description"]
    assert len(json.dumps(found)) < 3000
    assert shown_schema(only({"a": TEXT}), 2000) == only({"a": TEXT})
