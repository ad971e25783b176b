"""OpenAI's two protocols, chat completions and the Responses API: which of them is asked, and the other if it refuses.

Chat completions are for OpenAI and every endpoint that speaks its protocol: `ChatCompletions` writes requests and hands
on what `completion_reader.py` reads; nothing of an answer is lost on the way. Knows nothing of deadlines and retries.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import astuple, replace
from itertools import zip_longest
from typing import Any, Final

import structlog
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from pydantic import Field

from segue.models import reply
from segue.models.amendments import RENAMED
from segue.models.normal_form import form_of
from segue.models.providers.adapted import AdaptedModel, AsyncChatModel, ProviderOptions, merged
from segue.models.providers.completion_reader import AnswerWords, CompletionReader
from segue.models.providers.endpoint import endpoint_of, is_openai_itself, made_by
from segue.models.refusals import BROKE_OFF, NotAnAnswer, ProviderRefusal

CHAT: Final = "chat"
RESPONSES: Final = "responses"
NO_EFFORT: Final = "chat without reasoning"
# Causes of refusals, by name, that another way of asking may not meet. Rows of words are in CAUSES.
_MAY_DO_BETTER: Final = {CHAT: {"other_api"}, RESPONSES: {"other_api", "not_found"}}

_MOST: Final = {"max_tokens", "max_completion_tokens"}  # what bounds an answer

log = structlog.get_logger()


class ChatCompletions(AsyncChatModel):
    """`parameters` go into every request, and the `extra` ones whatever else would stand in their place."""

    llm: str
    made_by: str
    endpoint: Any = Field(exclude=True)  # an Endpoint, which pydantic has no schema for
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    extra: Mapping[str, Any] = Field(default_factory=dict)
    takes_schemas: bool = True

    async def whole(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        reader = CompletionReader(form_of(self.llm).wants_thinking)
        said = [words async for words in self._read(reader, messages, options) if words]
        if not said:
            raise ValueError("no message")
        text, extra = _as_message(AnswerWords(*("".join(texts) for texts in zip(*map(astuple, said), strict=True))))
        return AIMessage(text, **self._closing(reader, extra))

    async def chunks(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AsyncGenerator[AIMessageChunk]:
        streamed = {**options, "stream": True, "stream_options": {"include_usage": True}}
        reader = CompletionReader(form_of(self.llm).wants_thinking)
        async with aclosing(self._read(reader, messages, streamed)) as received:
            async for words in received:
                text, extra = _as_message(words) if words else ("", {})
                if words and reader.has_begun:
                    extra.setdefault(reply.REASONING, "")  # tells it from a mere sign of life
                yield AIMessageChunk(content=text, additional_kwargs=extra)
        yield AIMessageChunk(content="", chunk_position="last", **self._closing(reader, {}))

    async def _read(
        self, reader: CompletionReader, messages: Sequence[BaseMessage], options: Mapping[str, Any]
    ) -> AsyncGenerator[AnswerWords | None]:
        """Yields the words of an answer as they come, whole or, also from a proxy that always streams, in events; None
        as a sign of life.
        """
        is_complete, body = False, self._body(messages, options)
        async with aclosing(self.endpoint.events(body, forget=_of_client(options))) as received:
            async for event in received:
                is_complete = event == {}
                for words in reader.add(event or {}):
                    yield words
                if event is None:
                    yield None
        if not is_complete and reader.finish_reason is None:
            raise NotAnAnswer(BROKE_OFF)

    def _body(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> dict[str, Any]:
        sent = [wire_message(message, made_by=self.made_by) for message in messages]
        given = {name: value for name, value in options.items() if name not in (reply.SCHEMA, reply.MOST_OUTPUT)}
        if reply.SCHEMA in options:
            given["response_format"] = {"type": "json_schema", "json_schema": options[reply.SCHEMA]}
        body = merged({"model": self.llm, "messages": sent, **self.parameters, **given}, self.extra)
        most = options.get(reply.MOST_OUTPUT)
        return body | {name: min(body[name], most) for name in _MOST & body.keys() if most}

    def _closing(self, reader: CompletionReader, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a message says beside its words."""
        opaque = reader.opaque()
        given_back = {} if opaque is None else {reply.OPAQUE: reply.Opaque(self.made_by, opaque)}
        calls: dict[str, Any] = {reply.CALLS: made} if (made := reader.calls()) else {}
        calls |= {reply.MADE_IMAGES: reader.images} if reader.images else {}
        told = {"finish_reason": reader.finish_reason, "model_name": reader.model, "id": reader.response_id}
        kept = {**extra, **calls, **given_back}
        return {"additional_kwargs": kept, "usage_metadata": reader.usage, "response_metadata": told}


