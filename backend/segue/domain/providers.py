"""Which providers of models there are, and which one a model's name means. Pure data: nothing is imported for it."""

from dataclasses import dataclass
from typing import Final, Literal

# OpenAI's protocols. `auto` takes the Responses API where OpenAI itself answers, and the other one if one refuses.
ProviderApi = Literal["auto", "chat", "responses"]


@dataclass(frozen=True, slots=True)
class ModelProvider:
    """`key` and `base_url` are names of settings; `package` is what the `extra` of this project installs. `traced_as`
    is its name by OpenTelemetry's conventions.
    """

    key: str
    base_url: str
    default_url: str
    package: str = ""
    extra: str = ""
    traced_as: str = "openai"


OPENAI: Final = ModelProvider("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1")
OFFLINE: Final = "offline"  # the name of the model that answers while none is configured
PROVIDERS: Final = {
    "openai": OPENAI,
    "anthropic": ModelProvider(
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
        "https://api.anthropic.com",
        "langchain_anthropic",
        "anthropic",
        "anthropic",
    ),
    "google_genai": ModelProvider(
        "GOOGLE_API_KEY",
        "GOOGLE_BASE_URL",
        "https://generativelanguage.googleapis.com",
        "langchain_google_genai",
        "google",
        "gcp.gemini",
    ),
}


def provider_and_id(model: str) -> tuple[ModelProvider, str]:
    """Returns a model's provider and the id it has there. Only a known prefix names one: `qwen3:8b` is an id."""
    prefix, _, rest = model.partition(":")
    provider = PROVIDERS.get(prefix)
    return (provider, rest) if provider and rest else (OPENAI, model)


def traced_provider(model: str) -> str:
    return "segue" if model == OFFLINE else provider_and_id(model)[0].traced_as
