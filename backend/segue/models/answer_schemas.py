"""The shapes of answers that are read by Segue and not by people, for endpoints that hold a model to a JSON schema.

As the strictest of them want it: every member required, none besides, free-form objects as JSON text. Prompts say the
same in words, since other endpoints ignore or refuse a schema, and what comes is read as if there were none.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import orjson

from segue.domain.session import MemoryKind

AnswerSchema = Mapping[str, Any]
Reading = Literal["confirm", "reject", "amend", "question", "none"]
AnswerReading = Literal["answer", "decline", "other"]

_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}


def _object(**members: AnswerSchema) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def _named(name: str, schema: AnswerSchema) -> dict[str, Any]:
    return {"name": name, "strict": True, "schema": schema}


def of_client(schema: str) -> AnswerSchema:
    """Returns the shape that a client wants, as it wrote it: not every such schema can be a strict one."""
    return {"name": "answer", "schema": orjson.loads(schema)}


_STEP: Final = _object(
    id={"type": "integer"},
    description=_TEXT,
    tool=_TEXT_OR_NULL,
    args={**_TEXT_OR_NULL, "description": "The arguments as the text of a JSON object, or null"},
    requires_confirmation={"type": "boolean"},
)
_FACT: Final = _object(
    content=_TEXT,
    kind={"type": "string", "enum": list(get_args(MemoryKind))},
    importance={"type": "integer"},
    supersedes=_TEXT_OR_NULL,
)
PLAN: Final[AnswerSchema] = _named("plan", _object(steps={"type": "array", "items": _STEP}))
READING: Final[AnswerSchema] = _named("reading", _object(verdict={"type": "string", "enum": list(get_args(Reading))}))
ANSWER: Final[AnswerSchema] = _named(
    "answer",
    _object(
        reading={"type": "string", "enum": list(get_args(AnswerReading))},
        values={**_TEXT_OR_NULL, "description": "The values as the text of a JSON object, or null"},
    ),
)
FACTS: Final[AnswerSchema] = _named("facts", _object(facts={"type": "array", "items": _FACT}))
