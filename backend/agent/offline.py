"""The built-in model for when no provider is configured: deterministic, small, and it says so.

It stands where a provider's model would, behind LangChain's interface, and answers the same prompts: those of a plan in
`offline_plan.py`, everything else in `offline_reply.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from backend.agent import prompts
from backend.agent.offline_plan import draft, fill
from backend.agent.offline_reply import answer, offered_tool


class OfflineModel(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=list(tools), **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 (LangChain's signature)
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 (the same)
        **kwargs: Any,
    ) -> ChatResult:
        reply = _reply(messages, kwargs.get("tools", []), must_call="tool_choice" in kwargs)
        reply.response_metadata["finish_reason"] = "tool_calls" if reply.tool_calls else "stop"
        return ChatResult(generations=[ChatGeneration(message=reply)])


def _reply(messages: list[BaseMessage], tools: Sequence[dict[str, Any]], *, must_call: bool) -> AIMessage:
    system = messages[0].text
    if prompts.AMENDER in system or prompts.READER in system:
        return AIMessage('{"steps": [], "verdict": "none"}')  # beyond it: the engine then asks again in plain words
    if prompts.PLANNER in system:
        return AIMessage(draft(system, messages[-1].text))
    offered = [offered_tool(tool["function"]) for tool in tools]
    return fill(messages, offered[0]) if must_call else answer(messages, offered)
