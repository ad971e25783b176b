"""The events of a turn's stream for readers: what each has beside `type`, and what it means. As in docs/events.md.

`events/agui.py` writes them; tests/support/streams.py compares every event that a test reads with this.
"""

from collections.abc import Mapping
from typing import Final

EVENT_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "RUN_STARTED": ("threadId runId", "The turn begins. The thread is the session, the run is the turn."),
    "STEP_STARTED": ("stepName", "The agent begins to `detect_acknowledgement`, `plan`, `tool_loop`, `respond`, …"),
    "STEP_FINISHED": ("stepName", "… and has done it."),
    "CUSTOM": ("name value", "Ours: by `name`, below."),
    "STATE_SNAPSHOT": ("snapshot", '`{"plan": Plan}`, once the turn has one.'),
    "STATE_DELTA": ("delta", "What has changed in it, as a JSON patch."),
    "TOOL_CALL_START": ("toolCallId toolCallName parentMessageId", "A tool is called."),
    "TOOL_CALL_ARGS": ("toolCallId delta", "Its arguments as JSON, in one piece. Over 16 kB a `$ref` to the API."),
    "TOOL_CALL_END": ("toolCallId", "The arguments are complete. The call has only begun."),
    "TOOL_CALL_RESULT": ("messageId toolCallId content role", "It has ended: a Reference as JSON, not the result."),
    "TEXT_MESSAGE_START": ("messageId role", "The assistant begins to say something."),
    "TEXT_MESSAGE_CONTENT": ("messageId delta", "The next piece of it."),
    "TEXT_MESSAGE_END": ("messageId", "It is complete. The message that counts is the last one."),
    "REASONING_START": ("messageId", "The model thinks, if SHOW_REASONING is set. Stored nowhere."),
    "REASONING_MESSAGE_START": ("messageId role", "It begins to say what."),
    "REASONING_MESSAGE_CONTENT": ("messageId delta", "The next piece of it."),
    "REASONING_MESSAGE_END": ("messageId", "It is complete."),
    "REASONING_END": ("messageId", "The model has thought."),
    "RUN_FINISHED": ("threadId runId result", "The last event of a turn that completed: `result` is its ChatAnswer."),
    "RUN_ERROR": ("message code metadata", "The last event of any other turn: `metadata.problem` is the problem."),
}
CUSTOM_EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    "acknowledgement": ("AcknowledgementReport", "How the user's message was read."),
    "web_search": ("WebSearchReport", "Whether the web is searched, so far."),
    "tool_state": ("`{tool_name, state: ToolState}`", "The status of a tool has changed in this session."),
    "grant_used": ("`{tool_call_id, tool_name}`", "A call that would have waited runs under a grant for the session."),
    "tool_progress": (
        "`{tool_call_id, progress, total: number|null, message: str|null}`",
        "How far a running call is, as its tool counts. Seldom, and only the latest.",
    ),
    "steered": ("`{message: Message}`", "The turn has read a message that came while it ran, which is part of it now."),
    "attempt": ("`{number}`", "Another process took the turn over: what it said before counts no more."),
    "replay_gap": ("null", "The log no longer holds what came before: read the history."),
}


def tables() -> str:
    """Returns both in Markdown."""
    types = (f"| {kind} | {members.replace(' ', ', ')} | {says} |" for kind, (members, says) in EVENT_TYPES.items())
    custom = (f"| {name} | {value} | {says} |" for name, (value, says) in CUSTOM_EVENTS.items())
    return "\n".join(
        ["| type | members | |", "|---|---|---|", *types, "", "| name | value | |", "|---|---|---|", *custom]
    )
