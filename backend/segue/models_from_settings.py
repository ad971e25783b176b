"""The chat models from the settings: which providers answer, under which limits.

A provider is one file in `agent/llm/providers/`, imported only if it is the one that answers.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from langchain_core.language_models import BaseChatModel

from segue.around.offline.offline_model import OfflineModel
from segue.config import Settings
from segue.domain.agent import OFFLINE, Agent, provider_and_id
from segue.domain.telemetry import Observe, OpenSpan
from segue.models.metered_model import Models, ModelWithFallback
from segue.models.model import ChatModel, ModelLimits
from segue.models.providers.adapted import ProviderOptions
from segue.models.tool_schemas import Bounds
from segue.secret_files import SecretFiles
from segue.users.prices import ANSWER_TOKENS, FREE, Tariff, read_prices

NO_FILES = SecretFiles(None)


@dataclass(frozen=True, slots=True)
class ChatModels:
    """Opens models as agents and the settings name them, each once for all that name it. With a `model`, that is asked
    for everything. The stack closes them.
    """

    stack: AsyncExitStack
    settings: Settings
    model: BaseChatModel | None
    observe: Observe
    span: OpenSpan
    files: SecretFiles
    opened: dict[tuple[object, ...], ChatModel] = field(default_factory=dict)

    async def of(self, agent: Agent) -> Models:
        """Returns the offline model for one that the settings have no access to."""
        settings = self.settings
        own = {"llm_temperature": agent.temperature, "llm_reasoning_effort": agent.reasoning_effort}
        asked = settings.model_copy(update={name: value for name, value in own.items() if value is not None})
        main_name = agent.model or settings.llm_model
        if self.model is not None or not settings.has_access_to(main_name):
            return Models(self._offline, self._offline)
        fallback = None
        if settings.llm_fallback_model and settings.has_access_to(settings.llm_fallback_model):
            fallback = await self._named(asked, settings.llm_fallback_model, "LLM_FALLBACK_MODEL", None)
        main = small = await self._named(asked, main_name, "an agent's model" if agent.model else "LLM_MODEL", fallback)
        small_name = agent.small_model or settings.llm_small_model or main_name
        if small_name != main_name and settings.has_access_to(small_name):
            setting = "an agent's small_model" if agent.small_model else "LLM_SMALL_MODEL"
            small = await self._named(asked, small_name, setting, fallback)
        return Models(main, small)

    async def _named(self, asked: Settings, name: str, setting: str, fallback: ChatModel | None) -> ChatModel:
        key = name, asked.llm_temperature, asked.llm_reasoning_effort, fallback
        if key not in self.opened:
            self.opened[key] = await _model_named(
                self.stack, asked, name, setting, fallback, observe=self.observe, span=self.span, files=self.files
            )
        return self.opened[key]

    @property
    def _offline(self) -> ChatModel:
        if () not in self.opened:
            name = self.model.get_name() if self.model else OFFLINE
            self.opened[()] = ChatModel(
                self.model or OfflineModel(),
                name=name,
                limits=_limits(self.settings),
                observe=self.observe,
                span=self.span,
                tariff=_tariff(self.settings, name),
            )
        return self.opened[()]


async def model_set_by(
    stack: AsyncExitStack, settings: Settings, setting: str, *, observe: Observe, span: OpenSpan
) -> ChatModel:
    name: str = getattr(settings, setting)
    return await _model_named(stack, settings, name, setting.upper(), None, observe=observe, span=span)


async def _model_named(
    stack: AsyncExitStack,
    settings: Settings,
    name: str,
    setting: str,
    fallback: ChatModel | None,
    *,
    observe: Observe,
    span: OpenSpan,
    files: SecretFiles = NO_FILES,
) -> ChatModel:
    options = provider_options(settings, name, files)
    model = await _provider(stack, options)
    opened = ChatModel if fallback is None else partial(ModelWithFallback, fallback=fallback)
    limits, tariff = _limits(settings), _tariff(settings, name)
    return opened(
        model,
        name=name,
        setting=setting,
        limits=limits,
        observe=observe,
        span=span,
        tariff=tariff,
        key=options.live_key,
        server=options.server,
    )


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


def provider_options(settings: Settings, name: str, files: SecretFiles = NO_FILES) -> ProviderOptions:
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
        live_key=files.follow(provider.key, key.get_secret_value() if key else None),
    )


async def _provider(stack: AsyncExitStack, options: ProviderOptions) -> BaseChatModel:
    """Imports what the one that answers needs, and nothing for the others."""
    match options.provider.extra:
        case "anthropic":
            from segue.models.providers.anthropic import anthropic_messages as opened  # noqa: PLC0415 (see above)
        case "google":
            from segue.models.providers.google_genai import google_genai as opened  # noqa: PLC0415 (the same)
        case _:
            from segue.models.providers.openai import openai_model as opened  # noqa: PLC0415 (the same)
    return await stack.enter_async_context(opened(options))
