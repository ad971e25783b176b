"""A conversation as Markdown, for people: what was said, and which calls were made, without secrets."""

from collections.abc import Iterator

from segue.domain.plan import decision_of
from segue.domain.redaction import without_secret_texts
from segue.domain.session import Message
from segue.domain.tool import ToolCall, canonical_args
from segue.memory.history import STEERED
from segue.turns.export import StoredConversation

_SPEAKERS = {"user": "User", "assistant": "Assistant"}
MAX_ARGS_CHARS = 300


def as_markdown(conversation: StoredConversation) -> str:
    """Takes long for a long conversation: call it in a thread."""
    session = conversation.session
    parts = [f"# {session.title or 'Conversation'}", f"{session.created_at:%Y-%m-%d %H:%M} UTC"]
    for row in conversation.turns:
        for message in conversation.messages[row.id]:
            parts += _shown(message, conversation)
    return str(without_secret_texts("\n\n".join(parts))) + "\n"


def _shown(message: Message, conversation: StoredConversation) -> Iterator[str]:
    if message.role == "tool":
        return
    said = decision_of(message.content) if message.role == "user" else None
    text = f"({said})" if said else str(message.content)
    meanwhile = " (meanwhile)" if STEERED in message.metadata else ""
    yield f"## {_SPEAKERS[message.role]}, {message.created_at:%Y-%m-%d %H:%M}{meanwhile}"
    if files := message.metadata.get("attachments"):
        yield "\n".join(
            f"- `` {_plain(each['name'])} `` ({each['media_type']}, {each['size_bytes']} bytes)" for each in files
        )
    if text:
        yield f"{text} […]" if message.cut_off else text
    made = (conversation.calls[call.id] for call in message.tool_calls if call.id in conversation.calls)
    if calls := "\n".join(map(_line, made)):
        yield calls


def _line(call: ToolCall) -> str:
    """A line of code each, so that nothing in arguments and results is read as Markdown."""
    asked = canonical_args(call.args)
    asked = asked if len(asked) <= MAX_ARGS_CHARS else f"{asked[:MAX_ARGS_CHARS]}…"
    told = _plain(f"{call.tool_name} {asked}: {call.status}. {call.metadata.summary}")
    return f"- `` {told} ``"


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "'").split())
