"""What a turn knows and changes on its way through the graph: plain data, every key declared."""

from typing import Any, TypedDict

from langchain_core.messages import BaseMessage

from backend.domain.session import Message
from backend.domain.tool import Reference, ToolCall
from backend.memory.short_term import ShortTermMemory
from backend.plans.acknowledgement import Acknowledgement
from backend.plans.policy import SearchDecision


class TurnInput(TypedDict):
    """The snapshot a turn starts from. `history` ends with the user's message; `message_count` is what is stored."""

    message: str
    force_web_search: bool
    history: list[Message]
    memory: ShortTermMemory | None
    message_count: int


class TurnState(TurnInput, total=False):
    """`conversation` is what the model has been shown in this turn; `answer` is None while nothing answers yet."""

    acknowledgement: Acknowledgement
    search: SearchDecision
    conversation: list[BaseMessage]
    answer: str | None
    tool_calls: list[ToolCall]
    references: list[Reference]
    llm_calls: int
    input_tokens: int
    output_tokens: int


Update = dict[str, Any]
