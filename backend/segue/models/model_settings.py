"""The settings of models: which of them answer, access to their providers, and the bounds of a request."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from segue.domain.agent import ModelProvider, ProviderApi, provider_and_id
from segue.domain.field_types import JSON_OBJECT, PositiveCount, Seconds, Url
from segue.users.prices import ANSWER_TOKENS, read_prices
from segue.users.user_settings import UserSettings

# The settings that name a model. Two may name the same, and any may name none.
MODEL_SETTINGS: Final = ("llm_model", "llm_small_model", "llm_fallback_model")

_OWN_TO_A_REQUEST: Final = frozenset({"model", "messages", "input", "tools", "stream"})
_HEADER_NAME: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[ -~]*")


class ModelSettings(UserSettings):
    openai_api_key: SecretStr | None = None
    openai_base_url: Url | None = None
    anthropic_api_key: SecretStr | None = None
    anthropic_base_url: Url | None = None
    google_api_key: SecretStr | None = None
    google_base_url: Url | None = None
    llm_model: str = "gpt-5-mini"
    llm_api: ProviderApi = "auto"
    llm_small_model: str | None = None
    llm_fallback_model: str | None = None
    llm_temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    llm_max_output_tokens: PositiveCount | None = None
    llm_reasoning_effort: str | None = None
    llm_structured_output: Literal["auto", "off"] = "auto"
    llm_pdf: Literal["auto", "native", "text"] = "auto"
    llm_extra_body: Annotated[Mapping[str, Any], JSON_OBJECT] = {}
    llm_extra_headers: Annotated[Mapping[str, SecretStr], JSON_OBJECT] = {}
    llm_timeout_s: Seconds = 300
    llm_first_token_timeout_s: Seconds = 120
    llm_idle_timeout_s: Seconds = 30
    llm_max_retries: Annotated[int, Field(ge=0)] = 2
    llm_max_answer_bytes: Annotated[int, Field(ge=10_000)] = 1_000_000
    llm_tool_description_chars: Annotated[int, Field(ge=20)] = 1024
    embedding_model: str | None = None
    prices_file: Path | None = None

    @field_validator("llm_extra_body")
    @classmethod
    def _leaves_the_request_alone(cls, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if taken := sorted(_OWN_TO_A_REQUEST & body.keys()):
            raise ValueError(f"cannot set {', '.join(taken)}: Segue writes these itself. Leave them out")
        return body

    @field_validator("llm_extra_headers")
    @classmethod
    def _can_be_sent(cls, headers: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value.get_secret_value()):
                raise ValueError(f"has a header that cannot be sent, {name!r}: names and values are plain ASCII texts")
        return headers

    @model_validator(mode="after")
    def _models_have_providers(self) -> Self:
        if self.embedding_model and self.openai_api_key is None and self.openai_base_url is None:
            raise ValueError("EMBEDDING_MODEL needs OPENAI_API_KEY or OPENAI_BASE_URL")
        for setting, model in self.named_models:
            is_needed = setting != "LLM_MODEL" and self.model_configured
            if fault := self.fault_of_model(model, is_needed=is_needed):
                raise ValueError(f"{setting}={model} {fault}")
        return self

    @model_validator(mode="after")
    def _prices_are_known(self) -> Self:
        prices = read_prices(self.prices_file)
        named = [name for _, name in self.named_models if self.model_configured]
        for name in (*named, *filter(None, [self.embedding_model])):
            if self.cost_cap and prices.of(name) is None:
                raise ValueError(f"{self.cost_cap} needs a price of {name} in the file PRICES_FILE")
        return self

    @property
    def llm_fallback_models(self) -> tuple[str, ...]:
        """Returns the models that answer in the place of others, in their order."""
        return tuple(dict.fromkeys(filter(None, map(str.strip, (self.llm_fallback_model or "").split(",")))))

    @property
    def named_models(self) -> list[tuple[str, str]]:
        """Returns the models that answer and those in their place, each with the setting that names it."""
        small = [("LLM_SMALL_MODEL", self.llm_small_model)] if self.llm_small_model else []
        fallbacks = (("LLM_FALLBACK_MODEL", name) for name in self.llm_fallback_models)
        return [("LLM_MODEL", self.llm_model), *small, *fallbacks]

    @property
    def answer_tokens(self) -> int | None:
        """Returns the most tokens of an answer. With a cap for a day it has a bound, because it is reserved."""
        return self.llm_max_output_tokens or (ANSWER_TOKENS if self.is_capped else None)

    @property
    def model_configured(self) -> bool:
        return self.has_access_to(self.llm_model)

    def has_access_to(self, model: str) -> bool:
        return any(self.access_to(provider_and_id(model)[0]))

    def fault_of_model(self, model: str, *, is_needed: bool) -> str | None:
        """Returns what a model lacks. Without a key for OpenAI's protocol, the offline model may answer instead."""
        provider, _ = provider_and_id(model)
        if provider.extra and find_spec(provider.package) is None:
            return f"needs a package that is not installed: pip install 'segue-agent[{provider.extra}]'"
        return f"needs {provider.key}" if (provider.extra or is_needed) and not self.has_access_to(model) else None

    def access_to(self, provider: ModelProvider) -> tuple[SecretStr | None, str | None]:
        return getattr(self, provider.key.lower()), getattr(self, provider.base_url.lower())
