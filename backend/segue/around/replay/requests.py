"""Judges the requests to the model: what kind one is, and whether a strict provider would accept it. Pure.

The scripted provider of the tests judges by the same rule.

Compares a replayed turn with the recorded one. Pure.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, Final, Literal

import orjson

from segue.agent import prompts
from segue.domain.recording import RecordedPlan, RecordedTurn, RecordedUsage
from segue.domain.tool import canonical_args
from segue.models.normal_form import ANY_MODEL, WireForm
from segue.models.tool_schemas import MAX_TOOLS

RequestKind = Literal["loop", "plan", "amendment", "reading", "arguments", "step", "other"]

# The amender's prompt contains the planner's, so it comes first.
_NOTES: Final[Mapping[str, RequestKind]] = {
    prompts.AMENDER: "amendment",
    prompts.PLANNER: "plan",
    prompts.READER: "reading",
    prompts.AGREEMENT: "reading",
    prompts.CARRYING_OUT: "step",
    prompts.OUT_OF_ROUNDS: "loop",
}

_CALL_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")
_BARRED_AT_THE_TOP: Final = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def kind_of_request(request: Mapping[str, Any]) -> RequestKind:
    """Returns `loop` for the ordinary next message, and `other` for a request outside a turn, such as a job's."""
    if request.get("tool_choice") == "required":
        return "arguments"
    last = request["messages"][-1]
    instruction = str(last["content"]) if last["role"] == "user" else ""
    return next(
        (asked for note, asked in _NOTES.items() if note in instruction), "loop" if "tools" in request else "other"
    )


def invalid_history(messages: list[dict[str, Any]], form: WireForm = ANY_MODEL) -> str | None:
    """Returns why the strictest endpoint or chat template would refuse the messages, or None.

    The rules are those of docs/providers.md. `form` is what the model cannot take beside them.
    """
    system = [message["role"] for message in messages].count("system")
    talk = messages if form.no_system_role else messages[1:]
    if form.no_system_role and system:
        return "the model has no system role"
    if not form.no_system_role and (system != 1 or messages[0]["role"] != "system"):
        return "exactly one system message has to come first"
    if not talk or talk[0]["role"] != "user":
        return "a conversation starts with the user"
    if talk[-1]["role"] not in {"user", "tool"}:
        return "the assistant has the last word"
    if any(not (isinstance(message.get("content"), str) or _has_parts(message)) for message in messages):
        return "a content that is no text"
    return _malformed_call(talk) or _unpaired_call(talk) or _out_of_turn(talk) or _beyond_the_form(talk, form)


def _has_parts(message: Mapping[str, Any]) -> bool:
    """Whether the content is a list: of thinking, which only goes back to the endpoint that gave it, or of images."""
    parts = message.get("content")
    needed = {"assistant": "thinking", "user": "image_url"}.get(message["role"])
    return isinstance(parts, list) and any(part["type"] == needed for part in parts)


def _malformed_call(messages: list[dict[str, Any]]) -> str | None:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    if repeated := [call_id for call_id, times in Counter(call["id"] for call in calls).items() if times > 1]:
        return f"the same call twice: {repeated}"
    if unfit := [call["id"] for call in calls if not _CALL_ID.fullmatch(call["id"])]:
        return f"ids that are not nine letters and digits: {unfit}"
    if unfit := [call["id"] for call in calls if not _TOOL_NAME.fullmatch(call["function"]["name"])]:
        return f"calls of a tool with an impossible name: {unfit}"
    broken = [call["id"] for call in calls if not _is_object(call["function"]["arguments"])]
    return f"arguments that are no JSON object: {broken}" if broken else None


def _unpaired_call(messages: list[dict[str, Any]]) -> str | None:
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"a result without a call: {message['tool_call_id']}"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            break
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return f"unanswered calls: {sorted(open_calls)}" if open_calls else None


def _out_of_turn(messages: list[dict[str, Any]]) -> str | None:
    """User and assistant alternate; templates count neither results nor messages with calls."""
    counted = [message for message in messages if message["role"] != "tool" and not message.get("tool_calls")]
    expected = cycle(("user", "assistant"))
    if any(message["role"] != role for message, role in zip(counted, expected, strict=False)):
        return f"out of turn: {[message['role'] for message in counted]}"
    if any(first["role"] == second["role"] == "assistant" for first, second in pairwise(messages)):
        return "the assistant twice in a row"
    if any(not str(message["content"]).strip() for message in counted):
        return "a message that says nothing"
    return None


