"""JSON as it goes to and comes from providers: orjson, and Python's own where a provider writes what orjson refuses."""

import json
from typing import Any

import orjson


def read_json(body: bytes) -> Any:
    """Returns any JSON, half characters and NaN too. Raises ValueError or RecursionError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body, strict=False)


def write_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, half a character
        return json.dumps(value).encode()
