"""Whether a model that cannot take everything takes a request: what its family refuses, and what any provider does."""

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import count
from typing import Any

from segue.around.replay.request_rules import invalid_history
from segue.models.normal_form import WireForm

NAMED_CALL_ID = re.compile(r"functions\.[\w-]{1,64}:\d+")


def invalid_in_form(messages: list[dict[str, Any]], form: WireForm) -> str | None:
    """Why the request is refused, None if it is not."""
    if form.no_system_role:
        if any(message["role"] == "system" for message in messages):
            return "the model has no system role"
        messages = [{"role": "system", "content": "Be brief."}, *messages]
    calling = [message for message in messages if message.get("tool_calls")]
    if form.one_call_per_message and any(len(message["tool_calls"]) > 1 for message in calling):
        return "two calls in one message"
    if form.no_text_beside_calls and any(message["content"] for message in calling):
        return "text beside calls"
    if form.call_id:
        ids = [call["id"] for message in calling for call in message["tool_calls"]]
        if unfit := [call_id for call_id in ids if not NAMED_CALL_ID.fullmatch(call_id)]:
            return f"ids that do not fit {NAMED_CALL_ID.pattern}: {unfit}"
        messages = with_short_ids(messages)
    return invalid_history(messages)


def with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same calls and results under ids of the strictest form."""
    numbers = count(1)
    short: Mapping[str, str] = defaultdict(lambda: f"call{next(numbers):05d}")
    renamed = []
    for message in messages:
        changed = dict(message)
        if message.get("tool_calls"):
            changed["tool_calls"] = [{**call, "id": short[call["id"]]} for call in message["tool_calls"]]
        if message["role"] == "tool":
            changed["tool_call_id"] = short[message["tool_call_id"]]
        renamed.append(changed)
    return renamed
