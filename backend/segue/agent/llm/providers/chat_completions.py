"""Chat completions as one of LangChain's chat models, for OpenAI and every endpoint that speaks its protocol.

Writes requests and hands on what `completion_reader.py` reads; nothing of an answer is lost on the way. Knows nothing
of deadlines and retries: those are `model.py`'s.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import zip_longest
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall, ToolMessage
from pydantic import Field

from segue.agent.llm.model_errors import BROKE_OFF, NotAnAnswer
from segue.agent.llm.providers.async_model import AsyncChatModel
from segue.agent.llm.providers.completion_reader import AnswerWords, CompletionReader
from segue.agent.llm.providers.endpoint import endpoint_of
from segue.agent.llm.providers.openai_address import made_by
from segue.agent.llm.providers.options import ProviderOptions
from segue.agent.llm.providers.wire_json import write_json
from segue.agent.llm.reply import CALLS, OPAQUE, RAW_TEXT, REASONING, SCHEMA, Opaque

ROLES = {"system": "system", "human": "user", "ai": "assistant", "tool": "tool"}


class ChatCompletions(AsyncChatModel):
    """`parameters` go into every request, and the `extra` ones whatever else would stand in their place."""

    llm: str
    made_by: str
    endpoint: Any = Field(exclude=True)  # an Endpoint, which pydantic has no schema for
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    extra: Mapping[str, Any] = Field(default_factory=dict)
    takes_schemas: bool = True

    async def whole(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        body = await self.endpoint.ask(self._body(messages, options))
        reader = CompletionReader()
        choice = body["choices"][0]
        words = reader.add_choice(choice, choice["message"])
        reader.add_envelope(body)
        text, extra = _as_message(words)
        return AIMessage(text, **self._closing(reader, extra))

    async def chunks(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AsyncGenerator[AIMessageChunk]:
        body = self._body(messages, {**options, "stream_options": {"include_usage": True}})
        reader, complete = CompletionReader(), False
        async with aclosing(self.endpoint.stream(body)) as received:
            async for event in received:
                complete = event == {}
                for choice in (event or {}).get("choices") or ():
                    words = reader.add_choice(choice, choice.get("delta") or choice.get("message") or {})
                    text, extra = _as_message(words)
                    if reader.has_begun:
                        extra.setdefault(REASONING, "")  # tells it from a mere sign of life
                    yield AIMessageChunk(content=text, additional_kwargs=extra)
                if event:
                    reader.add_envelope(event)
                elif not complete:
                    yield AIMessageChunk(content="")
        if not complete and reader.finish_reason is None:
            raise NotAnAnswer(BROKE_OFF)
        yield AIMessageChunk(content="", chunk_position="last", **self._closing(reader, {}))

    def _body(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> dict[str, Any]:
        sent = [wire_message(message, made_by=self.made_by) for message in messages]
        given = {name: value for name, value in options.items() if name != SCHEMA}
        if SCHEMA in options:
            given["response_format"] = {"type": "json_schema", "json_schema": options[SCHEMA]}
        return {"model": self.llm, "messages": sent, **self.parameters, **given, **self.extra}

    def _closing(self, reader: CompletionReader, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a message says beside its words."""
        opaque = reader.opaque()
        given_back = {} if opaque is None else {OPAQUE: Opaque(self.made_by, opaque)}
        calls = {CALLS: calls} if (calls := reader.calls()) else {}
        return {
            "additional_kwargs": {**extra, **calls, **given_back},
            "usage_metadata": reader.usage,
            "response_metadata": {
                "finish_reason": reader.finish_reason,
                "model_name": reader.model,
                "id": reader.response_id,
            },
        }


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
    wire: dict[str, Any] = {"role": ROLES[message.type], "content": message.content}
    match message:
        case ToolMessage():
            wire["tool_call_id"] = message.tool_call_id
        case AIMessage():
            opaque = message.additional_kwargs.get(OPAQUE)
            if opaque is not None and opaque["by"] != made_by:
                opaque = None
            if message.tool_calls:
                given = opaque["calls"] if opaque else ()
                wire["tool_calls"] = [
                    _wire_call(call, extra)
                    for call, extra in zip_longest(message.tool_calls, given[: len(message.tool_calls)])
                ]
            if opaque:
                wire |= opaque["message"]
    return wire


def _wire_call(call: ToolCall, opaque: Mapping[str, Any] | None) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": write_json(call["args"]).decode()}
    return {"id": call["id"], "type": "function", "function": function, **(opaque or {})}


def _as_message(words: AnswerWords) -> tuple[str, dict[str, Any]]:
    """Returns a message's content and `additional_kwargs`: the content may not hold half a character."""
    reasoning = {REASONING: words.reasoning} if words.reasoning else {}
    if words.text.isascii() or not any("\ud800" <= char <= "\udfff" for char in words.text):
        return words.text, reasoning
    return "", {RAW_TEXT: words.text, **reasoning}
