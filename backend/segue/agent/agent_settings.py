"""The settings of a turn's run: those of LIMITS may be an agent's own. `before_call` is the operator's policy."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field, ImportString

from segue.domain.agent import ParallelCalls, Rounds, ToolCalls
from segue.domain.field_types import PositiveCount
from segue.domain.plan import Confirm, ConfirmWords, Planning
from segue.tools.tool_settings import ToolSettings


class AgentSettings(ToolSettings):
    planning: Planning = "auto"
    confirm: Confirm = "destructive"
    confirm_words: ConfirmWords = "shown"
    before_call: ImportString[Callable[..., object]] | None = None
    plan_ttl_s: PositiveCount = 86_400
    max_rounds: Rounds = 50
    max_tool_calls: ToolCalls = 100
    max_parallel_calls: ParallelCalls = 8
    llm_max_tools: Annotated[int, Field(ge=16, le=128)] = 40
    show_reasoning: bool = False
    history_limit: PositiveCount = 80
    context_token_budget: Annotated[int, Field(ge=1000)] = 24_000
    fact_token_budget: PositiveCount = 1500
    summary_token_limit: Annotated[int, Field(ge=500, le=10_000)] = 2000
    short_term_memory_ttl: PositiveCount = 3600

    @property
    def most_summary_tokens(self) -> int:
        """Returns what a summary may take, at most a quarter of a request."""
        return min(self.summary_token_limit, self.context_token_budget // 4)
