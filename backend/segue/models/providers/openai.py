"""OpenAI's two protocols, chat completions and the Responses API: which of them is asked, and the other if it refuses.
Chat completions are for every endpoint that speaks OpenAI's protocol; nothing of an answer is lost on the way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import zip_longest
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from segue.log import log
from segue.models.amended_requests import RENAMED
from segue.models.normal_form import form_of
from segue.models.providers.completion_reader import CompletionReader
from segue.models.providers.endpoint import Endpoint, ProviderOptions, endpoint_of
from segue.models.providers.langchain_model import AdaptedModel, merged
from segue.models.refusals import NotAnAnswer, ProviderRefusal
from segue.models.reply import CACHE_KEY, OPAQUE, ROLES, AnswerPart, ProviderModel, RequestOptions, write_json

CHAT: Final = "chat"
RESPONSES: Final = "responses"
NO_EFFORT: Final = "chat without reasoning"
# Causes of refusals, by name, that another way of asking may not meet. Their words are in `refusals.toml`.
_MAY_DO_BETTER: Final = {CHAT: {"other_api"}, RESPONSES: {"other_api", "not_found"}}

_MOST: Final = {"max_tokens", "max_completion_tokens"}  # what bounds an answer


@dataclass
class ChatCompletions(ProviderModel):
    """`parameters` go into every request, and the `extra` ones override any others."""

    llm: str
    endpoint: Endpoint
    by: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    takes_schemas: bool = True

    async def answer(
        self, messages: Sequence[BaseMessage], options: RequestOptions, *, is_streamed: bool
    ) -> AsyncGenerator[AnswerPart]:
        """A proxy may stream an answer that was asked for as a whole."""
        reader, is_complete, has_message = CompletionReader(form_of(self.llm).wants_thinking), False, False
        body = self._body(messages, options, is_streamed=is_streamed)
        # The parameters that a client has a say in. Which go under another name is remembered all the same.
        of_client = {RENAMED.get(name, name) for name in options.sampling}
        if options.schema is not None and not options.schema.get("strict"):
            of_client.add("response_format")
        try:
            async with aclosing(self.endpoint.events(body, forget=of_client)) as received:
                async for event in received:
                    is_complete = event == {}
                    for part in reader.add(event):
                        has_message = True
                        if reader.has_begun:
                            yield part
        except ValueError:
            if reader.finish_reason is None:  # else the stream was cut in what comes behind the answer
                raise
        if not is_complete and reader.finish_reason is None:
            raise NotAnAnswer
        if not is_streamed and not has_message:
            raise ValueError("no message")
        yield reader.closing(self.by)

    def _body(self, messages: Sequence[BaseMessage], options: RequestOptions, *, is_streamed: bool) -> dict[str, Any]:
        sent = [wire_message(message, made_by=self.by) for message in messages]
        parameters: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
        parameters |= options.sampling
        if options.tools:
            parameters["tools"] = options.tools
            parameters |= {} if options.tool_choice == "auto" else {"tool_choice": options.tool_choice}
        if options.schema is not None:
            parameters["response_format"] = {"type": "json_schema", "json_schema": options.schema}
        if options.cache_key is not None:
            parameters[CACHE_KEY] = options.cache_key
        body = {"model": self.llm, "messages": sent, **self.parameters, **parameters}
        if self.extra:
            body = merged(body, self.extra)
        most = options.most_output
        return body | {name: min(body[name], most) for name in _MOST & body.keys() if most}


@asynccontextmanager
async def chat_completions(options: ProviderOptions) -> AsyncIterator[ChatCompletions]:
    parameters = {
        "temperature": options.temperature,
        "max_tokens": options.max_output_tokens,
        "reasoning_effort": options.reasoning_effort,
    }
    async with endpoint_of(options, "/chat/completions") as endpoint:
        yield ChatCompletions(
            options.model,
            endpoint,
            by=options.made_by("chat"),
            parameters={name: value for name, value in parameters.items() if value is not None},
            extra=options.extra_body,
            takes_schemas=options.structured_output,
        )


def wire_message(message: BaseMessage, *, made_by: str) -> dict[str, Any]:
    """Returns a message as chat completions take it. Opaque parts go back only to the endpoint that made them."""
    wire: dict[str, Any] = {"role": ROLES[message.type], "content": message.content}
    match message:
        case HumanMessage() if isinstance(message.content, list):
            wire["content"] = [_wire_part(part) for part in message.content]
        case ToolMessage():
            wire["tool_call_id"] = message.tool_call_id
        case AIMessage():
            opaque = message.additional_kwargs.get(OPAQUE)
            if opaque is not None and opaque["by"] != made_by:
                opaque = None
            if message.tool_calls:
                extras, calls = (opaque["calls"] if opaque else ())[: len(message.tool_calls)], message.tool_calls
                functions = ({"name": each["name"], "arguments": write_json(each["args"]).decode()} for each in calls)
                wire["tool_calls"] = [
                    {"id": call["id"], "type": "function", "function": function, **(extra or {})}
                    for call, function, extra in zip_longest(calls, functions, extras)
                ]
            if opaque:
                wire |= opaque["message"]
    return wire


def _wire_part(part: Any) -> Any:
    if part["type"] != "file":
        return part
    data = f"data:{part['mime_type']};base64,{part['base64']}"
    return {"type": "file", "file": {"filename": part["filename"], "file_data": data}}


class OpenAIModel(ProviderModel):
    """Asks in the first way that is left, and in the next if the refusal says that another may do. Each way is opened
    when it is first needed: one of them imports for most of a second.
    """

    def __init__(self, stack: AsyncExitStack, options: ProviderOptions) -> None:
        first = (RESPONSES, CHAT) if options.is_openai_itself else (CHAT, RESPONSES)
        self.names: tuple[str, ...] = (*first, NO_EFFORT) if options.api == "auto" else (options.api,)
        self.takes_schemas = options.structured_output
        self.takes_cache_keys = options.is_openai_itself
        self._stack = stack
        self._options = options
        self._open: dict[str, ProviderModel] = {}
        self._opening = asyncio.Lock()

    @property
    def made_by(self) -> tuple[str, ...]:
        return tuple(map(self._options.made_by, (CHAT, RESPONSES)))

    async def answer(
        self, messages: Sequence[BaseMessage], options: RequestOptions, *, is_streamed: bool
    ) -> AsyncGenerator[AnswerPart]:
        """Raises the first way's refusal if no other does."""
        first: ProviderRefusal | None = None
        names = self.names
        for name in names:
            try:
                model = await self.way(name)
                async with aclosing(model.answer(messages, options, is_streamed=is_streamed)) as parts:
                    async for part in parts:
                        if name != self.names[0] and name in self.names:  # the ways before this one are forgotten
                            self.names = self.names[self.names.index(name) :]
                        yield part
            except ProviderRefusal as refusal:
                first = first or refusal
                if name == names[-1] or refusal.cause.name not in _MAY_DO_BETTER[name]:
                    raise first from None
                log.warning("model_way_refused", way=name, status=refusal.status, reason=refusal.message)
            else:
                return

    async def way(self, name: str) -> ProviderModel:
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self._opened(name)
            return self._open[name]

    async def _opened(self, name: str) -> ProviderModel:
        if name == RESPONSES:
            module = await asyncio.to_thread(import_module, "segue.models.providers.responses")  # most of a second
            opened: AdaptedModel = await self._stack.enter_async_context(module.responses(self._options))
            return opened
        effort = "none" if name == NO_EFFORT else self._options.reasoning_effort
        return await self._stack.enter_async_context(chat_completions(replace(self._options, reasoning_effort=effort)))


@asynccontextmanager
async def openai_model(options: ProviderOptions) -> AsyncIterator[ProviderModel]:
    async with AsyncExitStack() as stack:
        model = OpenAIModel(stack, options)
        await model.way(model.names[0])
        yield model
