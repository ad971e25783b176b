"""Opens the chat models and embeddings that settings and agents name. A provider is one file in `models/providers/`,
and imported only if it answers. Where embeddings fail, urgent requests skip the endpoint for a while.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel

from segue.domain.agent import OFFLINE, Agent, provider_and_id
from segue.domain.identity import Charge
from segue.domain.telemetry import ModelCharged, Observe, OpenSpan
from segue.log import log
from segue.memory.history_window import estimate
from segue.models.chat_model import ChatModel, with_a_key
from segue.models.metered_model import Models, ModelWithFallback
from segue.models.model_settings import ModelSettings
from segue.models.normal_form import media_of
from segue.models.providers.endpoint import Endpoint, ProviderOptions, endpoint_of
from segue.models.providers.langchain_model import of_langchain
from segue.models.refusals import MALFORMED, ModelFailure
from segue.models.reply import ProviderModel, token_count
from segue.secret_files import LiveKeys, SecretFiles
from segue.users.prices import ANSWER_TOKENS, FREE, Tariff, read_prices
from segue.users.usage import Account, Books, Payer


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
            self.opened[()] = ChatModel(
                model,
                name=name,
                settings=self.settings,
                observe=self.observe,
                span=self.span,
                tariff=_tariff(self.settings, name),
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


URGENT_TIMEOUT_S = 1.5  # while a user waits
TIMEOUT_S = 20.0
MAX_BYTES = 20_000_000  # of one answer: a hundred vectors of four thousand dimensions take half
MAX_NUMBER = 1e30  # PostgreSQL keeps them in four bytes


@asynccontextmanager
async def openai_embedder(
    settings: ModelSettings, books: Books, observe: Observe, files: SecretFiles | None = None
) -> AsyncIterator["OpenAIEmbedder | None"]:
    """Yields None if no model is set."""
    if (model := settings.embedding_model) is None:
        yield None
        return
    options = provider_options(settings, f"openai:{model}", files)
    tariff = Tariff(model, read_prices(settings.prices_file).of(model), answer_tokens=0)
    bounded = replace(options, timeout_s=TIMEOUT_S, max_answer_bytes=MAX_BYTES)
    async with endpoint_of(bounded, "/embeddings") as endpoint:
        yield OpenAIEmbedder(model, endpoint, options.keys, tariff, books, observe)


@dataclass(eq=False, repr=False)
class OpenAIEmbedder:
    model: str
    endpoint: Endpoint
    keys: LiveKeys | None
    tariff: Tariff
    books: Books
    observe: Observe
    _cooldown_until: float = 0.0

    @property
    def unpriced(self) -> tuple[str, ...]:
        return () if self.tariff.price else (self.model,)

    async def embed(self, texts: Sequence[str], *, payer: Payer | None, urgent: bool) -> list[list[float]] | None:
        """Returns a vector for each text, or None on any failure. `urgent` is for a request that a user waits for.
        Raises `rate_limited`, `service_limit_reached` or `price_missing` as a call of the chat model does.
        """
        if urgent and time.monotonic() < self._cooldown_until:
            return None
        try:
            async with self.books.job(*payer, lasts_s=TIMEOUT_S) if payer else nullcontext() as account:
                answer = await self._ask(texts, account, URGENT_TIMEOUT_S if urgent else TIMEOUT_S)
            items = sorted(answer["data"], key=lambda each: each["index"])
            vectors = [list(map(float, each["embedding"])) for each in items]
            is_sound = len(vectors) == len(texts) and all(vectors)
            if not is_sound or not all(abs(x) < MAX_NUMBER for each in vectors for x in each):
                raise ValueError("not a vector for each text")
        except (TimeoutError, ModelFailure, *MALFORMED) as error:
            log.warning("embedding_failed", error=type(error).__name__, reason=str(error), texts=len(texts))
            if urgent:
                self._cooldown_until = time.monotonic() + 30.0
            return None
        self._cooldown_until = 0.0
        return vectors

    async def _ask(self, texts: Sequence[str], account: Account | None, timeout_s: float) -> dict[str, Any]:
        """Returns the answer. The account is charged even if the caller is cancelled or its time is up."""
        estimated = sum(map(estimate, texts))
        if account is not None:
            await account.reserve(partial(self.tariff.at_most, estimated))
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(timeout_s):
                answer = await with_a_key(self.keys, partial(self.endpoint.ask, body))
        except ModelFailure:
            estimated = 0  # it was refused
            raise
        finally:
            usage = answer.get("usage")
            counts = usage if isinstance(usage, dict) else {}
            counted = token_count(counts.get("prompt_tokens") or counts.get("total_tokens"))
            if tokens := counted or estimated:
                charge = self.tariff.priced(Charge(self.model, input_tokens=tokens, estimated=not counted))
                self.observe(ModelCharged(charge, ""))
                if account is not None:
                    account.add(charge)
        return answer
