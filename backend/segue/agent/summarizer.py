"""Asks the model to carry a conversation's summary on. A summary is data to all its readers, never an order."""

from collections.abc import Sequence
from typing import Any

from segue.agent.llm.model import ChatModel
from segue.agent.prompts import SUMMARISER, as_json
from segue.agent.untrusted import neutralised
from segue.domain.session import Message
from segue.memory.summary import MAX_SUMMARY_CHARS
from segue.tools.normalize import clean
from segue.usage.account import Account

MAX_TEXT_CHARS = 2000
MAX_ARGS_CHARS = 300
KEPT_OF_A_RESULT = ("tool_call_id", "tool_name", "status", "summary", "identifiers")


async def summarise(model: ChatModel, summary: str | None, messages: Sequence[Message], *, account: Account) -> str:
    """Returns a new summary of the old one and these messages. Raises AppError if the model cannot be asked."""
    given = {"summary": summary or "", "messages": [condensed(message) for message in messages]}
    text: str = clean(await model.complete(SUMMARISER, neutralised(as_json(given)), account=account))
    return text[:MAX_SUMMARY_CHARS]


def condensed(message: Message) -> dict[str, Any]:
    """Returns a message as the summariser sees it: long texts shortened, a result as its reference describes it."""
    match message.content:
        case dict() as reference:
            return {"result": {name: reference[name] for name in KEPT_OF_A_RESULT if name in reference}}
        case text:
            shown: dict[str, Any] = {message.role: _without_middle(text, MAX_TEXT_CHARS), **_told(message)}
            calls = [{call.name: _without_middle(as_json(call.args), MAX_ARGS_CHARS)} for call in message.tool_calls]
            return {**shown, "calls": calls} if calls else shown


def _told(message: Message) -> dict[str, str]:
    note = message.metadata.get("note")
    return {"note": _without_middle(note, MAX_TEXT_CHARS)} if note else {}


def _without_middle(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    part = max_chars // 2
    return f"{text[:part]} […] {text[-part:]}"