def _beyond_the_form(messages: list[dict[str, Any]], form: WireForm) -> str | None:
    calling = [message for message in messages if message.get("tool_calls")]
    if form.one_call_per_message and any(len(message["tool_calls"]) > 1 for message in calling):
        return "two calls in one message"
    if form.no_text_beside_calls and any(message["content"] for message in calling):
        return "text beside calls"
    return None


def invalid_tools(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns why an endpoint would refuse the tools of a request, or None."""
    functions = [tool["function"] for tool in tools]
    names = [function["name"] for function in functions]
    if len(names) > MAX_TOOLS or len(set(names)) < len(names):
        return f"{len(names)} tools with {len(set(names))} names"
    if unfit := [name for name in names if not _TOOL_NAME.fullmatch(name)]:
        return f"impossible names: {unfit}"
    for function in functions:
        schema = function["parameters"]
        if schema.get("type") != "object" or "properties" not in schema or not _BARRED_AT_THE_TOP.isdisjoint(schema):
            return f"{function['name']}: its schema is not simply that of an object"
        if not all(map(_is_taken, _schemas_in(schema))):
            return f"{function['name']}: a reference, or an array without items"
    return None


def _schemas_in(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items")]
    for each in (*below, schema.get("additionalProperties")):
        if isinstance(each, Mapping):
            yield from _schemas_in(each)


def _is_taken(schema: Mapping[str, Any]) -> bool:
    return "$ref" not in schema and ("items" in schema or "array" not in schema.get("type", ""))


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Difference:
    """`turn` counts from 1. `recorded` is None if it was not recorded, `played` is None if it did not happen."""

    turn: int
    what: str
    recorded: str | None
    played: str | None

    def __str__(self) -> str:
        shown = [f"turn {self.turn}: {self.what}"]
        if self.recorded is not None:
            shown.append(f"    recorded: {_short(self.recorded)}")
        if self.played is not None:
            shown.append(f"    played:   {_short(self.played)}")
        return "\n".join(shown)


@dataclass(frozen=True, slots=True)
class Played:
    """A turn as the API returns it. `usage` is None if it ended without an answer."""

    status: str
    answer: str | None = None
    calls: Sequence[Mapping[str, Any]] = ()
    plan: Mapping[str, Any] | None = None
    usage: RecordedUsage | None = None


def differences(number: int, turn: RecordedTurn, played: Played, *, in_words: bool = True) -> Iterable[Difference]:
    """Another answer counts `in_words`: no two models say the same."""
    if (turn.status == "completed") != (played.status == "completed"):
        yield Difference(number, "it ended otherwise", turn.status, played.status)
    elif in_words and turn.answer != played.answer:
        yield Difference(number, "another answer", turn.answer or "", played.answer or "")
    recorded = [_call_line(call.tool, call.args, call.status) for call in turn.calls]
    happened = [_call_line(call["tool_name"], call["args"], call["status"]) for call in played.calls]
    for tag, start, end, begin, until in difflib.SequenceMatcher(None, recorded, happened, False).get_opcodes():
        if tag != "equal":
            yield from _unlike_calls(number, recorded[start:end], happened[begin:until])
    if turn.status == "completed" and played.status == "completed":
        before, after = _plan_lines(turn.plan), _plan_lines(played.plan)
        if before != after:
            yield Difference(number, "the plan stands otherwise", before, after)


def usage_line(usage: RecordedUsage | None) -> str:
    if usage is None:
        return "not known"
    cost = "" if usage.cost is None else f", ${usage.cost:.6f}"
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    return f"{usage.llm_calls} calls, {usage.input_tokens} tokens in{cached}, {usage.output_tokens} out{cost}"


def _unlike_calls(number: int, recorded: Sequence[str], happened: Sequence[str]) -> Iterable[Difference]:
    common = min(len(recorded), len(happened))
    for before, after in zip(recorded[:common], happened[:common], strict=True):
        yield Difference(number, "another call", before, after)
    for missing in recorded[common:]:
        yield Difference(number, "a call is missing", missing, None)
    for extra in happened[common:]:
        yield Difference(number, "a call that was not recorded", None, extra)


def _call_line(tool: str, args: Mapping[str, Any], status: str) -> str:
    """An interrupted call cannot be interrupted again, so it counts as failed."""
    return f"{tool} {canonical_args(args)} {'succeeded' if status == 'succeeded' else 'failed'}"


def _plan_lines(plan: RecordedPlan | Mapping[str, Any] | None) -> str | None:
    if plan is None:
        return None
    shown = plan.model_dump() if isinstance(plan, RecordedPlan) else plan
    steps = (
        f"{step['tool']} {canonical_args(step['args'] or {})} {step['status'].replace('unknown', 'failed')}"
        for step in shown["steps"]
    )
    return "; ".join([shown["status"], *steps])


def _short(text: str) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
