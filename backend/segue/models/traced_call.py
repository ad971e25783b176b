"""A call of a model or tool as the attributes of its span, by OpenTelemetry's conventions, without secrets. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import orjson
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from segue.domain.identity import Charge
from segue.domain.redaction import without_secrets
from segue.domain.telemetry import Attribute
from segue.domain.tool import ToolSpec
from segue.language.lexicon import load_toml
from segue.models.reply import ROLES, Reply
from segue.models.untrusted import clipped
from segue.tools.normalize import clean, clean_text

MAX_DESCRIPTION_CHARS: Final = 200
MAX_TEXT_CHARS: Final = 4_000
MAX_CHARS: Final = 60_000  # of one attribute; of messages that are more the oldest are left out
FINISHED: Final = load_toml("completions.toml", package="segue.models.providers")["conventions"]


def response(reply: Reply, charge: Charge) -> dict[str, Attribute]:
    """Returns an answer's usage and how it ended, as far as its endpoint tells."""
    finished = FINISHED.get(reply.finish_reason, reply.finish_reason)
    finished = "tool_call" if reply.calls and finished == "stop" else finished
    attributes: dict[str, Attribute] = {
        "gen_ai.response.model": reply.answered_by,
        "gen_ai.response.id": reply.response_id,
        "gen_ai.response.finish_reasons": [finished] if finished else [],
        "gen_ai.usage.cache_read.input_tokens": reply.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": reply.written_tokens,
        "gen_ai.usage.reasoning.output_tokens": reply.reasoning_tokens,
    }
    counted = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    # No convention names the cost yet. Langfuse and others read this.
    cost = {} if charge.cost is None else {"gen_ai.usage.cost": float(charge.cost)}
    return {name: value for name, value in attributes.items() if value} | counted | cost


def input_messages(messages: Sequence[BaseMessage]) -> dict[str, str]:
    instructions = list(takewhile(lambda message: message.type == "system", messages))
    spoken = ({"role": ROLES[each.type], "parts": _parts(each)} for each in reversed(messages[len(instructions) :]))
    system = {"gen_ai.system_instructions": _json(_text(each.text) for each in instructions)} if instructions else {}
    return {**system, "gen_ai.input.messages": _json(spoken)}


def output_messages(reply: Reply) -> dict[str, str]:
    thought = [{**_text(reply.reasoning), "type": "reasoning"}] if reply.reasoning else []
    calls = [{"name": call.name, "args": call.args or {}, "id": None} for call in reply.calls]
    message = {"role": "assistant", "parts": [*thought, *_parts(AIMessage(reply.text, tool_calls=calls))]}
    return {"gen_ai.output.messages": _json([message])}


def described(spec: ToolSpec) -> dict[str, str]:
    return {"gen_ai.tool.type": "function", "gen_ai.tool.description": spec.description[:MAX_DESCRIPTION_CHARS]}


def executed(args: Mapping[str, Any], result: str) -> dict[str, str]:
    arguments = orjson.dumps(_arguments(args)).decode()
    return {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": _shown(result)}


def _parts(message: BaseMessage) -> list[dict[str, Any]]:
    if isinstance(message, ToolMessage):
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": _shown(message.text)}]
    parts = [_text(message.text)] if message.text else []
    for call in message.tool_calls if isinstance(message, AIMessage) else ():
        call_part = {"id": call["id"], "name": call["name"], "arguments": _arguments(call["args"])}
        parts.append({"type": "tool_call", **call_part})
    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": _shown(text)}


def _arguments(args: Mapping[str, Any]) -> dict[str, Any]:
    return clipped(without_secrets(clean(args, max_chars=2 * MAX_TEXT_CHARS)), MAX_TEXT_CHARS)


def _shown(text: str) -> str:
    # Twice as much is looked at, since a secret that is cut is not recognised.
    shown: str = without_secrets(clean_text(text[: 2 * MAX_TEXT_CHARS]))
    return shown if len(shown) <= MAX_TEXT_CHARS else f"{shown[:MAX_TEXT_CHARS]}…"


def _json(newest_first: Iterable[Mapping[str, Any]]) -> str:
    written, room = list[str](), MAX_CHARS
    for text in (orjson.dumps(item).decode() for item in newest_first):
        if (room := room - len(text)) < 0:
            break
        written.append(text)
    return f"[{','.join(reversed(written))}]"
