"""The chat model from the settings: which provider answers, under which limits.

A provider is one file in `agent/providers/`, imported only if it is the one that answers.
"""

from contextlib import AsyncExitStack

from langchain_core.language_models import BaseChatModel

from segue.agent.model import ChatModel
from segue.agent.providers.options import ProviderOptions
from segue.agent.tool_schemas import Bounds
from segue.config import Settings
from segue.domain.telemetry import Observe, OpenSpan
from segue.offline.model import OfflineModel

OFFLINE = "offline"


async def chat_model(
    stack: AsyncExitStack, settings: Settings, model: BaseChatModel | None, observe: Observe, span: OpenSpan
) -> ChatModel:
    """Returns `model`, else the configured one, else the offline model."""
    name = OFFLINE
    if model is not None:
        name = model.get_name()
    elif settings.model_configured:
        name = settings.llm_model
        model = await _provider(stack, provider_options(settings))
    return ChatModel(
        model or OfflineModel(),
        name=name,
        timeout_s=settings.llm_timeout_s,
        first_token_s=settings.llm_first_token_timeout_s,
        idle_s=settings.llm_idle_timeout_s,
        max_retries=settings.llm_max_retries,
        tool_bounds=Bounds(description_chars=settings.llm_tool_description_chars),
        observe=observe,
        span=span,
    )


def provider_options(settings: Settings) -> ProviderOptions:
    return ProviderOptions(
        model=settings.llm_model,
        api_key=settings.openai_api_key,
        base_url=settings.openai_base_url,
        timeout_s=settings.llm_timeout_s,
        max_answer_bytes=settings.llm_max_answer_bytes,
        temperature=settings.llm_temperature,
        max_output_tokens=settings.llm_max_output_tokens,
        reasoning_effort=settings.llm_reasoning_effort,
        extra_body=settings.llm_extra_body,
        extra_headers={name: value.get_secret_value() for name, value in settings.llm_extra_headers.items()},
    )


async def _provider(stack: AsyncExitStack, options: ProviderOptions) -> BaseChatModel:
    from segue.agent.providers.chat_completions import chat_completions  # noqa: PLC0415 (openai is not needed offline)

    return await stack.enter_async_context(chat_completions(options))
