"""Which model is asked: the one for the answer or a small one for what is around it, and another while one is down.

Knows no provider and no turn. A model that cannot answer is left alone for DOWN_S; then one call tries it again.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import structlog
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from segue.agent.llm.model import ChatModel, ModelLimits, ReplyOptions
from segue.agent.llm.model_errors import Failure, another_may_answer, is_down, timeout
from segue.agent.llm.reply import Reply
from segue.agent.llm.streamed_answer import Listener
from segue.domain.errors import AppError
from segue.domain.tool import ToolSpec

DOWN_S = 30.0
MAX_WAIT_S = 2.0  # before the same model is asked again: longer than that, another is better

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Models:
    """`main` answers. `small` plans, reads replies to plans, summarises and extracts facts; it may be the same."""

    main: ChatModel
    small: ChatModel


class ModelWithFallback(ChatModel):
    """A model that leaves to another what it cannot answer, before a word was heard. They share one deadline."""

    def __init__(
        self,
        model: BaseChatModel,
        *,
        fallback: ChatModel,
        limits: ModelLimits,
        monotonic: Callable[[], float] = time.monotonic,
        **named: Any,
    ) -> None:
        first_token_s = min(limits.first_token_s, limits.timeout_s / 2)
        super().__init__(model, limits=replace(limits, first_token_s=first_token_s), **named)
        self.made_by += fallback.made_by
        self._fallback = fallback
        self._timeout_s = limits.timeout_s
        self._monotonic = monotonic
        self._down_until = 0.0

    async def reply(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        listener: Listener | None = None,
        **asked: Unpack[ReplyOptions],
    ) -> Reply:
        ends_at = asyncio.get_running_loop().time() + self._timeout_s
        if self._is_up():
            heard = _Heard(listener)
            try:
                reply = await super().reply(messages, tools, listener=heard.listener, **asked)
            except AppError as error:
                if heard.words or not another_may_answer(error):
                    raise
                self._down_until = self._monotonic() + DOWN_S if is_down(error) else 0.0
                log.warning("model_fallback", model=self.name, fallback=self._fallback.name, reason=error.detail)
            else:
                self._down_until = 0.0
                return reply
        try:
            async with asyncio.timeout_at(ends_at):
                return await self._fallback.reply(messages, tools, listener=listener, **asked)
        except TimeoutError as error:
            raise timeout(self._timeout_s) from error

    def _is_up(self) -> bool:
        now = self._monotonic()
        if now < self._down_until:
            return False
        if self._down_until:
            self._down_until = now + DOWN_S  # this call tries it, the others go on without
        return True

    def _deadline_s(self, *, is_streamed: bool) -> float:
        """A stream shows that it lives. A whole answer does not, and must leave time for another."""
        return self._timeout_s if is_streamed else self._timeout_s / 2

    def _may_wait(self, failure: Failure) -> bool:
        return super()._may_wait(failure) and failure.delay_s <= MAX_WAIT_S


class _Heard:
    """A listener, and whether it has heard words that stand."""

    def __init__(self, listener: Listener | None) -> None:
        self.words = False
        self._told = listener
        self.listener = listener and Listener(self._add, self._withdraw, listener.on_reasoning)

    def _add(self, text: str) -> None:
        self.words = True
        if self._told is not None:
            self._told.on_text(text)

    def _withdraw(self) -> None:
        self.words = False
        if self._told is not None:
            self._told.on_withdrawn()
