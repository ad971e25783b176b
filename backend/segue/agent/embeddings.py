"""Embeddings from any OpenAI-compatible endpoint. A failure gives none: facts are found by their words too.

After a failure urgent requests skip the endpoint for a while. Implements `Embedder` of `memory/long_term.py`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import openai
import structlog
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

URGENT_TIMEOUT_S = 1.5  # while a user waits
TIMEOUT_S = 20.0
COOLDOWN_S = 30.0

log = structlog.get_logger()


@asynccontextmanager
async def openai_embedder(
    *, model: str, api_key: SecretStr | None, base_url: str | None
) -> AsyncIterator["OpenAIEmbedder"]:
    """Yields an embedder whose connections close with the block."""
    key = api_key.get_secret_value() if api_key else "none"
    # LangChain never closes a client that it made itself.
    async with openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0) as client:
        yield OpenAIEmbedder(
            OpenAIEmbeddings(
                model=model,
                openai_api_key=SecretStr(key),
                async_client=client.embeddings,
                check_embedding_ctx_length=False,  # or it would load a tokenizer from the network
            )
        )


class OpenAIEmbedder:
    def __init__(self, embeddings: OpenAIEmbeddings) -> None:
        self.model = embeddings.model
        self._embeddings = embeddings
        self._cooldown_until = 0.0

    async def embed(self, texts: Sequence[str], *, urgent: bool) -> list[list[float]] | None:
        """Returns a vector for each text, or None on any failure. `urgent` is for a request that a user waits for."""
        if urgent and time.monotonic() < self._cooldown_until:
            return None
        try:
            async with asyncio.timeout(URGENT_TIMEOUT_S if urgent else TIMEOUT_S):
                embeddings = await self._embeddings.aembed_documents(list(texts))
        except (TimeoutError, openai.OpenAIError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("embedding_failed", error=type(error).__name__, texts=len(texts))
            self._cooldown_until = time.monotonic() + COOLDOWN_S
            return None
        if len(embeddings) != len(texts) or not all(map(_is_vector, embeddings)):
            log.warning("embedding_failed", error="not a vector for each text", texts=len(texts))
            return None
        self._cooldown_until = 0.0
        return embeddings


def _is_vector(embedding: object) -> bool:
    return isinstance(embedding, list) and bool(embedding) and all(isinstance(number, float) for number in embedding)
