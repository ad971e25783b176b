"""Anthropic's Messages API through `langchain-anthropic`, over an HTTP client of ours."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Final

import anthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from pydantic import Field

from segue.models.providers.endpoint import UNPACKED, ProviderOptions, guarded, with_live_key
from segue.models.providers.langchain_model import AdaptedModel, Dialect, merged
from segue.models.refusals import ModelFailure, RefusalReader
from segue.models.reply import ProviderModel, token_count
from segue.models.untrusted import OPEN_NOTES
from segue.net.http_client import unchecked_client_arguments

_EFFORTS: Final = {"minimal": "low", "none": None}  # efforts of other providers


class _GuardedAnthropic(ChatAnthropic):
    """The package has no parameter for the client, and reads no count in the first event of an answer, where some
    endpoints say what the input took. If it looks for other names, the tests of bounds and counts tell.
    """

    given: Any = Field(exclude=True)

    @cached_property
    def _async_client(self) -> anthropic.AsyncAnthropic:
        return self.given

    def _make_message_chunk_from_anthropic_event(self, event: Any, **options: Any) -> Any:
        chunk, begun = super()._make_message_chunk_from_anthropic_event(event, **options)
        if event.type == "message_start" and chunk is not None:
            chunk.usage_metadata = _input_of(getattr(event.message, "usage", None))
        return chunk, begun


def _input_of(usage: object) -> UsageMetadata:
    names = ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens")
    read, written, other = (token_count(getattr(usage, name, 0)) for name in names)
    total = read + written + other
    details = InputTokenDetails(cache_read=read, cache_creation=written)
    return UsageMetadata(input_tokens=total, output_tokens=0, total_tokens=total, input_token_details=details)


def _latest(before: UsageMetadata | None, latest: UsageMetadata) -> UsageMetadata:
    """Each event counts all that was used up to then, or leaves the input or the output out."""
    before = before or latest
    input_counts = latest if latest["input_tokens"] else before
    output_counts = latest if latest["output_tokens"] else before
    details = output_counts.get("output_token_details", {})
    return {**input_counts, "output_tokens": output_counts["output_tokens"], "output_token_details": details}


@asynccontextmanager
async def anthropic_messages(options: ProviderOptions) -> AsyncIterator[ProviderModel]:
    refusals = RefusalReader(options.secrets, options.provider)
    guard = guarded(refusals, options.max_answer_bytes, with_live_key(options))
    async with (
        anthropic.DefaultAsyncHttpxClient(**unchecked_client_arguments(), **guard) as http_client,
        anthropic.AsyncAnthropic(
            api_key=options.key,
            base_url=options.url,
            timeout=options.timeout_s,
            max_retries=0,
            default_headers={**UNPACKED, **options.extra_headers},
            http_client=http_client,
        ) as client,
    ):
        yield _model(options, client, refusals)


def _model(options: ProviderOptions, client: anthropic.AsyncAnthropic, refusals: RefusalReader) -> AdaptedModel:
    effort = _EFFORTS.get(options.reasoning_effort or "none", options.reasoning_effort)
    package_model = _GuardedAnthropic(
        given=client,
        model=options.model,
        api_key=options.key,
        **({"max_tokens": options.max_output_tokens} if options.max_output_tokens else {}),
        reasoning_effort=effort,
        cache=False,
    )
    return AdaptedModel(
        package_model,
        Dialect(
            name="anthropic",
            errors=(anthropic.APIError,),
            refusal=lambda error: _refusal(refusals, error),
            finish_reason=lambda metadata: metadata.get("stop_reason"),
            choices={"none": {"type": "none"}} | ({} if effort else {"required": "any"}),  # it must choose if it thinks
            most_output="max_tokens",
            with_cache_marks=with_cache_marks,
            counted=_latest,
        ),
        by=options.made_by(),
        max_answer_bytes=options.max_answer_bytes,
        parameters={} if options.temperature is None else {"temperature": options.temperature},
        extra=merged({"output_config": {"effort": effort}}, options.extra_body) if effort else options.extra_body,
    )


def with_cache_marks(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Returns the messages with marks at the borders of a prompt: behind the parts that change only with the summary,
    behind the old messages, and behind the running turn's message. Tools come before the first and need none.
    """
    count = len(messages)
    opening = next((at for at in reversed(range(count)) if messages[at].text.startswith(OPEN_NOTES)), count)
    answers = (at for at in reversed(range(opening)) if isinstance(messages[at], AIMessage) and messages[at].text)
    borders = {0, next(answers, 0), opening}
    return [_marked(message) if at in borders else message for at, message in enumerate(messages)]


def _marked(message: BaseMessage) -> BaseMessage:
    if not isinstance(message.content, str):
        return message  # as the model gave it
    marked = {"type": "text", "text": message.content, "cache_control": {"type": "ephemeral"}}
    return message.model_copy(update={"content": [marked]})


def _refusal(refusals: RefusalReader, error: Exception) -> ModelFailure | None:
    """Returns the refusal in an error: one in the middle of an answer, or the guard's own, which two packages wrap."""
    if isinstance(error, anthropic.APIStatusError):
        return refusals.within(error.body if isinstance(error.body, dict) else {"error": error.body})
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModelFailure):
        cause = cause.__cause__
    return cause
