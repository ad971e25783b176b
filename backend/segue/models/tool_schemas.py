"""The tools of a request as any endpoint takes them: names, descriptions and schemas that fit.

Endpoints refuse a request for one keyword, and a refused tool would stop every message of its sessions. So only what
all endpoints know goes out, the rest in words; `tools/run.py` checks arguments against the tool's own schema.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages import ToolCall as LangChainCall

from segue.domain.ids import offered_name
from segue.domain.session import MAKE_IMAGE, READ_ATTACHMENT
from segue.domain.tool import ToolSpec
from segue.models.reply import ModelCall, known_name, read_arguments, sendable_name
from segue.models.untrusted import neutralised
from segue.tools.builtin import defined
from segue.tools.input_schema import at_reference
from segue.tools.normalize import clean_text
from segue.tools.summaries import shortened

TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
FORMATS: Final = frozenset({"date-time", "int32", "int64", "float", "double"})  # gemini takes these and no others
NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems")
MAX_COUNT: Final = 1000  # llama.cpp makes a grammar of a string's length and refuses a large one
MAX_NUMBER: Final = 2**53
MAX_CHOICES: Final = 250
MAX_VALUE_CHARS: Final = 500
MAX_TOOLS: Final = 128  # that all endpoints take
MAX_KNOWN: Final = 1000
MAX_BOUND_SETS: Final = 64

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a schema."""

    description_chars: int = 1024  # of each description
    nodes: int = 1000  # the schemas in it
    depth: int = 16  # how deep they lie
    describes_all: bool = False  # every argument: some models' templates need that


def acceptable_schema(schema: Any, bounds: Bounds) -> Schema:
    """Returns the schema of an object without references, unknown keywords and, at the top, alternatives."""
    found = _Conversion(schema, bounds).of(schema)
    if "anyOf" in found:
        found |= _one_object(found["anyOf"])
    if bounds.describes_all and "properties" in found:
        found["properties"] = {name: {"description": name, **node} for name, node in found["properties"].items()}
    kept = ("description", "properties", "required", "additionalProperties")
    return {"type": "object", "properties": {}, **{key: found[key] for key in kept if key in found}}


