"""Where OpenAI's protocols are spoken and as whom: a base URL, its query, a key as a bearer or in Azure's header."""

from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import httpx2

from segue.agent.llm.providers.guard import RequestHook, with_live_key
from segue.agent.llm.providers.options import ProviderOptions
from segue.version import VERSION

_OPENAI_HOST: Final = "api.openai.com"
_AZURES_QUERY: Final = "api-version"  # only its classic addresses have one
_CONNECT_S: Final = 10.0
_HEADERS: Final = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"segue/{VERSION}",
}


def is_openai_itself(options: ProviderOptions) -> bool:
    return urlsplit(options.url).hostname == _OPENAI_HOST


def http_arguments(options: ProviderOptions) -> dict[str, Any]:
    """Returns the arguments of an HTTP client of our own."""
    headers = httpx2.Headers({**_HEADERS, "Authorization": f"Bearer {options.key}"})
    headers.update(options.extra_headers)
    return {
        "base_url": _base_url(options),
        "params": _query(options),
        "headers": headers,
        "timeout": _timeout(options),
    }


def library_arguments(options: ProviderOptions) -> dict[str, Any]:
    """Returns the arguments of LangChain's model. It never retries: ChatModel does."""
    return {
        "api_key": options.key,
        "base_url": _base_url(options),
        "default_query": _query(options),
        "default_headers": dict(options.extra_headers),
        "timeout": _timeout(options),
        "max_retries": 0,
    }


def made_by(options: ProviderOptions, api: str) -> str:
    """Returns the name of who makes the opaque parts of an API's answers: they go back to no other."""
    return f"{_base_url(options)} {api} {options.model}"


def before_requests(options: ProviderOptions) -> list[RequestHook]:
    """Returns the hooks of an HTTP client that send the key as the address wants it."""

    async def as_azure_takes_it(request: httpx2.Request) -> None:
        request.headers.pop("Authorization", None)
        request.headers["api-key"] = options.key

    return [as_azure_takes_it] if _AZURES_QUERY in _query(options) else with_live_key(options)


def _base_url(options: ProviderOptions) -> str:
    return options.url.partition("?")[0]


def _timeout(options: ProviderOptions) -> httpx2.Timeout:
    return httpx2.Timeout(options.timeout_s, connect=min(_CONNECT_S, options.timeout_s / 2))


def _query(options: ProviderOptions) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(options.url).query))
