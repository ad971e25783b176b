"""The chat models from the settings: which providers answer, under which limits.

A provider is one file in `agent/llm/providers/`, imported only if it is the one that answers.
"""

from contextlib import AsyncExitStack
from functools import partial

from langchain_core.language_models import BaseChatModel

from segue.agent.llm.model import ChatModel, ModelLimits
from segue.agent.llm.model_choice import Models, ModelWithFallback
from segue.agent.llm.providers.options import ProviderOptions
from segue.agent.llm.tool_schemas import Bounds
from segue.config import Settings
from segue.domain.providers import provider_and_id
from segue.domain.telemetry import Observe, OpenSpan
from segue.offline.model import OfflineModel
from segue.usage.prices import ANSWER_TOKENS, FREE, Tariff, read_prices

OFFLINE = "offline"


async def chat_models(
    stack: AsyncExitStack, settings: Settings, model: BaseChatModel | None, observe: Observe, span: OpenSpan
) -> Models:
    """Returns `model` for everything, else the configured ones, else the offline model."""
    if model is not None or not settings.model_configured:
        name = model.get_name() if model else OFFLINE
        limits, tariff = _limits(settings), _tariff(settings, name)
        only = ChatModel(model or OfflineModel(), name=name, limits=limits, observe=observe, span=span, tariff=tariff)
        return Models(only, only)
    fallback = None
    if settings.llm_fallback_model:
        fallback = await model_set_by(stack, settings, "llm_fallback_model", observe=observe, span=span)
    main = small = await model_set_by(stack, settings, "llm_model", fallback, observe=observe, span=span)
    if settings.llm_small_model not in (None, settings.llm_model):
        small = await model_set_by(stack, settings, "llm_small_model", fallback, observe=observe, span=span)
    return Models(main, small)


async def model_set_by(
    stack: AsyncExitStack,
    settings: Settings,
    setting: str,
    fallback: ChatModel | None = None,
    *,
    observe: Observe,
    span: OpenSpan,
) -> ChatModel:
    """Returns the model that one of MODEL_SETTINGS names."""
    name: str = getattr(settings, setting)
    model = await _provider(stack, provider_options(settings, name))
    opened = ChatModel if fallback is None else partial(ModelWithFallback, fallback=fallback)
    limits, tariff = _limits(settings), _tariff(settings, name)
    return opened(model, name=name, setting=setting.upper(), limits=limits, observe=observe, span=span, tariff=tariff)


def _limits(settings: Settings) -> ModelLimits:
    return ModelLimits(
        timeout_s=settings.llm_timeout_s,
        first_token_s=settings.llm_first_token_timeout_s,
        idle_s=settings.llm_idle_timeout_s,
        max_retries=settings.llm_max_retries,
        tool_bounds=Bounds(description_chars=settings.llm_tool_description_chars),
    )


def _tariff(settings: Settings, name: str) -> Tariff:
    price = FREE if name == OFFLINE else read_prices(settings.prices_file).of(name)
    return Tariff(name, price, settings.answer_tokens or ANSWER_TOKENS)


def provider_options(settings: Settings, name: str) -> ProviderOptions:
    provider, model = provider_and_id(name)
    key, base_url = settings.access_to(provider)
    # What is meant for the main model's provider, secrets among it, goes to no other.
    is_main = provider == provider_and_id(settings.llm_model)[0]
    headers = {name: value.get_secret_value() for name, value in settings.llm_extra_headers.items()}
    return ProviderOptions(
        model=model,
        api_key=key,
        base_url=base_url,
        timeout_s=settings.llm_timeout_s,
        max_answer_bytes=settings.llm_max_answer_bytes,
        temperature=settings.llm_temperature,
        max_output_tokens=settings.answer_tokens,
        reasoning_effort=settings.llm_reasoning_effort,
        structured_output=settings.llm_structured_output == "auto",
        extra_body=settings.llm_extra_body if is_main else {},
        extra_headers=headers if is_main else {},
        provider=provider,
        api=settings.llm_api,
    )


async def _provider(stack: AsyncExitStack, options: ProviderOptions) -> BaseChatModel:
    """Imports what the one that answers needs, and nothing for the others."""
    match options.provider.extra:
        case "anthropic":
            from segue.agent.llm.providers.anthropic import anthropic_messages as opened  # noqa: PLC0415 (see above)
        case "google":
            from segue.agent.llm.providers.google_genai import google_genai as opened  # noqa: PLC0415 (the same)
        case _:
            from segue.agent.llm.providers.openai_apis import openai_model as opened  # noqa: PLC0415 (the same)
    return await stack.enter_async_context(opened(options))