@asynccontextmanager
async def chat_completions(options: ProviderOptions) -> AsyncIterator[ChatCompletions]:
    """Yields a model whose connections close with the block."""
    parameters = {
        "temperature": options.temperature,
        "max_tokens": options.max_output_tokens,
        "reasoning_effort": options.reasoning_effort,
    }
    async with endpoint_of(options, "/chat/completions") as endpoint:
        yield ChatCompletions(
            llm=options.model,
            made_by=made_by(options, "chat"),
            endpoint=endpoint,
            parameters={name: value for name, value in parameters.items() if value is not None},
            extra=options.extra_body,
            takes_schemas=options.structured_output,
            cache=False,
        )


def wire_message(message: BaseMessage, *, made_by: str) -> dict[str, Any]:
    """Returns a message as chat completions take it. What is opaque goes back to the endpoint that made it only."""
    wire: dict[str, Any] = {"role": reply.ROLES[message.type], "content": message.content}
    match message:
        case HumanMessage() if isinstance(message.content, list):
            wire["content"] = [_wire_part(part) for part in message.content]
        case ToolMessage():
            wire["tool_call_id"] = message.tool_call_id
        case AIMessage():
            opaque = message.additional_kwargs.get(reply.OPAQUE)
            if opaque is not None and opaque["by"] != made_by:
                opaque = None
            if message.tool_calls:
                given, calls = (opaque["calls"] if opaque else ())[: len(message.tool_calls)], message.tool_calls
                functions = (
                    {"name": each["name"], "arguments": reply.write_json(each["args"]).decode()} for each in calls
                )
                wire["tool_calls"] = [
                    {"id": call["id"], "type": "function", "function": function, **(extra or {})}
                    for call, function, extra in zip_longest(calls, functions, given)
                ]
            if opaque:
                wire |= opaque["message"]
    return wire


def _of_client(options: Mapping[str, Any]) -> set[str]:
    """Returns the parameters that a client has a say in. Which go under another name is remembered all the same."""
    named = {RENAMED.get(name, name) for name in reply.SAMPLING if name in options}
    is_clients = reply.SCHEMA in options and not options[reply.SCHEMA].get("strict")
    return named | {"response_format"} if is_clients else named


def _wire_part(part: Any) -> Any:
    if part["type"] != "file":
        return part
    data = f"data:{part['mime_type']};base64,{part['base64']}"
    return {"type": "file", "file": {"filename": part["filename"], "file_data": data}}


def _as_message(words: AnswerWords) -> tuple[str, dict[str, Any]]:
    """Returns a message's content and `additional_kwargs`: the content may not hold half a character."""
    reasoning = {reply.REASONING: words.reasoning} if words.reasoning else {}
    if words.text.isascii() or not any("\ud800" <= char <= "\udfff" for char in words.text):
        return words.text, reasoning
    return "", {reply.RAW_TEXT: words.text, **reasoning}


class Protocols:
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

    protocols: Any = Field(exclude=True)
    made_by: tuple[str, ...] = ()
    takes_schemas: bool = True
    takes_cache_keys: bool = False

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
        names = self.protocols.names
        for name in names:
            try:
                model = await self.protocols.model(name)
                if is_streamed:
                    async with aclosing(model.chunks(messages, options)) as chunks:
                        async for chunk in chunks:
                            self.protocols.pass_over(name)
                            yield chunk
                else:
                    result = await model.whole(messages, options)
                    self.protocols.pass_over(name)
                    yield result
            except ProviderRefusal as refusal:
                first = first or refusal
                if name == names[-1] or refusal.cause.name not in _MAY_DO_BETTER[name]:
                    raise first from None
                log.warning("model_way_refused", way=name, status=refusal.status, reason=refusal.message)
            else:
                return


@asynccontextmanager
async def openai_model(options: ProviderOptions) -> AsyncIterator[BaseChatModel]:
    """Yields a model whose connections close with the block."""
    async with AsyncExitStack() as stack:
        protocols = Protocols(stack, options)
        await protocols.model(protocols.names[0])
        yield OpenAIModel(
            protocols=protocols,
            made_by=tuple(made_by(options, api) for api in (CHAT, RESPONSES)),
            takes_schemas=options.structured_output,
            takes_cache_keys=is_openai_itself(options),
            cache=False,
        )


def _responses() -> Callable[[ProviderOptions], AbstractAsyncContextManager[AdaptedModel]]:
    from segue.models.providers.responses import responses  # noqa: PLC0415 (it takes most of a second)

    return responses
