"""The settings of users' limits. A user's own limits, in `limits.py`, take their place."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from segue.domain.field_types import JSON_OBJECT, OptionalLimit

DollarLimit = Annotated[Decimal, Field(ge=0)]


class UserSettings(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)

    limit_requests_per_minute: OptionalLimit = 0
    limit_turns_per_minute: OptionalLimit = 0
    limit_concurrent_turns: OptionalLimit = 0
    limit_tokens_per_day: OptionalLimit = 0
    limit_cost_per_day: DollarLimit = Decimal(0)
    limit_total_tokens_per_day: OptionalLimit = 0
    limit_total_cost_per_day: DollarLimit = Decimal(0)
    limit_groups: Annotated[Mapping[str, DollarLimit], JSON_OBJECT] = {}  # dollars a day

    @property
    def cost_cap(self) -> str | None:
        """Returns the name of the setting that caps what a day may cost, if one does."""
        if any(self.limit_groups.values()):
            return "LIMIT_GROUPS"
        names = ("limit_cost_per_day", "limit_total_cost_per_day")
        return next((name.upper() for name in names if getattr(self, name)), None)

    @property
    def is_capped(self) -> bool:
        return bool(self.limit_tokens_per_day or self.limit_total_tokens_per_day or self.cost_cap)
