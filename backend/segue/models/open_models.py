"""Opens the chat models that settings and agents name. A provider is one file in `models/providers/`, and imported only
if it answers.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from langchain_core.language_models import BaseChatModel

from segue.domain.agent import OFFLINE, Agent, provider_and_id
from segue.domain.telemetry import Observe, OpenSpan
from segue.models.chat_model import ChatModel
from segue.models.fallback_model import ModelWithFallback
from segue.models.metered_model import Models
from segue.models.model_settings import ModelSettings
from segue.models.normal_form import media_of
from segue.models.providers.endpoint import ProviderOptions
from segue.models.providers.langchain_model import of_langchain
from segue.models.reply import ProviderModel
from segue.secret_files import SecretFiles
from segue.users.prices import ANSWER_TOKENS, FREE, Tariff, read_prices


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModels:
    """Opens each model once for all that name it; the stack closes them."""

    stack: AsyncExitStack
    settings: ModelSettings
    instead: BaseChatModel | ProviderModel | None  # answers in the place of all, if it is given
    offline: Callable[[], ProviderModel]  # answers where the settings have no access to a model
    observe: Observe
    span: OpenSpan
    files: SecretFiles
    opened: dict[tuple[object, ...], ChatModel] = field(default_factory=dict)

    async def of(self, agent: Agent) -> Models:
        settings = self.settings
        own = {"llm_temperature": agent.temperature, "llm_reasoning_effort": agent.reasoning_effort}
        of_agent = settings.model_copy(update={name: value for name, value in own.items() if value is not None})
        main_name = agent.model or settings.llm_model
        if self.instead is not None or not settings.has_access_to(main_name):
            return Models(self._without_provider, self._without_provider)
        main = small = await self._named(of_agent, main_name, "an agent's model" if agent.model else "LLM_MODEL")
        small_name = agent.small_model or settings.llm_small_model or main_name
        if small_name != main_name and settings.has_access_to(small_name):
            setting = "an agent's small_model" if agent.small_model else "LLM_SMALL_MODEL"
            small = await self._named(of_agent, small_name, setting)
        return Models(main, small)

    async def _named(self, settings: ModelSettings, name: str, setting: str) -> ChatModel:
        """Returns the model of this name, behind which the fallbacks stand in their order."""
        fallback: ChatModel | None = None
        for other in reversed([each for each in settings.llm_fallback_models if each != name]):
            if settings.has_access_to(other):
                fallback = await self._opened(settings, other, "LLM_FALLBACK_MODEL", fallback)
        return await self._opened(settings, name, setting, fallback)

    async def _opened(self, settings: ModelSettings, name: str, setting: str, fallback: ChatModel | None) -> ChatModel:
        key = name, settings.llm_temperature, settings.llm_reasoning_effort, fallback
        if key not in self.opened:
            self.opened[key] = await open_model(
                self.stack, settings, name, setting, fallback, observe=self.observe, span=self.span, files=self.files
            )
        return self.opened[key]

    @property
    def _without_provider(self) -> ChatModel:
        if () not in self.opened:
            model, name = self.instead or self.offline(), type(self.instead).__name__ if self.instead else OFFLINE
            if isinstance(model, BaseChatModel):
                name, model = model.get_name(), of_langchain(model, self.settings.llm_max_answer_bytes)
            tariff = _tariff(self.settings, name)
            self.opened[()] = ChatModel(
                model, name=name, settings=self.settings, observe=self.observe, span=self.span, tariff=tariff
            )
        return self.opened[()]


async def open_model(
    stack: AsyncExitStack,
    settings: ModelSettings,
    name: str,
    setting: str = "LLM_MODEL",
    fallback: ChatModel | None = None,
    *,
    observe: Observe,
    span: OpenSpan,
    files: SecretFiles | None = None,
) -> ChatModel:
    """Returns the model of this name; errors name the `setting` that it has its name from."""
    options = provider_options(settings, name, files)
    kind = ChatModel if fallback is None else partial(ModelWithFallback, fallback=fallback)
    opened = kind(
        await _provider(stack, options),
        name=name,
        setting=setting,
        settings=settings,
        observe=observe,
        span=span,
        tariff=_tariff(settings, name),
        keys=options.keys,
        server=options.server,
    )
    if {"native": True, "text": False}.get(settings.llm_pdf, options.takes_files and "file" in media_of(name)):
        opened.takes.add("file")
    return opened


def _tariff(settings: ModelSettings, name: str) -> Tariff:
    price = FREE if name == OFFLINE else read_prices(settings.prices_file).of(name)
    return Tariff(name, price, settings.answer_tokens or ANSWER_TOKENS)


def provider_options(settings: ModelSettings, name: str, files: SecretFiles | None = None) -> ProviderOptions:
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
        keys=(files or SecretFiles(None)).keys(provider.key, key.get_secret_value()) if key else None,
    )


async def _provider(stack: AsyncExitStack, options: ProviderOptions) -> ProviderModel:
    """Imports the package of the provider that answers, and nothing for the others."""
    match options.provider.extra:
        case "anthropic":
            from segue.models.providers.anthropic import anthropic_messages as opened  # noqa: PLC0415 (see above)
        case "google":
            from segue.models.providers.google_genai import google_genai as opened  # noqa: PLC0415 (the same)
        case _:
            from segue.models.providers.openai import openai_model as opened  # noqa: PLC0415 (the same)
    return await stack.enter_async_context(opened(options))
