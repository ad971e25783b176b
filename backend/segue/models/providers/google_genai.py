"""Gemini's own API through `langchain-google-genai`, over HTTP."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from google.genai.errors import APIError
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_google_genai.chat_models import ChatGoogleGenerativeAIError

from segue.models.providers.endpoint import UNPACKED, ProviderOptions, guarded, with_live_key
from segue.models.providers.langchain_model import AdaptedModel, Dialect
from segue.models.refusals import RefusalReader
from segue.models.reply import ProviderModel
from segue.net.http_client import tls_context

_EFFORTS: Final = {"none": "minimal", "xhigh": "high", "max": "high"}  # efforts of other providers


class _Transport(httpx2.AsyncHTTPTransport):
    """The package gives one transport to a synchronous client too, which closes it. Given one, it asks with httpx."""

    def close(self) -> None:
        pass


@asynccontextmanager
async def google_genai(options: ProviderOptions) -> AsyncIterator[ProviderModel]:
    refusals = RefusalReader(options.secrets, options.provider)
    effort = options.reasoning_effort
    os.environ["GOOGLE_GENAI_HTTP_CLIENT"] = "httpx2"  # what `guarded` is for; it is read when a client is made
    package_model = ChatGoogleGenerativeAI(
        model=options.model,
        api_key=options.key,
        base_url=options.url,
        timeout=options.timeout_s,
        max_retries=1,  # the first try counts
        additional_headers={**UNPACKED, **options.extra_headers},
        client_args={
            "transport": _Transport(verify=tls_context()),
            # The package takes for data what proxies write between them to show that they live.
            **guarded(refusals, options.max_answer_bytes, with_live_key(options), aiter),
        },
        max_output_tokens=options.max_output_tokens,
        reasoning_effort=_EFFORTS.get(effort, effort) if effort else None,
        cache=False,
    )
    parameters: dict[str, Any] = {} if options.temperature is None else {"temperature": options.temperature}
    if options.extra_body:
        parameters["http_options"] = {"extra_body": dict(options.extra_body)}
    try:
        yield AdaptedModel(
            package_model,
            Dialect(
                name="google_genai",
                errors=(APIError, ChatGoogleGenerativeAIError),
                # That came within an answer. The package wraps it, unless it is the server's fault.
                refusal=lambda error: refusals.within(
                    getattr(error, "details", getattr(error.__cause__, "details", None))
                ),
                finish_reason=_finish_reason,
                choices={"required": "any", "none": "none"},
                signatures="__gemini_function_call_thought_signatures__",
            ),
            by=options.made_by(),
            max_answer_bytes=options.max_answer_bytes,
            parameters=parameters,
        )
    finally:
        await package_model.aclose()


def _finish_reason(metadata: Mapping[str, Any]) -> str | None:
    return "SAFETY" if (metadata.get("prompt_feedback") or {}).get("block_reason") else metadata.get("finish_reason")
