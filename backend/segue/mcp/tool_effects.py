"""What a tool of an MCP server does to the world: by its annotations, or if it has none, by its name. Pure.

The protocol's default is destructive; asking before every tool without annotations would teach people to say yes.
"""

import re

from mcp_types import ToolAnnotations

from segue.domain.tool import Effect

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_READS = frozenset(
    ["check", "count", "describe", "fetch", "find", "get", "list", "query", "read", "search", "show", "view"]
)
_DESTROYS = frozenset(["delete", "destroy", "drop", "erase", "purge", "remove", "truncate", "wipe"])
_SENDS = frozenset(["forward", "post", "publish", "reply", "send", "tweet"])
_PAYS = frozenset(["buy", "pay", "purchase", "refund", "transfer", "withdraw"])
_FINAL = _DESTROYS | _SENDS | _PAYS


def effect_of(name: str, hints: ToolAnnotations | None) -> Effect:
    if hints is not None and hints.read_only_hint:
        return "read_only"
    if hints is None or hints.destructive_hint is None:
        return "destructive" if _sounds_final(name) else "write"
    return "destructive" if hints.destructive_hint else "write"


def _sounds_final(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and words[0] not in _READS and not _FINAL.isdisjoint(words)
