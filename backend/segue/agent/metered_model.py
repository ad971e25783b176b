"""The model as one turn uses it: all its calls share one budget of calls, tokens and retries."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from segue.agent.model import ChatModel, Retries
from segue.agent.model_errors import budget_spent
from segue.agent.reply import Reply
from segue.agent.streamed_answer import Listener
from segue.domain.tool import ToolSpec

RESERVED_CALLS = 2


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """What one turn may ask of the model, all its calls together."""

    max_calls: int = 40
    max_tokens: int = 1_000_000
    max_retries: int = 6


class MeteredModel:
    """Counts and bounds what a turn's calls of the model cost. `seconds` is the time spent waiting."""

    def __init__(self, model: ChatModel, budget: ModelBudget) -> None:
        self._model = model
        self._budget = budget
        self._retries = Retries(budget.max_retries)
        self.name = model.name
        self.llm_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.seconds = 0.0

    @property
    def retried(self) -> int:
        return self._budget.max_retries - self._retries.left

    @property
    def nearly_spent(self) -> bool:
        """Whether only enough is left for a last answer."""
        budget, tokens = self._budget, self.input_tokens + self.output_tokens
        return self.llm_calls >= budget.max_calls - RESERVED_CALLS or tokens >= budget.max_tokens // 2

    async def reply(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        must_call: bool = False,
        listener: Listener | None = None,
    ) -> Reply:
        """Returns what `ChatModel.reply` does. Raises AppError `turn_budget_spent` (502) beside what that raises."""
        tokens = self.input_tokens + self.output_tokens
        if self.llm_calls >= self._budget.max_calls or tokens >= self._budget.max_tokens:
            raise budget_spent()
        self.llm_calls += 1
        started = time.monotonic()
        try:
            reply = await self._model.reply(
                messages, tools, must_call=must_call, retries=self._retries, listener=listener
            )
        finally:
            self.seconds += time.monotonic() - started
        self.input_tokens += reply.input_tokens
        self.output_tokens += reply.output_tokens
        return reply
