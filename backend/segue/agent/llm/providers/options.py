"""The options that the model of every provider is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from segue.domain.providers import OPENAI, Api, Provider
from segue.domain.redaction import header_secrets


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What is None is not sent. `model` is the name without the provider's prefix; the extras are merged last. `api`
    says which of OpenAI's is asked.
    """

    model: str
    api_key: SecretStr | None
    base_url: str | None
    timeout_s: float
    max_answer_bytes: int
    provider: Provider = OPENAI
    api: Api = "auto"
    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    structured_output: bool = True
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def url(self) -> str:
        return self.base_url or self.provider.default_url

    @property
    def key(self) -> str:
        return self.api_key.get_secret_value() if self.api_key else "none"

    @property
    def secrets(self) -> frozenset[str]:
        """Returns what a provider may repeat of a request and must not be told: the key and the extra headers."""
        key = {self.api_key.get_secret_value()} if self.api_key else set()
        return frozenset(key | header_secrets(self.extra_headers.values()))
