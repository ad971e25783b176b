"""A chat model that asks the scripted provider, with nothing around it."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

from segue.domain.telemetry import unobserved, untraced
from segue.models.chat_model import ChatModel
from segue.models.fallback_model import ModelWithFallback
from segue.models.model_settings import ModelSettings
from segue.models.providers.endpoint import ProviderOptions
from segue.models.providers.openai import chat_completions
from segue.users.prices import Tariff
from tests.support.provider import OpenModel, Provider


@pytest.fixture
async def open_model(provider: Provider) -> AsyncIterator[OpenModel]:
    """Opens models; the keywords are settings' names without `llm_`."""

    async def opened(  # noqa: PLR0913 (as many as there are settings)
        *,
        name: str = "scripted",
        timeout_s: float = 20,
        first_token_s: float = 20,
        idle_s: float = 20,
        max_retries: int = 0,
        max_answer_bytes: int = 1_000_000,
        api_key: SecretStr | None = None,
        parameters: dict[str, Any] | None = None,
        fallback: ChatModel | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> ChatModel:
        client = await stack.enter_async_context(
            chat_completions(
                ProviderOptions(
                    model=name,
                    api_key=api_key,
                    base_url=provider.base_url,
                    timeout_s=timeout_s,
                    max_answer_bytes=max_answer_bytes,
                    extra_body=parameters or {},
                )
            )
        )
        kind = partial(ModelWithFallback, fallback=fallback, monotonic=monotonic) if fallback else ChatModel
        return kind(
            client,
            name=name,
            settings=ModelSettings(
                llm_timeout_s=timeout_s,
                llm_first_token_timeout_s=first_token_s,
                llm_idle_timeout_s=idle_s,
                llm_max_retries=max_retries,
            ),
            observe=unobserved,
            tariff=Tariff(name),
            span=untraced,
        )

    async with AsyncExitStack() as stack:
        yield opened


@pytest.fixture
async def model(open_model: OpenModel) -> ChatModel:
    return await open_model()
