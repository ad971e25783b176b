"""A model with a fallback, which is asked while the model is down: for DOWN_S, then one call tries the model again."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from segue.domain.errors import AppError
from segue.log import log
from segue.models.chat_model import ChatModel
from segue.models.model_settings import ModelSettings
from segue.models.refusals import another_may_answer, is_down, timeout
from segue.models.reply import ProviderModel, Reply
from segue.models.streamed_answer import Listener

DOWN_S = 30.0
MAX_WAIT_S = 2.0  # before the same model is asked again: longer than that, another is better


class ModelWithFallback(ChatModel):
    """A model with another that answers in its place, unless words were emitted already. They share one deadline."""

    def __init__(
        self,
        model: ProviderModel,
        *,
        fallback: ChatModel,
        settings: ModelSettings,
        monotonic: Callable[[], float] = time.monotonic,
        **named: Any,
    ) -> None:
        share_s = settings.llm_timeout_s / max(2, 1 + len(settings.llm_fallback_models))
        first_token_s = min(settings.llm_first_token_timeout_s, share_s)
        bounded = settings.model_copy(update={"llm_first_token_timeout_s": first_token_s})
        super().__init__(model, settings=bounded, **named)
        self.made_by += fallback.made_by
        self._fallback = fallback
        self._whole_s = share_s  # a stream shows that it lives; a whole answer does not, and leaves time for the others
        self._longest_wait_s = min(self._longest_wait_s, MAX_WAIT_S)
        self._monotonic = monotonic
        self._down_until = 0.0

    @property
    def unpriced(self) -> tuple[str, ...]:
        return (*super().unpriced, *self._fallback.unpriced)

    async def reply(self, *messages_and_tools: Any, listener: Listener | None = None, **options: Any) -> Reply:
        ends_at = asyncio.get_running_loop().time() + self._timeout_s
        if self._is_up():
            heard = asyncio.Event()
            try:
                noting = listener and _noting(listener, heard)
                reply = await super().reply(*messages_and_tools, listener=noting, **options)
            except AppError as error:
                if heard.is_set() or not another_may_answer(error):
                    raise
                self._down_until = self._monotonic() + DOWN_S if is_down(error) else 0.0
                log.warning("model_fallback", model=self.name, fallback=self._fallback.name, reason=error.detail)
            else:
                self._down_until = 0.0
                return reply
        try:
            async with asyncio.timeout_at(ends_at):
                return await self._fallback.reply(*messages_and_tools, listener=listener, **options)
        except TimeoutError as error:
            raise timeout(self._timeout_s) from error

    def _is_up(self) -> bool:
        now = self._monotonic()
        if now < self._down_until:
            return False
        if self._down_until:
            self._down_until = now + DOWN_S  # this call tries it, the others go on without
        return True


def _noting(listener: Listener, heard: asyncio.Event) -> Listener:
    """Returns a listener that keeps `heard` set while it has heard words that stand."""

    def told(text: str) -> None:
        heard.set()
        listener.on_text(text)

    def withdrawn() -> None:
        heard.clear()
        listener.on_withdrawn()

    return replace(listener, on_text=told, on_withdrawn=withdrawn)
