"""The official client of OpenAI, as it is, speaking to a service of ours."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from openai import AsyncOpenAI

from tests.support.patience import PATIENCE_S
from tests.support.service import Client


@asynccontextmanager
async def openai_client(
    client: Client, key: str = "none", *, headers: Mapping[str, str] | None = None
) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"{str(client.http.base_url).rstrip('/')}/v1"
    async with AsyncOpenAI(
        api_key=key, base_url=base_url, timeout=PATIENCE_S, default_headers=dict(headers or {})
    ) as opened:
        yield opened
