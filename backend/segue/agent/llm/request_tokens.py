"""How many tokens a request takes, rather too many than too few: what is reserved for it, and what it is charged if the
endpoint does not count.
"""

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from segue.domain.tool import ToolSpec
from segue.memory.token_count import CountTokens, estimate

IMAGE_TOKENS = 1600  # of a large one, with the providers that say what it takes


def estimated_input(messages: Sequence[BaseMessage], tools: Sequence[ToolSpec], count: CountTokens = estimate) -> int:
    calls = (
        f"{call['name']}{call['args']}" for each in messages if isinstance(each, AIMessage) for call in each.tool_calls
    )
    offered = (f"{tool.name}{tool.description}{tool.input_schema}" for tool in tools)
    texts = (*(message.text for message in messages), *calls, *offered)
    return sum(map(count, texts)) + IMAGE_TOKENS * _images_in(messages)


def _images_in(messages: Sequence[BaseMessage]) -> int:
    parts = (part for each in messages if isinstance(each.content, list) for part in each.content)
    return sum(1 for part in parts if isinstance(part, dict) and part.get("type") == "image_url")
