"""The settings of how turns run in a process, and for how many days their rows are kept: 0 and None for ever."""

from segue.agent.agent_settings import AgentSettings
from segue.domain.field_types import CommaSeparated, KeptDays, PositiveCount, Seconds

LEASE_SHARE = 0.8  # the rest is for recovery to find the turn and to end it, within TURN_LEASE_S
SHUTDOWN_SHARE = 0.6  # for turns to end; the rest gives them back, answers requests and closes the stores


class TurnSettings(AgentSettings):
    turn_timeout_s: Seconds = 900
    turn_lease_s: Seconds = 30
    shutdown_grace_s: Seconds = 20
    worker_concurrency: PositiveCount = 64
    session_ttl_days: KeptDays | None = None
    turn_details_ttl_days: KeptDays = 0
    usage_ttl_days: KeptDays = 0
    audit_ttl_days: KeptDays = 400
    schedules_per_user: PositiveCount = 100
    schedule_groups: CommaSeparated = ()  # of those who may make schedules and triggers; all may without
    schedule_min_interval_s: Seconds = 300
    triggers_per_user: PositiveCount = 20
    trigger_events_per_minute: PositiveCount = 60

    @property
    def lease_s(self) -> float:
        return self.turn_lease_s * LEASE_SHARE

    @property
    def grace_s(self) -> float:
        """Returns how long turns have to end when the process stops."""
        return self.shutdown_grace_s * SHUTDOWN_SHARE
