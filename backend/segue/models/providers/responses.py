"""OpenAI's Responses API through `langchain-openai`. Nothing is stored there and nothing depends on what would be:
reasoning comes encrypted and goes back with the calls it came with.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import openai
from langchain_openai import ChatOpenAI

from segue.models.providers.adapted import AdaptedModel, ProviderOptions
from segue.models.providers.content_blocks import Dialect
from segue.models.providers.endpoint import UNPACKED, base_url, before_requests, guarded, made_by, query, timeout
from segue.models.refusals import ProviderRefusal, RefusalReader
from segue.net.http_client import tls_context

# How langchain-openai tells the error in a stream: `code: message`, or as the client's own object writes itself.
_ERROR: Final = re.compile(r"(?:ResponseError\(code=')?(?P<code>[a-z_]+)(?:: |', message=.)(?P<message>[^'\"]*)")
# Why an answer is incomplete.
_STOPPED: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}


@asynccontextmanager
async def responses(options: ProviderOptions) -> AsyncIterator[AdaptedModel]:
    """Yields a model whose connections close with the block."""
    refusals = RefusalReader(options.secrets, options.provider)
    parameters = {
        "include": ["reasoning.encrypted_content"],
        "temperature": options.temperature,
        "max_output_tokens": options.max_output_tokens,
        "reasoning": {"effort": options.reasoning_effort} if options.reasoning_effort else None,
    }
    guard = guarded(refusals, options.max_answer_bytes, before_requests(options))
    async with openai.DefaultAsyncHttpxClient(verify=tls_context(), **guard) as http_client:
        package_model = ChatOpenAI(
            model=options.model,
            api_key=options.key,
            base_url=base_url(options),
            default_query=query(options),
            default_headers={**options.extra_headers, **UNPACKED},
            timeout=timeout(options),
            max_retries=0,  # ChatModel does
            use_responses_api=True,
            store=False,
            http_async_client=http_client,
            stream_chunk_timeout=None,
            cache=False,
        )
        yield AdaptedModel(
            package_model=package_model,
            dialect=Dialect("openai", _finish_reason),
            errors=(openai.APIError, ValueError),
            read_error=lambda error: _refusal(refusals, error),
            parameters={name: value for name, value in parameters.items() if value is not None},
            # A schema is taken as it is: this API would make every argument required.
            offered=lambda tool: {**tool, "function": {**tool["function"], "strict": False}},
            schema_parameters=_schema if options.structured_output else None,
            choices={"required": "required", "none": "none"},
            made_by=made_by(options, "responses"),
            max_answer_bytes=options.max_answer_bytes,
            asks_for_whole_answers=True,
            extra=options.extra_body,
            cache=False,
        )


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", **schema}}}


def _finish_reason(metadata: Mapping[str, Any]) -> str | None:
    reason = (metadata.get("incomplete_details") or {}).get("reason")
    return _STOPPED.get(reason, reason) if reason else metadata.get("status")


def _refusal(refusals: RefusalReader, error: Exception) -> ProviderRefusal | None:
    """Returns the error within an answer that an exception tells of, or None if it tells of none."""
    if isinstance(error, openai.APIError):
        return refusals.within({"error": error.body})
    found = _ERROR.match(str(error))
    return refusals.within({"error": found.groupdict()}) if found else None
