"""The settings of tools: their timeouts, how much of their results is kept, when they have failed, which exist."""

from typing import Literal, Self

from pydantic import BaseModel, SecretStr, model_validator

from segue.domain.field_types import Bytes, CommaSeparated, DayCount, PositiveCount, Seconds, Url


class ToolSettings(BaseModel, frozen=True, defer_build=True):
    """How long tools may take, how much is kept of them, and when one has failed."""

    tool_timeout_s: Seconds = 30
    tool_result_ttl_days: DayCount = 30
    tool_result_preview_chars: PositiveCount = 500
    tool_result_inline_bytes: Bytes = 2000
    tool_result_max_bytes: Bytes = 10_000_000
    tool_result_session_bytes: Bytes = 200_000_000
    attachment_max_bytes: Bytes = 20_000_000
    attachment_user_bytes: Bytes = 1_000_000_000
    tool_failure_threshold: PositiveCount = 3  # after that many failures in a row a tool has failed
    tool_failure_duration_s: Seconds = 300  # it may be tried once that long after the last failure
    tool_fleet_threshold: PositiveCount = 3  # once it has failed in so many sessions within that time: for all
    disabled_tools: CommaSeparated = ()
    web_search_provider: Literal["ddgs", "searxng", "tavily", "none"] = "ddgs"
    searxng_url: Url | None = None
    tavily_api_key: SecretStr | None = None
    receipt_key: SecretStr | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.web_search_provider == "searxng" and not self.searxng_url:
            raise ValueError("WEB_SEARCH_PROVIDER=searxng needs SEARXNG_URL")
        if self.web_search_provider == "tavily" and not self.tavily_api_key:
            raise ValueError("WEB_SEARCH_PROVIDER=tavily needs TAVILY_API_KEY")
        if self.tool_result_session_bytes < self.tool_result_max_bytes:
            raise ValueError(
                f"TOOL_RESULT_SESSION_BYTES={self.tool_result_session_bytes} is less than one result may take "
                f"(TOOL_RESULT_MAX_BYTES={self.tool_result_max_bytes})"
            )
        return self

    @property
    def fresh_result_bytes(self) -> int:
        """Returns the bytes of a result that the model is shown in the turn that made it."""
        return self.tool_result_inline_bytes * 10
