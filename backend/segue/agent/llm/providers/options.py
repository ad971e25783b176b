"""The options that the model of every provider is made from."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from segue.domain.providers import OPENAI, ModelProvider, ProviderApi
from segue.domain.redaction import header_secrets
from segue.domain.telemetry import Attribute
from segue.secret_files import LiveKey


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """What is None is not sent. `model` is the name without the provider's prefix; the extras are merged last. `api`
    says which of OpenAI's is asked. A `live_key` stands in the place of the key.
    """

    model: str
    api_key: SecretStr | None
    base_url: str | None
    timeout_s: float
    max_answer_bytes: int
    provider: ModelProvider = OPENAI
    api: ProviderApi = "auto"
    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    structured_output: bool = True
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    live_key: LiveKey | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return self.base_url or self.provider.default_url

    @property
    def server(self) -> dict[str, Attribute]:
        address = urlsplit(self.url)
        port = address.port or (80 if address.scheme == "http" else 443)
        return {"server.address": address.hostname or "", "server.port": port}

    @property
    def key(self) -> str:
        if self.live_key is not None:
            return self.live_key.value
        return self.api_key.get_secret_value() if self.api_key else "none"

    @property
    def secrets(self) -> Collection[str]:
        """Returns what a provider may repeat of a request and must not be told: the key and the extra headers. What a
        live key becomes is added to them.
        """
        never_told = self.live_key.never_told if self.live_key else {self.key} if self.api_key else set[str]()
        never_told.update(header_secrets(self.extra_headers.values()))
        return never_told
