"""One of LangChain's own chat models as the service takes it: our keys on its messages, our errors, bounded.

What differs between the packages is a Dialect. Knows nothing of deadlines and retries: those are `model.py`'s.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

import httpx2
import structlog
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import Field

from segue.agent.llm.model_errors import BROKE_OFF, NotAnAnswer, ProviderRefusal, ProviderUnreachable, too_long
from segue.agent.llm.providers.async_model import AsyncChatModel
from segue.agent.llm.providers.content_blocks import AnswerReader, given_back
from segue.agent.llm.providers.event_stream import BROKEN
from segue.agent.llm.providers.refusals import parameter_named
from segue.agent.llm.reply import REASONING, SCHEMA

log = structlog.get_logger()


class AdaptedModel(AsyncChatModel):
    """`asked` is the package's model. `read_error` reads errors of the types in `errors`; `choices` is what a choice of
    tools is called there, and one that is not in it is not sent. `parameters` go into every request until they are
    refused, which is remembered for as long as the process lives; `offered` and `schema_parameters` put a tool and a
    schema of the answer as they are wanted there.
    """

    asked: Any = Field(exclude=True)
    dialect: Any = Field(exclude=True)
    errors: Any = Field(exclude=True)
    read_error: Any = Field(exclude=True)
    choices: Mapping[str, Any]
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    refused: set[str] = Field(default_factory=set)
    offered: Any = Field(default=dict, exclude=True)
    schema_parameters: Any = Field(default=None, exclude=True)
    made_by: str
    max_answer_bytes: int
    asks_for_whole_answers: bool = False

    @property
    def takes_schemas(self) -> bool:
        return self.schema_parameters is not None

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self._with(tools, **kwargs)

    def _with(self, tools: Sequence[Any] = (), *, tool_choice: str = "", **options: Any) -> Self:
        """Returns the model that asks with these tools, and with a schema of the answer if one is given."""
        changed: dict[str, Any] = {}
        if SCHEMA in options:
            changed["parameters"] = {**self.parameters, **self.schema_parameters(options.pop(SCHEMA))}
        if tools and (tool_choice != "none" or "none" in self.choices):
            chosen = {"tool_choice": self.choices[tool_choice]} if tool_choice in self.choices else {}
            changed["asked"] = self.asked.bind_tools([self.offered(tool) for tool in tools], **chosen, **options)
        return self.model_copy(update=changed) if changed else self

    async def whole(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        reader = AnswerReader(self.dialect)
        texts, reasoning = [], []
        model = self._with(**options)
        async for message in model.answer(messages, reader, is_streamed=not self.asks_for_whole_answers):
            words = reader.add(message)
            texts.append(words.text)
            reasoning.append(words.reasoning)
        said = reader.closing(self.made_by)
        said["additional_kwargs"][REASONING] = "".join(reasoning)
        return AIMessage("".join(texts), **said)

    async def chunks(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AsyncGenerator[AIMessageChunk]:
        reader = AnswerReader(self.dialect)
        async with aclosing(self._with(**options).answer(messages, reader, is_streamed=True)) as answer:
            async for message in answer:
                words = reader.add(message)
                # Reasoning, be it empty, tells a piece of the answer from a mere sign of life.
                extra = {REASONING: words.reasoning} if reader.has_begun else {}
                yield AIMessageChunk(content=words.text, additional_kwargs=extra)
        yield AIMessageChunk(content="", chunk_position="last", **reader.closing(self.made_by))

    async def answer(
        self, messages: list[BaseMessage], reader: AnswerReader, *, is_streamed: bool
    ) -> AsyncGenerator[AIMessage]:
        """Yields the answer, whole or in chunks, asked for again without what is refused of the parameters."""
        given = self.dialect.with_cache_marks([self._given_back(message) for message in messages])
        refused = frozenset(self.refused)
        while True:
            sent = {name: value for name, value in self.parameters.items() if name not in refused}
            try:
                async with aclosing(self._received(given, reader, sent, is_streamed=is_streamed)) as received:
                    async for message in received:
                        self.refused |= refused  # kept only once it has helped
                        yield message
            except ProviderRefusal as refusal:
                name = None if reader.has_begun else parameter_named(refusal, sent)
                if name is None:
                    raise
                log.warning("model_parameter_left_out", parameter=name, reason=refusal.message, status=refusal.status)
                refused |= {name}
            else:
                return

    async def _received(
        self, given: list[BaseMessage], reader: AnswerReader, parameters: Mapping[str, Any], *, is_streamed: bool
    ) -> AsyncGenerator[AIMessage]:
        """Raises ModelFailure or TimeoutError."""
        try:
            if not is_streamed:
                yield await self.asked.ainvoke(given, **parameters)
                return
            async with aclosing(self.asked.astream(given, **parameters)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    if reader.size > self.max_answer_bytes:
                        raise too_long(self.max_answer_bytes)
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except BROKEN as error:
            raise NotAnAnswer(BROKE_OFF) if reader.has_begun else ProviderUnreachable from error
        except self.errors as error:
            raise self.read_error(error) or error from error
        if reader.finish_reason is None:
            raise NotAnAnswer(BROKE_OFF)

    def _given_back(self, message: BaseMessage) -> BaseMessage:
        return given_back(message, self.dialect, self.made_by) if isinstance(message, AIMessage) else message
