"""The built-in model for when no provider is configured: deterministic, small, and its answers say that it is offline.

Implements LangChain's chat model and answers the same prompts as a provider's model: it knows them by their text.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata

from segue.agent import prompts
from segue.agent.llm.normal_form import PLACEHOLDERS
from segue.agent.llm.providers.async_model import AsyncChatModel
from segue.offline.facts import extract_facts
from segue.offline.planning import correct_plan, draft_plan, fill_call
from segue.offline.replies import answer
from segue.offline.tools import offered_tool

WORD_DELAY_S = 0.02  # between two words of a stream
_WORD = re.compile(r"\S+\s*|\s+")


class OfflineModel(AsyncChatModel):
    async def whole(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        return await asyncio.to_thread(reply_to, messages, options)  # long if there are hundreds of tools

    async def chunks(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AsyncGenerator[AIMessageChunk]:
        reply = await self.whole(messages, options)
        for word in _WORD.findall(reply.text):
            yield AIMessageChunk(content=word)
            await asyncio.sleep(WORD_DELAY_S)
        yield AIMessageChunk(
            content="",
            tool_calls=reply.tool_calls,
            response_metadata=reply.response_metadata,
            usage_metadata=reply.usage_metadata,
        )


def reply_to(messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
    """Returns the whole reply at once. The options are those of LangChain's request: `tools`, `tool_choice`."""
    reply = _answer_prompt(messages, options.get("tools", []), must_call=options.get("tool_choice") == "required")
    reply.response_metadata["finish_reason"] = "tool_calls" if reply.tool_calls else "stop"
    reply.usage_metadata = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)  # it costs nothing
    return reply


def _answer_prompt(sent: list[BaseMessage], tools: Sequence[dict[str, Any]], *, must_call: bool) -> AIMessage:
    messages = [message for message in sent if message.content not in PLACEHOLDERS]
    if prompts.EXTRACTOR in messages[0].text:
        return AIMessage(extract_facts(messages[-1].text))
    instruction = next((message.text for message in messages[-1:] if isinstance(message, HumanMessage)), "")
    if prompts.AMENDER in instruction:
        return AIMessage(correct_plan(messages))
    if prompts.READER in instruction or prompts.AGREEMENT in instruction:
        return AIMessage('{"verdict": "none"}')  # it cannot tell, so the engine asks again in plain words
    if prompts.ANSWER_READER in instruction:
        return AIMessage('{"reading": "other"}')
    offered = [offered_tool(tool["function"]) for tool in tools]
    if prompts.PLANNER in instruction:
        return AIMessage(draft_plan(messages, offered))
    return fill_call(messages, offered[0]) if must_call else answer(messages, offered)
