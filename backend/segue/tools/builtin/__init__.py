"""Definitions of the service's own tools, which are data: `definitions.toml` has each tool's text for the model."""

from collections.abc import Mapping
from typing import Final

from segue.domain.tool import END_MANDATES, PROPOSE_MANDATE, ToolSpec
from segue.language.lexicon import load_toml

_TABLE: Final = load_toml("definitions.toml", package="segue.tools.builtin")

EVERY: Final[Mapping[str, str]] = _TABLE["every"]
BUILTIN: Final = frozenset({*_TABLE["built_in"], PROPOSE_MANDATE, END_MANDATES})  # all that a service may have
DEFINED: Final = BUILTIN.union(_TABLE["of_engine"], _TABLE["of_servers"])
REFUSED: Final[Mapping[str, str]] = _TABLE["refused"]  # by tool


def defined(name: str) -> ToolSpec:
    row = (_TABLE["built_in"] | _TABLE["of_engine"] | _TABLE["of_servers"])[name]
    fields = {key: value for key, value in row.items() if key not in ("args", "required", "is_open")}
    needed = {"required": row["required"]} if "required" in row else {}
    closed = {} if row.get("is_open") else {"additionalProperties": False}
    return ToolSpec(name=name, input_schema={"type": "object", "properties": row["args"], **needed, **closed}, **fields)
