"""The questions that a tool may ask the user, and whether an answer fits. Pure. A server wrote the schema of a form: of
MCP's flat object of texts, numbers, truth values and choices, bounded, nothing else is kept.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from segue.domain.user_request import UserRequest
from segue.tools.input_schema import InputSchema

MAX_MESSAGE_CHARS: Final = 2000
MAX_URL_CHARS: Final = 2000
MAX_FIELDS: Final = 20
MAX_CHOICES: Final = 100
MAX_NAME_CHARS: Final = 64
MAX_TEXT_CHARS: Final = 500  # of a title, a description, a choice
MAX_VALUE_CHARS: Final = 4000
MAX_SCHEMA_BYTES: Final = 16_000

_TEXTS: Final = ("title", "description")
_KEPT: Final[Mapping[str, Sequence[str]]] = {  # what is kept of a field, by its type
    "string": (*_TEXTS, "minLength", "maxLength", "format", "default", "enum", "enumNames", "oneOf"),
    "number": (*_TEXTS, "minimum", "maximum", "default"),
    "integer": (*_TEXTS, "minimum", "maximum", "default"),
    "boolean": (*_TEXTS, "default"),
    "array": (*_TEXTS, "items", "minItems", "maxItems", "default"),
}
_FORMATS: Final[Mapping[str, Callable[[str], object]]] = {  # of another text they find nothing, or raise ValueError
    "email": re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}").fullmatch,
    "uri": lambda text: urlsplit(text).scheme,
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
}


class UnfitRequest(ValueError):
    """A question that is not put to the user; the message says why."""


def checked_url(url: str) -> str:
    """Returns a link that a person may follow. Raises UnfitRequest."""
    parts = None
    with suppress(ValueError):
        parts = urlsplit(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise UnfitRequest("its url is no http or https address without a user name")
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise UnfitRequest("its url is too long or has characters that no url has")
    return url


def checked_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a form, reduced to the parts that are supported. Raises UnfitRequest."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if schema.get("type") != "object" or not isinstance(properties, Mapping) or not isinstance(required, list):
        raise UnfitRequest("its schema is not that of a flat object")
    if len(properties) > MAX_FIELDS:
        raise UnfitRequest(f"its form has over {MAX_FIELDS} fields")
    if any(not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() for name in properties):
        raise UnfitRequest(f"the name of a field is empty or over {MAX_NAME_CHARS} characters")
    fields = {name: _field(field) for name, field in properties.items()}
    needed = [name for name in fields if name in required]
    if len(needed) < len(required):
        raise UnfitRequest("its form requires a field that it does not have")
    kept = {"type": "object", "properties": fields, "required": needed}
    if len(orjson.dumps(kept)) > MAX_SCHEMA_BYTES:
        raise UnfitRequest(f"its schema is over {MAX_SCHEMA_BYTES // 1000} kB")
    _compiled(kept)
    return kept


def faults_of_answer(request: UserRequest, answer: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with an answer to a form, each fault behind its path; nothing if it fits."""
    fields = (request.schema or {}).get("properties", {})
    unknown = [f"$.{name[:MAX_NAME_CHARS]}: the form has no such field" for name in answer if name not in fields]
    listed = {name: value if isinstance(value, list) else [value] for name, value in answer.items()}
    long = [
        f"$.{name}: over {MAX_VALUE_CHARS} characters"
        for name, values in listed.items()
        if len(values) > MAX_CHOICES or any(isinstance(each, str) and len(each) > MAX_VALUE_CHARS for each in values)
    ]
    if unknown or long:
        return unknown[:MAX_FIELDS] or long
    formats = ((name, fields[name].get("format"), value) for name, value in answer.items() if isinstance(value, str))
    wrong = [f"$.{name}: is no {kind}" for name, kind, value in formats if kind and not _is_of(kind, value)]
    return _compiled(request.schema or {}).faults(answer) or wrong


def choices_of(field: Mapping[str, Any]) -> dict[str, str]:
    """Returns the values that may be chosen in a field, each with its title; none if it is no choice."""
    of = field.get("items", field)
    titled = of.get("oneOf") or of.get("anyOf") or ()
    named = dict(zip(of.get("enum", ()), of.get("enumNames") or of.get("enum", ()), strict=False))
    return named | {each["const"]: each["title"] for each in titled}


def _field(field: object) -> dict[str, Any]:
    kind = field.get("type") if isinstance(field, Mapping) else None
    if not isinstance(field, Mapping) or not isinstance(kind, str) or kind not in _KEPT:
        raise UnfitRequest("a field is no text, number, truth value or choice")
    kept = {name: field[name] for name in _KEPT[kind] if name in field}
    kept |= {name: str(kept[name])[:MAX_TEXT_CHARS] for name in _TEXTS if name in kept}
    if kept.get("format") not in (None, *_FORMATS):
        del kept["format"]
    if kind == "array":
        items = kept.get("items")
        if not isinstance(items, Mapping) or not (items.get("enum") or items.get("anyOf")):
            raise UnfitRequest("a list in its form is no list of choices")
        kept["items"] = {name: items[name] for name in ("type", "enum", "anyOf") if name in items}
    _check_choices(kept.get("items", kept))
    return {"type": kind, **kept}


def _check_choices(of: dict[str, Any]) -> None:
    for name in ("enum", "enumNames"):
        if name in of and not _are_texts(of[name]):
            raise UnfitRequest("its choices are no list of short texts")
    for name in ("oneOf", "anyOf"):
        if name not in of:
            continue
        listed = of[name] if isinstance(of[name], list) else []
        pairs = [(each.get("const"), each.get("title")) for each in listed if isinstance(each, Mapping)]
        if len(pairs) != len(listed) or not _are_texts([text for pair in pairs for text in pair], 2 * MAX_CHOICES):
            raise UnfitRequest("its choices are no list of short texts")
        of[name] = [{"const": const, "title": title} for const, title in pairs]


def _are_texts(listed: object, most: int = MAX_CHOICES) -> bool:
    if not isinstance(listed, list) or not 0 < len(listed) <= most:
        return False
    return all(isinstance(each, str) and len(each) <= MAX_TEXT_CHARS for each in listed)


def _compiled(schema: Mapping[str, Any]) -> InputSchema:
    try:
        return InputSchema({**schema, "additionalProperties": False}, tool="form")
    except ValueError as unfit:
        raise UnfitRequest(f"its schema cannot be used: {unfit}") from None


def _is_of(kind: str, text: str) -> bool:
    with suppress(ValueError):
        return bool(_FORMATS[kind](text))
    return False
