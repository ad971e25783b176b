"""LangChain's client for OpenAI-compatible endpoints: sends JSON as it is and loses nothing of what comes back.

Overrides private methods of langchain-openai. Knows nothing of deadlines and retries: those are `model.py`'s.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from segue.agent.streamed_answer import RAW_TEXT
from segue.net.http_client import tls_context


class _Provider(ChatOpenAI):
    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        # Messages and tools are plain JSON. As arguments the client would search each for files and dates to convert
        # (3 ms for 21 messages); `extra_body` is merged into the request after that search.
        payload = super()._get_request_payload(input_, stop=stop, **kwargs)
        plain = {key: payload.pop(key) for key in ("messages", "tools") if key in payload}
        for message in plain.get("messages", ()):
            message["content"] = message["content"] or ""  # templates refuse null
        return {**payload, "messages": [], "extra_body": {**(payload.get("extra_body") or {}), **plain}}

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        # LangChain drops the whole answer if arguments are JSON but no object. Here the call becomes an invalid one.
        body = response.model_dump(warnings=False) if isinstance(response, openai.BaseModel) else response
        for choice in body["choices"]:
            for call in choice["message"].get("tool_calls") or ():
                arguments = call["function"]["arguments"] or "null"
                if arguments.strip() != "null" and not arguments.lstrip().startswith("{"):
                    call["function"]["arguments"] = f"not an object: {arguments}"
        return super()._create_chat_result(body, generation_info)

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        # LangChain drops calls without an index and refuses half a character, which the next chunk completes.
        raw = None
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            for index, call in enumerate(delta.get("tool_calls") or ()):
                call.setdefault("index", index)
            if not _is_whole(delta.get("content")):
                raw, delta["content"] = delta["content"], ""
        generation = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if raw is not None and generation is not None:
            generation.message.additional_kwargs[RAW_TEXT] = raw
        return generation


@asynccontextmanager
async def openai_model(
    *, model: str, api_key: SecretStr | None, base_url: str | None, timeout_s: float
) -> AsyncIterator[BaseChatModel]:
    """A client for any endpoint that speaks OpenAI's chat completions. It never retries: ChatModel does."""
    # LangChain's own HTTP client is shared by the whole process and never closed.
    async with openai.DefaultAsyncHttpxClient(verify=tls_context()) as http_client:
        yield _Provider(
            model=model,
            api_key=api_key or SecretStr("none"),
            base_url=base_url,
            timeout=timeout_s,
            max_retries=0,
            use_responses_api=False,
            stream_usage=True,
            stream_chunk_timeout=None,
            http_async_client=http_client,
        )


def _is_whole(text: object) -> bool:
    return not isinstance(text, str) or text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
