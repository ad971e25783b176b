"""What all models of the service share: each is asked asynchronously, for a whole answer or for its chunks.

Holds LangChain's signatures, so that a model is its two methods `whole` and `chunks`.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool


class AsyncChatModel(BaseChatModel):
    @abstractmethod
    async def whole(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        """Returns the answer. The options are those of the request, `tools` among them."""

    @abstractmethod
    def chunks(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AsyncGenerator[AIMessageChunk]:
        """Yields the answer piece by piece."""

    @property
    def _llm_type(self) -> str:
        return "segue"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=list(tools), **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise TypeError("the models of the service are asked asynchronously: await ainvoke() or iterate astream()")

    # LangChain's own would run callbacks around the two methods, which takes a task and validates all messages again.
    async def ainvoke(
        self,
        input: LanguageModelInput,  # noqa: A002 (LangChain's)
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return await self.whole(_messages(input), kwargs)

    async def astream(
        self,
        input: LanguageModelInput,  # noqa: A002 (LangChain's)
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        async with aclosing(self.chunks(_messages(input), kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk


def _messages(given: LanguageModelInput) -> list[BaseMessage]:
    return [HumanMessage(given)] if isinstance(given, str) else convert_to_messages(given)
