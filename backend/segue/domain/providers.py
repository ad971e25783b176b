"""Which providers of models there are, and which one a model's name means. Pure data: nothing is imported for it."""

from dataclasses import dataclass
from typing import Final, Literal

# OpenAI's protocols. `auto` takes the Responses API where OpenAI itself answers, and the other one if one refuses.
Api = Literal["auto", "chat", "responses"]


@dataclass(frozen=True, slots=True)
class Provider:
    """`key` and `base_url` are names of settings; `package` is what the `extra` of this project installs."""

    key: str
    base_url: str
    default_url: str
    package: str = ""
    extra: str = ""


OPENAI: Final = Provider("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1")
PROVIDERS: Final = {
    "openai": OPENAI,
    "anthropic": Provider(
        "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com", "langchain_anthropic", "anthropic"
    ),
    "google_genai": Provider(
        "GOOGLE_API_KEY",
        "GOOGLE_BASE_URL",
        "https://generativelanguage.googleapis.com",
        "langchain_google_genai",
        "google",
    ),
}


def provider_and_id(model: str) -> tuple[Provider, str]:
    """Returns a model's provider and the id it has there. Only a known prefix names one: `qwen3:8b` is an id."""
    prefix, _, rest = model.partition(":")
    provider = PROVIDERS.get(prefix)
    return (provider, rest) if provider and rest else (OPENAI, model)
