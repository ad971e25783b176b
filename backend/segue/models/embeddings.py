"""Embeddings from any OpenAI-compatible endpoint. A failure gives none: facts are found by their words too.

After a failure urgent requests skip the endpoint for a while. Implements `Embedder` of `memory/long_term.py`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from segue.models.providers.adapted import ProviderOptions
from segue.models.providers.endpoint import Endpoint, endpoint_of
from segue.models.refusals import MALFORMED, ModelFailure

URGENT_TIMEOUT_S = 1.5  # while a user waits
TIMEOUT_S = 20.0
COOLDOWN_S = 30.0
MAX_BYTES = 20_000_000  # of one answer: a hundred vectors of four thousand dimensions take half
MAX_NUMBER = 1e30  # PostgreSQL keeps them in four bytes

log = structlog.get_logger()


@asynccontextmanager
async def openai_embedder(options: ProviderOptions) -> AsyncIterator["OpenAIEmbedder"]:
    """Yields an embedder whose connections close with the block."""
    bounded = replace(options, timeout_s=TIMEOUT_S, max_answer_bytes=MAX_BYTES)
    async with endpoint_of(bounded, "/embeddings") as endpoint:
        yield OpenAIEmbedder(options.model, endpoint)


class OpenAIEmbedder:
    def __init__(self, model: str, endpoint: Endpoint) -> None:
        self.model = model
        self._endpoint = endpoint
        self._cooldown_until = 0.0

    async def embed(self, texts: Sequence[str], *, urgent: bool) -> list[list[float]] | None:
        """Returns a vector for each text, or None on any failure. `urgent` is for a request that a user waits for."""
        if urgent and time.monotonic() < self._cooldown_until:
            return None
        try:
            async with asyncio.timeout(URGENT_TIMEOUT_S if urgent else TIMEOUT_S):
                embeddings = await self._asked(texts)
        except (TimeoutError, ModelFailure, *MALFORMED) as error:
            log.warning("embedding_failed", error=type(error).__name__, reason=str(error), texts=len(texts))
            self._cooldown_until = time.monotonic() + COOLDOWN_S
            return None
        self._cooldown_until = 0.0
        return embeddings

    async def _asked(self, texts: Sequence[str]) -> list[list[float]]:
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        given = sorted((await self._endpoint.ask(body))["data"], key=lambda each: each["index"])
        embeddings = [list(map(float, each["embedding"])) for each in given]
        if len(embeddings) != len(texts) or not all(each and max(map(abs, each)) < MAX_NUMBER for each in embeddings):
            raise ValueError("not a vector for each text")
        return embeddings
