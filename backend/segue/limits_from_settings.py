"""The limits of each subsystem, from the settings: numbers only. Knows no part and makes none."""

import sys

from segue.agent.context import AgentLimits
from segue.agent.tool_choice import FIND_TOOLS, ChoiceLimits, ToolTokens
from segue.config import Settings
from segue.domain.agent import LIMITS, provider_and_id
from segue.memory.history_window import CountTokens, WindowLimits, counter_for
from segue.tools.attachment_store import AttachmentLimits
from segue.tools.retention import Retention
from segue.tools.run import RunLimits
from segue.tools.tool_health import HealthRules
from segue.turns.snapshot import ContextLimits
from segue.turns.turn_deps import KeepLimits, TurnLimits
from segue.users.user_limits import Limits

FRESH_RESULT_FACTOR = 10
LEASE_SHARE = 0.8  # the rest is for recovery to find the turn and to end it, within TURN_LEASE_S
SHUTDOWN_SHARE = 0.6  # for turns to end; the rest gives them back, answers requests and closes the stores


def user_limits(settings: Settings) -> Limits:
    return Limits(
        requests_per_minute=settings.limit_requests_per_minute,
        turns_per_minute=settings.limit_turns_per_minute,
        concurrent_turns=settings.limit_concurrent_turns,
        tokens_per_day=settings.limit_tokens_per_day,
        cost_per_day=settings.limit_cost_per_day,
    )


def total_limits(settings: Settings) -> Limits:
    """Of all users together."""
    return Limits(tokens_per_day=settings.limit_total_tokens_per_day, cost_per_day=settings.limit_total_cost_per_day)


def attachment_limits(settings: Settings) -> AttachmentLimits:
    return AttachmentLimits(
        max_bytes=settings.attachment_max_bytes,
        user_bytes=settings.attachment_user_bytes,
        text_bytes=settings.tool_result_max_bytes,
    )


def health_rules(settings: Settings) -> HealthRules:
    return HealthRules(
        threshold=settings.tool_failure_threshold,
        failure_s=settings.tool_failure_duration_s,
        fleet_threshold=settings.tool_fleet_threshold,
    )


def fresh_result_bytes(settings: Settings) -> int:
    """What the model sees of a result in the turn that made it."""
    return settings.tool_result_inline_bytes * FRESH_RESULT_FACTOR


def agent_limits(settings: Settings) -> AgentLimits:
    return AgentLimits(
        run=RunLimits(timeout_s=settings.tool_timeout_s, max_result_bytes=settings.tool_result_max_bytes),
        retention=Retention(
            payload_ttl_days=settings.tool_result_ttl_days,
            preview_chars=settings.tool_result_preview_chars,
            session_bytes=settings.tool_result_session_bytes,
        ),
        memory_ttl_s=settings.short_term_memory_ttl,
        fresh_result_bytes=fresh_result_bytes(settings),
        before_call=settings.before_call,
        plan_ttl_s=settings.plan_ttl_s,
        show_reasoning=settings.show_reasoning,
        **{name: getattr(settings, name) for name in LIMITS},
    )


def context_limits(settings: Settings, *, summarises: bool) -> ContextLimits:
    """Blocks while it reads the token table of the model."""
    return ContextLimits(
        recall=WindowLimits(settings.history_limit, settings.context_token_budget, summarises=summarises),
        count=counter_for(provider_and_id(settings.llm_model)[1]),
        memory_ttl_s=settings.short_term_memory_ttl,
        inline_bytes=settings.tool_result_inline_bytes,
        turn_inline_bytes=fresh_result_bytes(settings),
    )


def choice_limits(settings: Settings, count: CountTokens, *, offline: bool) -> ChoiceLimits:
    if offline:  # that model reads all tools there are, at no cost
        return ChoiceLimits(sys.maxsize, settings.context_token_budget, size=lambda _: 0)
    finds = FIND_TOOLS.name not in settings.disabled_tools
    return ChoiceLimits(settings.llm_max_tools, settings.context_token_budget, size=ToolTokens(count), finds=finds)


def turn_limits(settings: Settings, context: ContextLimits, choice: ChoiceLimits) -> TurnLimits:
    return TurnLimits(
        timeout_s=settings.turn_timeout_s,
        lease_s=settings.turn_lease_s * LEASE_SHARE,
        grace_s=settings.shutdown_grace_s * SHUTDOWN_SHARE,
        context=context,
        choice=choice,
        kept=KeepLimits(
            session_days=settings.session_ttl_days,
            change_days=settings.tool_result_ttl_days,
            audit_days=settings.audit_ttl_days,
            usage_days=settings.usage_ttl_days,
            turn_detail_days=settings.turn_details_ttl_days,
        ),
        concurrency=settings.worker_concurrency,
    )
