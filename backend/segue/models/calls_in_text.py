"""Calls that a model wrote into its text, because the parser for its calls is off at its server. Pure. Text counts as
calls only if all of it is, each names an offered tool, and none was shown to the model: that would be a quotation.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage

from segue.domain.tool import ToolSpec
from segue.language.lexicon import load_toml
from segue.models.reply import ModelCall, known_name, read_arguments, sendable_name

MARKS: Final = load_toml("marks.toml", package="segue.models")
CALL_MARKS: Final[Mapping[str, bool]] = MARKS["calls"]
MAX_CALL_CHARS: Final = 64_000
MAX_CALLS: Final = 64
MAX_OPENING_CHARS: Final = 200  # of an answer without a mark, within which it is told from other JSON and code
ADVICE: Final = "Switch the parser of calls on at the model's server: --tool-call-parser of vLLM, --jinja of llama.cpp."

OPENINGS: Final = frozenset("`{[")  # the first characters of such an answer
_FENCES: Final = ("```json", "```tool_call", "```")
QUOTES: Final = frozenset("`\"'“”‘’«»「『")
_BETWEEN: Final = re.compile(
    "|".join(re.escape(mark) for mark in (*CALL_MARKS, *_FENCES) if mark != "<function=")  # which has the name
    + r"|</(?:minimax:)?tool_call>|</(?:｜DSML｜)?(?:function|tool)_calls>|<\|tool_call(?:s_section)?_(?:begin|end)\|>"
    r"|<｜tool▁calls?▁(?:begin|end)｜>|<\|(?:/tool_call|call|im_end|eot_id|eom_id)\|>|</s>|[;,\s]"
)
_NAMED: Final = re.compile(  # what stands between the name of a tool and its arguments: as JSON, and each by itself
    r"(?:function<｜tool▁sep｜>)?([\w.-]{1,100})(?::\d{1,9})?\s{0,9}(?:\[CALL_ID\]\w{1,64})?"
    r"(?:\[ARGS\]|<\|tool_call_argument_begin\|>|<｜tool▁sep｜>)?"
    r"(?:<\|constrain\|>)?(?:```)?(?:json)?(?:<\|message\|>)?\s{0,9}(?=\{)"
)
_KEYED: Final = re.compile(r"([\w.-]{1,100})\s{0,9}(?=<arg_key>|</tool_call>)")  # GLM's
_PAIR: Final = re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_INVOKED: Final = re.compile(r"""<(?:(?:｜DSML｜)?invoke name="|function=)([^"<>]{1,100})"?>""")
_ARGUMENT = re.compile(r"""<(?:｜DSML｜)?parameter(?: name="|=)([^"<>]+)"?(?: string="(true|false)")?>\n?""")
_INVOKED_END: Final = re.compile(r"</(?:(?:｜DSML｜)?invoke|function)>")
_NAMES: Final = ("name", "tool", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
_KEYS: Final = frozenset({*_NAMES, *_ARGUMENTS, "type", "id"})
_OPENING: Final = re.compile(r"\s*(?:```(?:json|tool_call)?)?[\s\[{]*")
_NOT_COMPARED: Final = re.compile(r"\\u[0-9a-fA-F]{4}|\\[bfnrt]|[\W_]")  # what JSON may write in another way
_JSON: Final = json.JSONDecoder(strict=False)


def may_be_calls(text: str) -> bool:
    """Returns whether a text that begins so may be calls: behind a mark, or as JSON, in a code block or not."""
    if text.startswith(tuple(CALL_MARKS)):
        return True
    opening = text[:MAX_OPENING_CHARS]
    rest = _OPENING.sub("", opening, count=1)
    if "{" in opening.removesuffix(rest):
        return any(f'"{key}"'.startswith(rest[: len(key) + 2]) for key in _KEYS)
    return not rest or any(fence.startswith(opening.strip()) for fence in _FENCES)


def read_calls(
    text: str, *, tools: Sequence[ToolSpec], names: Mapping[str, str], messages: Iterable[BaseMessage]
) -> list[ModelCall]:
    """Returns the calls that a text is, by offered names; none if it is anything else. `names` has their own."""
    schemas = {tool.name: tool.input_schema for tool in tools}
    calls, bodies = list[ModelCall](), set[str]()
    try:
        for name, args, body in _written(text):
            offered = known_name(sendable_name(name), names)
            calls.append(ModelCall(offered, _arguments(args, schemas[names[offered]])))
            bodies.add(body)
    except (ValueError, TypeError, LookupError, RecursionError):
        return []
    most = MAX_CALLS if text.startswith(tuple(CALL_MARKS)) else 1
    # What the model was given to read by anyone but itself.
    shown = " ".join(_NOT_COMPARED.sub("", each.text) for each in messages if not isinstance(each, AIMessage))
    return calls if len(calls) <= most and not any(_NOT_COMPARED.sub("", body) in shown for body in bodies) else []


def _written(text: str) -> Iterator[tuple[str, Any, str]]:
    """Yields the name of each call, its arguments, as an object or a list of names, types and texts, and where both
    stand. Raises ValueError or RecursionError if there is none.
    """
    at = 0
    while True:
        while between := _BETWEEN.match(text, at):
            at = between.end()
        if at == len(text):
            return
        begin = at
        if text[at] in "{[":
            value, at = _JSON.raw_decode(text, at)
            yield from ((*_from_json(each), text[begin:at]) for each in (value if isinstance(value, list) else [value]))
        elif named := _NAMED.match(text, at):
            args, at = _JSON.raw_decode(text, named.end())
            yield named[1], args, text[begin:at]
        elif (begun := _INVOKED.match(text, at)) and (end := _INVOKED_END.search(text, at)):
            at = end.end()
            first, *parts = _ARGUMENT.split(text[begun.end() : end.start()])
            pairs = list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
            yield begun[1], read_arguments(first) if first.strip() else pairs, text[begin:at]
        elif keyed := _KEYED.match(text, at):
            at, pairs = keyed.end(), []
            while pair := _PAIR.match(text, at):
                pairs.append((pair[1], None, pair[2]))
                at = pair.end()
            yield keyed[1], pairs, text[begin:at]
        else:
            raise ValueError("no call")


def _from_json(value: Any) -> tuple[str, Any]:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not value.keys() <= _KEYS:
        raise ValueError("no call")
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), "")
    args = next((value[key] for key in _ARGUMENTS if key in value), None)
    args = read_arguments(args) if isinstance(args, str) else args
    return name, args if isinstance(args, dict) else None


def _arguments(args: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(args, list):
        properties = schema.get("properties") or {}
        texts = {name for name, each in properties.items() if isinstance(each, dict) and each.get("type") == "string"}
        args = {name: _value(text, is_text=kind == "true" or (not kind and name in texts)) for name, kind, text in args}
    return dict(args)


def _value(written: str, *, is_text: bool) -> Any:
    for end in ("</parameter>", "</｜DSML｜parameter>"):
        written = written.rstrip().removesuffix(end)
    text = written.removesuffix("\n")
    try:
        return text if is_text else json.loads(text, strict=False)
    except ValueError:
        return text
