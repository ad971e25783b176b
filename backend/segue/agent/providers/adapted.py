"""One of LangChain's own chat models as the service takes it: our keys on its messages, our errors, bounded.

What differs between the packages is a Dialect. Knows nothing of deadlines and retries: those are `model.py`'s.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import httpx2
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import Field

from segue.agent.model_errors import BROKE_OFF, NotAnAnswer, ProviderRefusal, ProviderUnreachable, too_long
from segue.agent.providers.content_blocks import AnswerReader, given_back
from segue.agent.reply import REASONING

_BROKEN: Final = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)

ReadError = Callable[[Exception], ProviderRefusal | None]


class AdaptedModel(BaseChatModel):
    """`asked` is the package's model, with its tools. `read_error` reads errors of the types in `errors`; `choices`
    is what a choice of tools is called there, and one that is not in it is not sent.
    """

    asked: Any = Field(exclude=True)
    dialect: Any = Field(exclude=True)
    errors: Any = Field(exclude=True)
    read_error: Any = Field(exclude=True)
    choices: Mapping[str, str]
    made_by: str
    max_answer_bytes: int
    asks_for_whole_answers: bool = False

    @property
    def _llm_type(self) -> str:
        return "adapted"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        choice = self.choices.get(kwargs.pop("tool_choice", ""))
        chosen = {"tool_choice": choice} if choice else {}
        return self.model_copy(update={"asked": self.asked.bind_tools(tools, **chosen, **kwargs)})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("the service is asynchronous throughout")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 (LangChain's signature)
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 (the same)
        **kwargs: Any,  # noqa: ARG002 (the same)
    ) -> ChatResult:
        reader = AnswerReader(self.dialect)
        texts, reasoning = [], []
        async for message in self._answer(messages, reader, is_streamed=not self.asks_for_whole_answers):
            words = reader.add(message)
            texts.append(words.text)
            reasoning.append(words.reasoning)
        said = reader.closing(self.made_by)
        said["additional_kwargs"][REASONING] = "".join(reasoning)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(texts), **said))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 (LangChain's signature)
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 (the same)
        **kwargs: Any,  # noqa: ARG002 (the same)
    ) -> AsyncIterator[ChatGenerationChunk]:
        reader = AnswerReader(self.dialect)
        async with aclosing(self._answer(messages, reader, is_streamed=True)) as answer:
            async for message in answer:
                words = reader.add(message)
                # Reasoning, be it empty, tells a piece of the answer from a mere sign of life.
                extra = {REASONING: words.reasoning} if reader.has_begun else {}
                yield ChatGenerationChunk(message=AIMessageChunk(content=words.text, additional_kwargs=extra))
        last = AIMessageChunk(content="", chunk_position="last", **reader.closing(self.made_by))
        yield ChatGenerationChunk(message=last)

    async def _answer(
        self, messages: list[BaseMessage], reader: AnswerReader, *, is_streamed: bool
    ) -> AsyncGenerator[AIMessage]:
        """Yields the answer, whole or in chunks. Raises ModelFailure or TimeoutError."""
        given = [self._given_back(message) for message in messages]
        try:
            if not is_streamed:
                yield await self.asked.ainvoke(given)
            else:
                async with aclosing(self.asked.astream(given)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        if reader.size > self.max_answer_bytes:
                            raise too_long(self.max_answer_bytes)
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except _BROKEN as error:
            raise NotAnAnswer(BROKE_OFF) if reader.has_begun else ProviderUnreachable from error
        except self.errors as error:
            raise self.read_error(error) or error from error
        if is_streamed and reader.finish_reason is None:
            raise NotAnAnswer(BROKE_OFF)

    def _given_back(self, message: BaseMessage) -> BaseMessage:
        return given_back(message, self.dialect, self.made_by) if isinstance(message, AIMessage) else message
