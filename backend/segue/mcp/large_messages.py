"""Makes a large message of an MCP server one that is read in a moment. It runs in a child process, which imports it."""

import re
import zlib
from base64 import b64decode, b64encode
from typing import Any, Final

import orjson

from segue.tools.child_process import has_many

MAX_TOOLS: Final = 1000
MAX_LIST_BYTES: Final = 4_000_000
MAX_TOOL_BYTES: Final = 64 * 1024
UNREAD: Final = "segue.unread"
_OF_A_RESOURCE: Final = ("resultType", "cacheScope", "ttlMs")
OF_A_RESULT: Final = frozenset({"content", "structuredContent", "isError"})
_ESCAPES: Final = re.compile(  # JavaScript cuts texts within a character
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)

_NULL_RESULT: Final = re.compile(rb'(?m)^((?:data:)?[ \t]*\{(?=[^{}]*"jsonrpc")[^{}]*"result"\s*:\s*)null\b')


def with_whole_characters(message: bytes) -> bytes:
    """Returns JSON without what no reader here takes: half characters, and a result of null, which says nothing."""
    if b'"result":null' in message or b'"result": null' in message:  # the pattern takes a hundred times as long
        message = _NULL_RESULT.sub(rb'\1{"content": null}', message)
    if b"\\ud" not in message and b"\\uD" not in message:
        return message
    return _ESCAPES.sub(lambda escape: b"\\ufffd" if escape["half"] else escape[0], message)


def packed_message(message: bytes) -> bytes:
    """Returns b"" for a message that is no JSON, or cannot be made light."""
    try:
        read: Any = orjson.loads(with_whole_characters(message))
    except orjson.JSONDecodeError:
        return b""
    result: Any = read.get("result") if isinstance(read, dict) else None
    match result:
        case {"tools": list(tools)}:
            listed = [  # a tool that is too large is left without its schema, and so is skipped by its name
                {"name": tool.get("name")}
                if isinstance(tool, dict) and len(orjson.dumps(tool)) > MAX_TOOL_BYTES
                else tool
                for tool in tools[: MAX_TOOLS + 1]
            ]
            return orjson.dumps({**read, "result": {**result, "tools": listed}})
        case {"content": _} | {"structuredContent": _}:
            packed = _packed({name: result[name] for name in OF_A_RESULT if name in result})
            kind = {"resultType": declared} if isinstance(declared := result.get("resultType"), str) else {}
            return orjson.dumps({**read, "result": {**kind, "content": [], "structuredContent": {UNREAD: packed}}})
        case {"contents": contents}:
            kept = {name: result[name] for name in _OF_A_RESOURCE if isinstance(result.get(name), str | int)}
            text = {"uri": UNREAD, "text": _packed({"contents": contents})}
            return orjson.dumps({**read, "result": {**kept, "contents": [text]}})
        case _:
            return b"" if has_many(message.decode()) else message


def _packed(result: dict[str, Any]) -> str:
    return b64encode(zlib.compress(orjson.dumps(result), level=1)).decode()


def unpacked(packed: str) -> bytes:
    """Returns the JSON of a result. Raises ValueError or zlib.error for one that was not packed here."""
    return zlib.decompress(b64decode(packed))
