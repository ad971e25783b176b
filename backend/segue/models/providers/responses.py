"""OpenAI's Responses API through `langchain-openai`. Nothing is stored there: reasoning goes back encrypted."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import openai
from langchain_openai import ChatOpenAI

from segue.models.providers.endpoint import UNPACKED, ProviderOptions, before_requests, guarded
from segue.models.providers.langchain_model import AdaptedModel, Dialect
from segue.models.refusals import ProviderRefusal, RefusalReader
from segue.models.reply import AnswerSchema, read_json, write_json
from segue.net.http_client import unchecked_client_arguments

# How langchain-openai tells the error in a stream: `code: message`, or as the client's own object writes itself.
_ERROR: Final = re.compile(
    r"(?s)(?:ResponseError\(code=')?(?P<code>[a-z_]+)(?:: |', message=(['\"]))(?P<message>.*?)(?(2)\2[,)]|\Z)"
)

_ARGUMENTS: Final = "response.function_call_arguments"  # how the types of events with them begin


@asynccontextmanager
async def responses(options: ProviderOptions) -> AsyncIterator[AdaptedModel]:
    refusals = RefusalReader(options.secrets, options.provider)
    parameters = {
        "include": ["reasoning.encrypted_content"],
        "temperature": options.temperature,
        "max_output_tokens": options.max_output_tokens,
        "reasoning": {"effort": options.reasoning_effort} if options.reasoning_effort else None,
    }
    guard = guarded(refusals, options.max_answer_bytes, before_requests(options), _with_all_arguments)
    async with openai.DefaultAsyncHttpxClient(**unchecked_client_arguments(), **guard) as http_client:
        package_model = ChatOpenAI(
            model=options.model,
            api_key=options.key,
            base_url=options.address,
            default_query=options.query,
            default_headers={**options.extra_headers, **UNPACKED},
            timeout=options.timeout,
            max_retries=0,  # ChatModel does
            use_responses_api=True,
            store=False,
            http_async_client=http_client,
            stream_chunk_timeout=None,
            cache=False,
        )
        yield AdaptedModel(
            package_model,
            Dialect(
                name="openai",
                errors=(openai.APIError, ValueError),
                refusal=lambda error: _refusal(refusals, error),
                finish_reason=lambda meta: (meta.get("incomplete_details") or {}).get("reason") or meta.get("status"),
                # A schema is taken as it is: this API would make every argument required.
                offered=lambda tool: {**tool, "function": {**tool["function"], "strict": False}},
                schema_parameters=_schema if options.structured_output else None,
                asks_for_whole_answers=True,
            ),
            by=options.made_by("responses"),
            max_answer_bytes=options.max_answer_bytes,
            parameters={name: value for name, value in parameters.items() if value is not None},
            extra=options.extra_body,
        )


async def _with_all_arguments(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields their data. Arguments that are sent only whole come as a piece: the package would call without them."""
    in_pieces = set[object]()  # the items whose arguments have come so
    async for read in events:
        body = read_json(read) if b"function_call" in read else {}
        item = body.get("item") or {}
        kind, at = body.get("type"), (body.get("item_id") or item.get("id"), body.get("output_index"))
        whole = body.get("arguments") if kind == f"{_ARGUMENTS}.done" else item.get("arguments")
        is_piece = kind != "response.output_item.added" and whole and at not in in_pieces
        piece = {"type": f"{_ARGUMENTS}.delta", "item_id": at[0], "output_index": at[1], "delta": whole}
        yield write_json(piece) if is_piece else read
        if whole or body.get("delta"):
            in_pieces.add(at)


def _schema(schema: AnswerSchema) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", **schema}}}


def _refusal(refusals: RefusalReader, error: Exception) -> ProviderRefusal | None:
    """Returns the error within an answer that an exception carries, or None if it carries none."""
    if isinstance(error, openai.APIError):
        return refusals.within({"error": error.body})
    found = _ERROR.match(str(error))
    return refusals.within({"error": found.groupdict()}) if found else None
