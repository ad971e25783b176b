"""The model as one turn uses it: all its calls share one account, and one budget of calls, tokens and retries."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from langchain_core.messages import BaseMessage

from segue.domain.errors import AppError, app_error
from segue.domain.telemetry import MAX_CALLS, ModelRun
from segue.domain.tool import ToolSpec
from segue.models.chat_model import ChatModel, ReplyOptions, Retries
from segue.models.refusals import outcome_of
from segue.models.reply import Reply
from segue.models.streamed_answer import Listener
from segue.users.usage import Account

# What one turn may ask of its models, all its calls together.
MAX_TURN_TOKENS = 1_000_000
MAX_TURN_RETRIES = 6
RESERVED_CALLS = 2
RESERVED_TOKENS = 200_000  # a round's calls may bring long results before the last answer


@dataclass(frozen=True, slots=True)
class Models:
    """`main` answers. `small` plans, reads replies to plans, summarises and extracts facts; it may be the same."""

    main: ChatModel
    small: ChatModel


class MeteredModel:
    """Bounds a turn's use of its models, and charges it to `account`. `seconds` is the time spent waiting. `name` is
    that of the model that answered last, the small one aside.
    """

    waits_for: tuple[str, float] | None = None  # the model that is asked now, and since when (`time.monotonic`)
    last_request: tuple[Sequence[BaseMessage], Sequence[ToolSpec]] | None = None  # what was asked last
    finish_reason: str = ""  # why the model called `name` ended its answer

    def __init__(self, models: Models, max_calls: int, account: Account) -> None:
        self.account = account
        self._models = models
        self._max_calls = max_calls
        self._retries = Retries(MAX_TURN_RETRIES)
        self.name = models.main.name
        self.small_name = models.small.name
        self.llm_calls = 0
        self.seconds = 0.0
        self.began = time.monotonic()
        self.calls: list[ModelRun] = []

    @property
    def retried(self) -> int:
        return MAX_TURN_RETRIES - self._retries.left

    @property
    def nearly_spent(self) -> bool:
        """Whether only enough is left for a last answer."""
        left = MAX_TURN_TOKENS - self.account.total.tokens
        largest = max((call.input_tokens + call.output_tokens for call in self.calls), default=0)
        return self.llm_calls >= self._max_calls - RESERVED_CALLS or left <= max(RESERVED_TOKENS, 2 * largest)

    async def reply(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        listener: Listener | None = None,
        small: bool = False,
        **options: Unpack[ReplyOptions],
    ) -> Reply:
        """Returns a model's reply. Raises `turn_budget_spent` (502) beside what `ChatModel.reply` raises."""
        if self.llm_calls >= self._max_calls or self.account.total.tokens >= MAX_TURN_TOKENS:
            raise app_error("turn_budget_spent")
        self.llm_calls += 1
        self.last_request = tuple(messages), tools
        model = self._models.small if small else self._models.main
        call = _Call(self, model.name)
        self.waits_for = model.name, call.started
        timed, retries = listener and call.timing(listener), self._retries
        try:
            reply = await model.reply(messages, tools, retries=retries, listener=timed, account=self.account, **options)
            call.outcome, call.model = "answered", reply.model
        except AppError as error:
            call.outcome = outcome_of(error)
            raise
        except asyncio.CancelledError:
            call.outcome = "cancelled"
            raise
        finally:
            self.waits_for = None
            self.seconds += time.monotonic() - call.started
            if len(self.calls) < MAX_CALLS:
                self.calls.append(call.ended(self))
        if not small:
            self.name, self.finish_reason = reply.model, reply.finish_reason
        return reply


class _Call:
    """One call while it runs. A turn makes one at a time, so what its account grows by is what the call took."""

    def __init__(self, turn: MeteredModel, model: str) -> None:
        self.started = time.monotonic()
        self.model = model
        self.outcome = "internal_error"
        self._before = turn.account.total
        self._retried = turn.retried
        self._first_token_s: float | None = None

    def timing(self, listener: Listener) -> Listener:
        def noting(tell: Callable[[str], None]) -> Callable[[str], None]:
            def told(text: str) -> None:
                self._first_token_s = self._first_token_s or time.monotonic() - self.started
                tell(text)

            return told

        return replace(listener, on_text=noting(listener.on_text), on_reasoning=noting(listener.on_reasoning))

    def ended(self, turn: MeteredModel) -> ModelRun:
        now, before = turn.account.total, self._before
        return ModelRun(
            model=self.model,
            at_ms=round((self.started - turn.began) * 1000),
            duration_ms=round((time.monotonic() - self.started) * 1000),
            first_token_ms=None if self._first_token_s is None else round(self._first_token_s * 1000),
            retries=turn.retried - self._retried,
            outcome=self.outcome,
            input_tokens=now.input_tokens - before.input_tokens,
            cached_tokens=now.cached_tokens - before.cached_tokens,
            output_tokens=now.output_tokens - before.output_tokens,
            cost=None if now.cost is None or before.cost is None else float(now.cost - before.cost),
        )
