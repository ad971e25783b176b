"""OpenAI's two protocols, chat completions and the Responses API: which of them is asked, and the other if it refuses.

What has answered once is remembered for as long as the process lives.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import structlog
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from pydantic import Field

from segue.agent.llm.model_errors import ProviderRefusal
from segue.agent.llm.providers.adapted import AdaptedModel
from segue.agent.llm.providers.async_model import AsyncChatModel
from segue.agent.llm.providers.chat_completions import ChatCompletions, chat_completions
from segue.agent.llm.providers.openai_address import is_openai_itself, made_by
from segue.agent.llm.providers.options import ProviderOptions

CHAT: Final = "chat"
RESPONSES: Final = "responses"
NO_EFFORT: Final = "chat without reasoning"
# Causes of refusals, by name, that another way of asking may not meet. Rows of words are in CAUSES.
_OTHER_WAYS: Final = {
    CHAT: frozenset({"other_api"}),
    RESPONSES: frozenset({"other_api", "not_found"}),
}

log = structlog.get_logger()


class Ways:
    """The ways to ask, in order. Each is opened when it is first needed: one of them imports for most of a second."""

    def __init__(self, stack: AsyncExitStack, options: ProviderOptions) -> None:
        first = (RESPONSES, CHAT) if is_openai_itself(options) else (CHAT, RESPONSES)
        self.names: tuple[str, ...] = (*first, NO_EFFORT) if options.api == "auto" else (options.api,)
        self._stack = stack
        self._options = options
        self._open: dict[str, ChatCompletions | AdaptedModel] = {}
        self._opening = asyncio.Lock()

    async def model(self, name: str) -> ChatCompletions | AdaptedModel:
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self._opened(name)
            return self._open[name]

    def pass_over(self, name: str) -> None:
        """Forgets the ways before this one, which has answered."""
        if name != self.names[0] and name in self.names:
            self.names = self.names[self.names.index(name) :]

    async def _opened(self, name: str) -> ChatCompletions | AdaptedModel:
        if name == RESPONSES:
            responses = await asyncio.to_thread(_responses)
            return await self._stack.enter_async_context(responses(self._options))
        effort = "none" if name == NO_EFFORT else self._options.reasoning_effort
        options = replace(self._options, reasoning_effort=effort)
        return await self._stack.enter_async_context(chat_completions(options))


class OpenAIModel(AsyncChatModel):
    """Asks in the first way that is left, and in the next if the refusal says that another may do."""

    ways: Any = Field(exclude=True)
    made_by: tuple[str, ...] = ()
    takes_schemas: bool = True

    async def whole(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        async with aclosing(self._answered(messages, options, is_streamed=False)) as answered:
            result: AIMessage = await anext(answered)
            return result

    async def chunks(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AsyncGenerator[AIMessageChunk]:
        async with aclosing(self._answered(messages, options, is_streamed=True)) as answered:
            async for chunk in answered:
                yield chunk

    async def _answered(
        self, messages: list[BaseMessage], options: Mapping[str, Any], *, is_streamed: bool
    ) -> AsyncGenerator[Any]:
        """Yields the result, or the chunks of a stream. Raises the first way's refusal if no other does."""
        first: ProviderRefusal | None = None
        names = self.ways.names
        for name in names:
            try:
                model = await self.ways.model(name)
                if is_streamed:
                    async with aclosing(model.chunks(messages, options)) as chunks:
                        async for chunk in chunks:
                            self.ways.pass_over(name)
                            yield chunk
                else:
                    result = await model.whole(messages, options)
                    self.ways.pass_over(name)
                    yield result
            except ProviderRefusal as refusal:
                first = first or refusal
                if name == names[-1] or refusal.cause.name not in _OTHER_WAYS[name]:
                    raise first from None
                log.warning("model_way_refused", way=name, status=refusal.status, reason=refusal.message)
            else:
                return


@asynccontextmanager
async def openai_model(options: ProviderOptions) -> AsyncIterator[BaseChatModel]:
    """Yields a model whose connections close with the block."""
    async with AsyncExitStack() as stack:
        ways = Ways(stack, options)
        await ways.model(ways.names[0])
        yield OpenAIModel(
            ways=ways,
            made_by=tuple(made_by(options, api) for api in (CHAT, RESPONSES)),
            takes_schemas=options.structured_output,
            cache=False,
        )


def _responses() -> Callable[[ProviderOptions], AbstractAsyncContextManager[AdaptedModel]]:
    from segue.agent.llm.providers.responses import responses  # noqa: PLC0415 (it takes most of a second)

    return responses