def shown_schema(schema: Mapping[str, Any], max_chars: int) -> Schema:
    """Returns the schema of an object in about so many characters: with whole properties, required ones first, with
    types and descriptions alone of those that do not fit, and with the names of the rest in its description.
    """
    if len(orjson.dumps(schema).decode()) <= max_chars:
        return dict(schema)
    found = acceptable_schema(schema, Bounds(description_chars=max_chars // 20))
    needed, properties, room = found.get("required", ()), found["properties"], max_chars
    shown: Schema = {}
    for name in sorted(properties, key=lambda name: name not in needed):
        whole = properties[name]
        for each in (whole, {key: whole[key] for key in ("type", "description") if key in whole}):
            size = len(orjson.dumps({name: each}).decode())
            if name not in shown and size <= room:
                shown[name], room = each, room - size
    left_out = [name for name in properties if name not in shown]
    more = f"Not all details are shown{': it also takes ' if left_out else ''}{', '.join(left_out)}"
    described = f"{found.get('description', '')} ({shortened(more, max_chars // 4)})".strip()
    required = [name for name in needed if name in shown]
    return {"type": "object", "description": described, "properties": shown, "required": required}


class _Conversion:
    """One schema on its way; references lead to places in `root`."""

    def __init__(self, root: Any, bounds: Bounds) -> None:
        self._root = root
        self._bounds = bounds
        self._left = bounds.nodes

    def of(self, node: Any, inside: tuple[str, ...] = (), depth: int = 0) -> Schema:
        """Returns the schema at a node; `{}`, which takes anything, for what says nothing or lies beyond a bound.
        `inside` are the references that led here: one that leads back to itself ends there.
        """
        self._left -= 1
        if not isinstance(node, Mapping) or depth > self._bounds.depth or self._left < 0:
            return {}
        types = _types(node)
        parts = [self._plain(node, types, inside, depth)]
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in inside:
            parts.append(self.of(at_reference(self._root, reference), (*inside, reference), depth + 1))
        parts += [self.of(part, inside, depth + 1) for part in _listed(node, "allOf")]
        for keyword in ("anyOf", "oneOf"):
            if choices := _listed(node, keyword):
                parts.append(_either([self.of(choice, inside, depth + 1) for choice in choices]))
        if len(types) > 1:
            self._left -= len(types)
            parts.append(_either([self._typed(node, kind, inside, depth + 1) for kind in types]))
        return _without_choices_beside_a_type(_all_of(parts))

    def _plain(self, node: Mapping[str, Any], types: Sequence[str], inside: tuple[str, ...], depth: int) -> Schema:
        """Returns a node's own keywords, without references and alternatives."""
        found = self._typed(node, types[0], inside, depth) if len(types) == 1 else {}
        if "default" in node and _is_value(node["default"]):
            found["default"] = node["default"]
        text = node.get("description")
        words = [neutralised(clean_text(text))] if isinstance(text, str) else []
        words += [shortened(f"({name}: {hint})", 200) for name, hint in _hints(node)]
        if text := " ".join(words):
            found["description"] = shortened(text, self._bounds.description_chars)
        return found

    def _typed(self, node: Mapping[str, Any], kind: str, inside: tuple[str, ...], depth: int) -> Schema:
        found: Schema = {"type": kind}
        match kind:
            case "object":
                found |= self._object(node, inside, depth)
            case "array":
                items = node.get("items")
                places = [*_listed(node, "prefixItems"), *_listed(node, "items")]  # each with a schema of its own
                if not places or isinstance(items, Mapping):
                    places.append(items)
                found["items"] = _either([self.of(place, inside, depth + 1) for place in places])
                found |= _counts(node, COUNTS[2:])
            case "string":
                found |= _counts(node, COUNTS[:2])
                if choices := _choices(node):
                    found["enum"] = choices
            case "number" | "integer":
                found |= {name: node[name] for name in NUMBERS if _is_number(node.get(name))}
                if found.get("multipleOf", 1) <= 0:
                    del found["multipleOf"]
        if kind in {"string", "number", "integer"} and node.get("format") in FORMATS:
            found["format"] = node["format"]
        return found

    def _object(self, node: Mapping[str, Any], inside: tuple[str, ...], depth: int) -> Schema:
        fields, needed = node.get("properties"), node.get("required")
        properties: Schema = {}
        for name, schema in fields.items() if isinstance(fields, Mapping) else ():
            if _is_text(name) and self._left > 0:
                properties[name] = self.of(schema, inside, depth + 1)
        required = [name for name in needed if _is_text(name)] if isinstance(needed, list) else []
        for name in required:
            if name not in properties and self._left > 0:
                properties[name] = self.of(None)
        found: Schema = {"properties": properties}
        if required := [name for name in dict.fromkeys(required) if name in properties]:
            found["required"] = required
        others = node.get("additionalProperties")
        if isinstance(others, Mapping):
            found["additionalProperties"] = self.of(others, inside, depth + 1) or True
        elif isinstance(others, bool) and "patternProperties" not in node:
            found["additionalProperties"] = others
        return found


def _all_of(parts: Iterable[Schema]) -> Schema:
    """Returns one schema that joins all parts; if two contradict each other, the first one counts."""
    found: Schema = {}
    for part in parts:
        kinds = {found.get("type"), part.get("type")} - {None}
        if len(kinds) > 1:
            if kinds == {"number", "integer"}:
                found["type"] = "integer"
            continue
        for key, value in part.items():
            if key == "properties" and key in found:
                met = {name: _both(found[key][name], value[name]) for name in value if name in found[key]}
                found[key] = found[key] | value | met
            elif key == "required" and key in found:
                found[key] = list(dict.fromkeys([*found[key], *value]))
            elif key == "items" and key in found:
                found[key] = _both(found[key], value)
            else:
                found.setdefault(key, value)
    return found


def _both(one: Schema, other: Schema) -> Schema:
    return _without_choices_beside_a_type(_all_of([one, other]))


def _either(choices: Iterable[Schema]) -> Schema:
    """Returns a schema that takes whatever any of the choices takes."""
    flat = [each for choice in choices for each in choice.get("anyOf", [choice])]
    by_text: dict[bytes, Schema] = {orjson.dumps(each, option=orjson.OPT_SORT_KEYS): each for each in flat}
    distinct = list(by_text.values())
    if any("type" not in choice for choice in distinct):
        return {}
    if len(distinct) == 1:
        return dict(distinct[0])
    if all("enum" in choice for choice in distinct):
        values = list(dict.fromkeys(value for choice in distinct for value in choice["enum"]))
        return {"type": "string", "enum": values} if len(values) <= MAX_CHOICES else {"type": "string"}
    return {"anyOf": distinct}


def _without_choices_beside_a_type(schema: Schema) -> Schema:
    """Returns a schema with a type or with choices, since some endpoints refuse both in one."""
    if "anyOf" not in schema or "type" not in schema:
        return schema
    own = {key: value for key, value in schema.items() if key != "anyOf"}
    return _all_of([own, _one_object(schema["anyOf"])]) if own["type"] == "object" else own


def _one_object(choices: Sequence[Schema]) -> Schema:
    """Returns an object that may have the properties of any choice, and needs what all of them need."""
    objects = [choice for choice in choices if choice["type"] == "object"]
    schemas: dict[str, list[Schema]] = {}
    for choice in objects:
        for name, schema in choice["properties"].items():
            schemas.setdefault(name, []).append(schema)
    found: Schema = {"type": "object", "properties": {name: _either(given) for name, given in schemas.items()}}
    needed = [name for name in schemas if all(name in choice.get("required", ()) for choice in objects)]
    return {**found, "required": needed} if needed else found


def _types(node: Mapping[str, Any]) -> list[str]:
    """Returns the types a node names, or the one that its keywords are about."""
    kinds = node.get("type")
    if kinds is not None:
        return list(dict.fromkeys(each for each in (kinds if isinstance(kinds, list) else [kinds]) if each in TYPES))
    if not node.keys().isdisjoint({"properties", "required", "additionalProperties"}):
        return ["object"]
    if not node.keys().isdisjoint({"items", "prefixItems"}):
        return ["array"]
    return ["string"] if _choices(node) else []


def _values(node: Mapping[str, Any]) -> list[Any]:
    """Returns the values that a node allows by `enum` or `const`, none if it allows any."""
    return [node["const"]] if "const" in node else _listed(node, "enum")


def _choices(node: Mapping[str, Any]) -> list[str]:
    """Returns the values of an enum if an endpoint takes them: texts, none of them empty, and not too many."""
    values = [value for value in _values(node) if value is not None]
    fitting = all(value and _is_text(value) and _is_value(value) for value in values)
    return list(dict.fromkeys(values)) if fitting and len(values) <= MAX_CHOICES else []


def _hints(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields in words the constraints that not every endpoint takes in a schema."""
    for keyword in ("format", "pattern"):
        value = node.get(keyword)
        if isinstance(value, str) and value not in FORMATS:
            yield keyword, clean_text(value)
    if (values := _values(node)) and not _choices(node) and values != [None]:
        yield "one of", clean_text(json.dumps(values[:MAX_CHOICES], ensure_ascii=False))


def _counts(node: Mapping[str, Any], names: Iterable[str]) -> Schema:
    counts = ((name, node.get(name)) for name in names)
    return {name: count for name, count in counts if type(count) is int and 0 <= count <= MAX_COUNT}


def _listed(node: Mapping[str, Any], keyword: str) -> list[Any]:
    value = node.get(keyword)
    return value if isinstance(value, list) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str) and clean_text(value) == value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER <= value <= MAX_NUMBER


def _is_value(value: object) -> bool:
    """Whether it may stand as a default or a choice."""
    if isinstance(value, str):
        return _is_text(value) and len(value) <= MAX_VALUE_CHARS
    return value is None or isinstance(value, bool) or _is_number(value)


@dataclass(frozen=True, slots=True)
class BoundTools:
    """Tools as a request has them, and their own `names` by the offered ones. If `calls_others`, CALL_TOOL is one."""

    offered: Sequence[dict[str, Any]] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    calls_others: bool = False

    def own_name(self, name: str) -> str:
        return self.names.get(known_name(name, self.names), name)


CALL_TOOL: Final = defined("call_tool")


def as_shown_calls(messages: Iterable[BaseMessage], names: Collection[str]) -> list[BaseMessage]:
    """Returns the messages with the calls of tools that the request does not have as CALL_TOOL makes them."""
    direct = {*names, READ_ATTACHMENT, MAKE_IMAGE}  # which the engine calls

    def shown(call: LangChainCall) -> LangChainCall:
        if call["name"] in direct:
            return call
        return {**call, "name": CALL_TOOL.name, "args": {"name": call["name"], "arguments": call["args"]}}

    return [
        message.model_copy(update={"tool_calls": list(map(shown, message.tool_calls))})
        if isinstance(message, AIMessage) and message.tool_calls
        else message
        for message in messages
    ]


def meant_call(call: ModelCall) -> ModelCall:
    """Returns the call that one of CALL_TOOL is for, or itself. Some write arguments as a text, beside, or misnamed."""
    name = (call.args or {}).get("name")
    if call.name != CALL_TOOL.name or call.args is None or not isinstance(name, str):
        return call
    others = {key: value for key, value in call.args.items() if key not in ("name", "arguments")}
    inside = others.get("args", others.get("parameters")) if len(others) == 1 else None
    arguments = call.args.get("arguments", inside if isinstance(inside, dict) else others)
    args = read_arguments(arguments) if isinstance(arguments, str) else arguments
    return replace(call, name=sendable_name(name), args=args if isinstance(args, dict) else None)


class ToolBindings:
    """Makes each tool and each distinct set of tools fit once, which takes a third of a millisecond a tool."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._fitting: dict[str, tuple[ToolSpec, dict[str, Any]]] = {}
        self._bound: dict[tuple[str, ...], tuple[tuple[ToolSpec, ...], BoundTools]] = {}

    def of(self, tools: tuple[ToolSpec, ...]) -> BoundTools:
        key = tuple(tool.name for tool in tools)
        known = self._bound.get(key)
        if known is None or known[0] != tools:
            if len(self._bound) >= MAX_BOUND_SETS:
                self._bound.clear()
            offered = self.offered(tools)
            names = {each["function"]["name"]: tool.name for each, tool in zip(offered, tools, strict=True)}
            known = self._bound[key] = tools, BoundTools(offered, names, calls_others=CALL_TOOL in tools)
        return known[1]

    def offered(self, tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
        """Returns the tools in OpenAI's form, in their order, each under a name of its own."""
        functions: dict[str, dict[str, Any]] = {}
        for tool in tools:
            taken = 0
            while (name := offered_name(tool.name, taken)) in functions:
                taken += 1
            functions[name] = {"type": "function", "function": {"name": name, **self._fitted(tool)}}
        return list(functions.values())

    def _fitted(self, tool: ToolSpec) -> dict[str, Any]:
        known = self._fitting.get(tool.name)
        if known is None or known[0] != tool:
            if len(self._fitting) >= MAX_KNOWN:
                self._fitting.clear()
            description = shortened(neutralised(clean_text(tool.description)), self._bounds.description_chars)
            schema = acceptable_schema(tool.input_schema, self._bounds)
            known = self._fitting[tool.name] = tool, {"description": description, "parameters": schema}
        return known[1]
