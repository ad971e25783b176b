"""The vectors of texts, by an endpoint of OpenAI's protocol. Where it fails, urgent requests skip it for a while."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from segue.domain.identity import Charge
from segue.domain.telemetry import ModelCharged, Observe
from segue.log import log
from segue.memory.history_window import estimate
from segue.models.chat_model import with_a_key
from segue.models.model_settings import ModelSettings
from segue.models.open_models import provider_options
from segue.models.providers.endpoint import Endpoint, endpoint_of
from segue.models.refusals import MALFORMED, ModelFailure
from segue.models.reply import token_count
from segue.secret_files import LiveKeys, SecretFiles
from segue.users.prices import Tariff, read_prices
from segue.users.usage import Account, Books, Payer

URGENT_TIMEOUT_S = 1.5  # while a user waits
TIMEOUT_S = 20.0
MAX_BYTES = 20_000_000  # of one answer: a hundred vectors of four thousand dimensions take half
MAX_NUMBER = 1e30  # PostgreSQL keeps them in four bytes


@asynccontextmanager
async def openai_embedder(
    settings: ModelSettings, books: Books, observe: Observe, files: SecretFiles | None = None
) -> AsyncIterator["OpenAIEmbedder | None"]:
    """Yields None if no model is set."""
    if (model := settings.embedding_model) is None:
        yield None
        return
    options = provider_options(settings, f"openai:{model}", files)
    tariff = Tariff(model, read_prices(settings.prices_file).of(model), answer_tokens=0)
    bounded = replace(options, timeout_s=TIMEOUT_S, max_answer_bytes=MAX_BYTES)
    async with endpoint_of(bounded, "/embeddings") as endpoint:
        yield OpenAIEmbedder(model, endpoint, options.keys, tariff, books, observe)


@dataclass(eq=False, repr=False)
class OpenAIEmbedder:
    model: str
    endpoint: Endpoint
    keys: LiveKeys | None
    tariff: Tariff
    books: Books
    observe: Observe
    _cooldown_until: float = 0.0

    @property
    def unpriced(self) -> tuple[str, ...]:
        return () if self.tariff.price else (self.model,)

    async def embed(self, texts: Sequence[str], *, payer: Payer | None, urgent: bool) -> list[list[float]] | None:
        """Returns a vector for each text, or None on any failure. `urgent` is for a request that a user waits for.
        Raises `rate_limited`, `service_limit_reached` or `price_missing` as a call of the chat model does.
        """
        if urgent and time.monotonic() < self._cooldown_until:
            return None
        try:
            async with self.books.job(*payer, lasts_s=TIMEOUT_S) if payer else nullcontext() as account:
                answer = await self._ask(texts, account, URGENT_TIMEOUT_S if urgent else TIMEOUT_S)
            items = sorted(answer["data"], key=lambda each: each["index"])
            vectors = [list(map(float, each["embedding"])) for each in items]
            is_sound = len(vectors) == len(texts) and all(vectors)
            if not is_sound or not all(abs(x) < MAX_NUMBER for each in vectors for x in each):
                raise ValueError("not a vector for each text")
        except (TimeoutError, ModelFailure, *MALFORMED) as error:
            log.warning("embedding_failed", error=type(error).__name__, reason=str(error), texts=len(texts))
            if urgent:
                self._cooldown_until = time.monotonic() + 30.0
            return None
        self._cooldown_until = 0.0
        return vectors

    async def _ask(self, texts: Sequence[str], account: Account | None, timeout_s: float) -> dict[str, Any]:
        """Returns the answer. The account is charged even if the caller is cancelled or its time is up."""
        estimated = sum(map(estimate, texts))
        if account is not None:
            await account.reserve(partial(self.tariff.at_most, estimated))
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(timeout_s):
                answer = await with_a_key(self.keys, partial(self.endpoint.ask, body))
        except ModelFailure:
            estimated = 0  # it was refused
            raise
        finally:
            usage = answer.get("usage")
            counts = usage if isinstance(usage, dict) else {}
            counted = token_count(counts.get("prompt_tokens") or counts.get("total_tokens"))
            if tokens := counted or estimated:
                charge = self.tariff.priced(Charge(self.model, input_tokens=tokens, estimated=not counted))
                self.observe(ModelCharged(charge, ""))
                if account is not None:
                    account.add(charge)
        return answer
