"""The models of providers as the service takes them: asked asynchronously, for a whole answer or for its chunks.

`AsyncChatModel` holds LangChain's signatures. `AdaptedModel` is one of LangChain's own models with our keys on its
messages and our errors, bounded; what differs between the packages is a Dialect. `ProviderOptions` is what each is made
from. Knows nothing of deadlines and retries: those are `model.py`'s.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import httpx2
import structlog
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from pydantic import Field, SecretStr

from segue.domain.agent import OPENAI, ModelProvider, ProviderApi
from segue.domain.redaction import header_secrets
from segue.domain.telemetry import Attribute
from segue.models.amendments import parameter_named
from segue.models.providers.content_blocks import AnswerReader, given_back
from segue.models.refusals import BROKE_OFF, BROKEN, NotAnAnswer, ProviderRefusal, ProviderUnreachable, too_long
from segue.models.reply import CACHE_KEY, MOST_OUTPUT, REASONING, SAMPLING, SCHEMA
from segue.secret_files import LiveKeys

log = structlog.get_logger()


class AsyncChatModel(BaseChatModel):
    takes_sampling: ClassVar[bool] = True

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


class AdaptedModel(AsyncChatModel):
    """Asks `package_model`. `read_error` reads errors of the types in `errors`; `choices` is what a choice of
    tools is called there, and one that is not in it is not sent. `parameters` go into every request until they are
    refused, which is remembered for as long as the process lives; `offered` and `schema_parameters` put a tool and a
    schema of the answer as they are wanted there. `most_output` is the name of what bounds an answer, as a parameter or
    an attribute of the package's model. What is in `extra` goes into the body beside, or within, what stands there.
    """

    package_model: Any = Field(exclude=True)
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
    most_output: str = "max_output_tokens"
    extra: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def takes_schemas(self) -> bool:
        return self.schema_parameters is not None

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self._with(tools, **kwargs)

    def _with(self, tools: Sequence[Any] = (), *, tool_choice: str = "", **options: Any) -> Self:
        """Returns the model that asks with these tools, and with what else the options name. What is refused of a
        client's options is not remembered: other values may be welcome.
        """
        changed: dict[str, Any] = {}
        given: dict[str, Any] = {name: options.pop(name) for name in SAMPLING if name in options}
        if "max_tokens" in given:
            given[self.most_output] = given.pop("max_tokens")
        is_clients = bool(given)
        if SCHEMA in options:
            schema = options.pop(SCHEMA)
            given |= self.schema_parameters(schema)
            is_clients |= not schema.get("strict")
        if is_clients:
            changed["refused"] = self.refused - given.keys()
        most, name = options.pop(MOST_OUTPUT, None), self.most_output
        wanted = given.get(name) or self.parameters.get(name) or getattr(self.package_model, name, None)
        if most and wanted:
            given[name] = min(wanted, most)
        if CACHE_KEY in options:
            given[CACHE_KEY] = options.pop(CACHE_KEY)
        if given:
            changed["parameters"] = {**self.parameters, **given}
        if tools and (tool_choice != "none" or "none" in self.choices):
            chosen = {"tool_choice": self.choices[tool_choice]} if tool_choice in self.choices else {}
            offered = [self.offered(tool) for tool in tools]
            changed["package_model"] = self.package_model.bind_tools(offered, **chosen, **options)
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
        given = self.dialect.with_cache_marks(
            [given_back(each, self.dialect, self.made_by) if isinstance(each, AIMessage) else each for each in messages]
        )
        refused = frozenset(self.refused)
        while True:
            sent = {name: value for name, value in self.parameters.items() if name not in refused}
            if self.extra:
                within = {name: sent[name] for name in self.extra.keys() & sent.keys()}
                sent["extra_body"] = merged(within, self.extra)
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
                yield await self.package_model.ainvoke(given, **parameters)
                return
            async with aclosing(self.package_model.astream(given, **parameters)) as chunks:
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


def merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body with the extra in it: objects within objects, anything else in the place of what stood there."""
    result = {**body, **extra}
    for name, value in extra.items():
        if isinstance(value, Mapping) and isinstance(body.get(name), Mapping):
            result[name] = merged(body[name], value)
    return result


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What is None is not sent. `model` is the name without the provider's prefix; the extras are merged last. `api`
    says which of OpenAI's is asked. `keys` stand in the place of the key.
    """

    model: str
    api_key: SecretStr | None
    base_url: str | None
    timeout_s: float
    max_answer_bytes: int
    provider: ModelProvider = OPENAI
    api: ProviderApi = "auto"
    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    structured_output: bool = True
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: LiveKeys | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return self.base_url or self.provider.default_url

    @property
    def server(self) -> dict[str, Attribute]:
        address = urlsplit(self.url)
        port = address.port or (80 if address.scheme == "http" else 443)
        return {"server.address": address.hostname or "", "server.port": port}

    @property
    def key(self) -> str:
        if self.keys is not None:
            return self.keys.value
        return self.api_key.get_secret_value() if self.api_key else "none"

    @property
    def secrets(self) -> Collection[str]:
        """Returns what a provider may repeat of a request and must not be told: the keys and the extra headers. What
        the keys become is added to them.
        """
        never_told = self.keys.never_told if self.keys else {self.key} if self.api_key else set[str]()
        never_told.update(header_secrets(self.extra_headers.values()))
        return never_told
