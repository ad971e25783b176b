"""Embeddings from any OpenAI-compatible endpoint. What fails or takes too long gives none: facts have words too.

After a failure nobody waits for the endpoint for a while. Above stands `memory/long_term.py`, by its `Embedder`.
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
REST_S = 30.0

log = structlog.get_logger()


@asynccontextmanager
async def openai_embedder(
    *, model: str, api_key: SecretStr | None, base_url: str | None
) -> AsyncIterator["OpenAIEmbedder"]:
    """Its connections are open for as long as the block lasts: LangChain closes only those it was given."""
    key = api_key.get_secret_value() if api_key else "none"
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
        self._rests_until = 0.0

    async def embed(self, texts: Sequence[str], *, urgent: bool) -> list[list[float]] | None:
        if urgent and time.monotonic() < self._rests_until:
            return None
        try:
            async with asyncio.timeout(URGENT_TIMEOUT_S if urgent else TIMEOUT_S):
                embeddings = await self._embeddings.aembed_documents(list(texts))
        except (TimeoutError, openai.OpenAIError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("embedding_failed", error=type(error).__name__, texts=len(texts))
            self._rests_until = time.monotonic() + REST_S
            return None
        if len(embeddings) != len(texts) or not all(map(_is_vector, embeddings)):
            log.warning("embedding_failed", error="not a vector for each text", texts=len(texts))
            return None
        self._rests_until = 0.0
        return embeddings


def _is_vector(embedding: object) -> bool:
    return isinstance(embedding, list) and bool(embedding) and all(isinstance(number, float) for number in embedding)
