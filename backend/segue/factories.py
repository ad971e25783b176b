"""The parts that `main` puts together, each made from the settings. Nothing else reads the settings into objects."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Protocol

import httpx2
import structlog
from langchain_core.language_models import BaseChatModel
from prometheus_client import start_http_server

from segue.agent.context import AgentLimits
from segue.agent.embeddings import OpenAIEmbedder, openai_embedder
from segue.agent.model import ChatModel
from segue.agent.provider import openai_model
from segue.config import Settings
from segue.db.engine import Database
from segue.domain.clock import Clock
from segue.domain.errors import AppError
from segue.domain.telemetry import Observe, OpenSpan
from segue.domain.tool import Tool
from segue.identity.api_keys import ApiKeys
from segue.identity.authenticator import Anonymous, Authenticator
from segue.identity.key_set import KeySet
from segue.identity.tokens import KeySource, OneKey, Tokens, verification_key
from segue.jobs.summaries import Summaries, SummaryDeps
from segue.mcp.servers import McpServers
from segue.memory.long_term import LongTermMemory
from segue.memory.recall import RecallLimits
from segue.memory.tokens import Count, counter_for
from segue.net.http_client import checked_client, tls_context
from segue.offline.model import OfflineModel
from segue.telemetry.gauges import ProcessStanding, RedisClient
from segue.telemetry.metrics import Metrics
from segue.tools.builtin.clock import current_time_tool
from segue.tools.builtin.get_tool_result import get_tool_result_tool
from segue.tools.builtin.memory import remember_tool, search_memory_tool
from segue.tools.builtin.web_fetch import web_fetch_tool
from segue.tools.builtin.web_search import web_search_tool
from segue.tools.health import HealthRules
from segue.tools.retention import Retention
from segue.tools.run import RunLimits
from segue.turns.deps import TurnDeps
from segue.turns.limits import UserLimits
from segue.turns.load_context import SnapshotLimits
from segue.turns.service import TurnService

OFFLINE = "offline"
FRESH_RESULT_FACTOR = 10

log = structlog.get_logger()


def health_rules(settings: Settings) -> HealthRules:
    return HealthRules(
        threshold=settings.tool_failure_threshold,
        failure_s=settings.tool_failure_duration_s,
        fleet_threshold=settings.tool_fleet_threshold,
    )


async def authenticator(stack: AsyncExitStack, settings: Settings, database: Database, clock: Clock) -> Authenticator:
    match settings.auth:
        case "none":
            return Anonymous()
        case "api_key":
            return ApiKeys(database, clock)
        case "jwt":
            keys = await _token_keys(stack, settings)
            return Tokens(keys, issuer=settings.jwt_issuer or "", audience=settings.jwt_audience or "")


async def _token_keys(stack: AsyncExitStack, settings: Settings) -> KeySource:
    if settings.jwt_key is not None:
        return OneKey(verification_key(settings.jwt_key.get_secret_value()))
    client = await stack.enter_async_context(httpx2.AsyncClient(verify=tls_context()))
    return await stack.enter_async_context(KeySet(settings.jwt_jwks_url or "", client))


def user_limits(settings: Settings) -> UserLimits:
    return UserLimits(
        requests_per_minute=settings.limit_requests_per_minute,
        turns_per_minute=settings.limit_turns_per_minute,
        concurrent_turns=settings.limit_concurrent_turns,
        tokens_per_day=settings.limit_tokens_per_day,
    )


def chat_model(settings: Settings, model: BaseChatModel | None, observe: Observe, span: OpenSpan) -> ChatModel:
    name = OFFLINE
    if model is not None:
        name = model.get_name()
    elif settings.model_configured:
        name = settings.llm_model
        model = openai_model(
            model=settings.llm_model,
            api_key=settings.openai_api_key,
            base_url=settings.openai_base_url,
            timeout_s=settings.llm_timeout_s,
        )
    return ChatModel(
        model or OfflineModel(),
        name=name,
        timeout_s=settings.llm_timeout_s,
        idle_s=settings.llm_idle_timeout_s,
        max_retries=settings.llm_max_retries,
        observe=observe,
        span=span,
    )


async def embedder(stack: AsyncExitStack, settings: Settings) -> OpenAIEmbedder | None:
    if settings.embedding_model is None:
        return None
    return await stack.enter_async_context(
        openai_embedder(
            model=settings.embedding_model, api_key=settings.openai_api_key, base_url=settings.openai_base_url
        )
    )


async def builtin_tools(
    stack: AsyncExitStack, settings: Settings, database: Database, long_term: LongTermMemory
) -> tuple[Tool, ...]:
    fresh_bytes = settings.tool_result_inline_bytes * FRESH_RESULT_FACTOR
    fetching = await stack.enter_async_context(checked_client())
    tools = [
        current_time_tool(),
        web_fetch_tool(client=fetching),
        get_tool_result_tool(database, shown_bytes=fresh_bytes),
        remember_tool(long_term.remember),
        search_memory_tool(long_term.search),
    ]
    if settings.web_search_provider != "none":
        searching = await stack.enter_async_context(httpx2.AsyncClient(verify=tls_context()))
        tools.append(
            web_search_tool(
                provider=settings.web_search_provider,
                client=searching,
                searxng_url=settings.searxng_url,
                tavily_api_key=settings.tavily_api_key,
            )
        )
    return tuple(tool for tool in tools if tool.spec.name not in settings.disabled_tools)


def agent_limits(settings: Settings) -> AgentLimits:
    return AgentLimits(
        run=RunLimits(timeout_s=settings.tool_timeout_s, max_result_bytes=settings.tool_result_max_bytes),
        retention=Retention(
            payload_ttl_days=settings.tool_result_ttl_days,
            preview_chars=settings.tool_result_preview_chars,
            session_bytes=settings.tool_result_session_bytes,
        ),
        memory_ttl_s=settings.short_term_memory_ttl,
        fresh_result_bytes=settings.tool_result_inline_bytes * FRESH_RESULT_FACTOR,
        planning=settings.planning,
        confirm=settings.confirm,
        plan_ttl_s=settings.plan_ttl_s,
    )


def snapshot_limits(settings: Settings, *, summarises: bool) -> SnapshotLimits:
    return SnapshotLimits(
        recall=RecallLimits(settings.history_limit, settings.context_token_budget, summarises=summarises),
        count=counter_for(settings.llm_model),
        memory_ttl_s=settings.short_term_memory_ttl,
        inline_bytes=settings.tool_result_inline_bytes,
        all_inline_bytes=settings.tool_result_inline_bytes * FRESH_RESULT_FACTOR,
    )


def rolling_summaries(settings: Settings, database: Database, model: ChatModel, count: Count) -> Summaries:
    return Summaries(
        SummaryDeps(
            database=database,
            model=model,
            count=count,
            max_tokens=settings.context_token_budget,
            lease_s=settings.llm_timeout_s + settings.turn_lease_s,
            look_s=settings.turn_lease_s / 4,
        )
    )


class MayBeLost(Protocol):
    """A client of Redis."""

    @property
    def degraded(self) -> bool: ...

    @property
    def outages(self) -> int: ...


def process_standing(
    deps: TurnDeps, turns: TurnService, mcp: McpServers, redis: Mapping[str, MayBeLost]
) -> ProcessStanding:
    watchers, streams = deps.events.followers
    in_use, pool_size = deps.database.connections
    return ProcessStanding(
        turns_running=turns.running,
        turn_places=turns.places,
        streams=streams,
        watchers=watchers,
        pool_size=pool_size,
        pool_in_use=in_use,
        redis={name: RedisClient(client.degraded, client.outages) for name, client in redis.items()},
        mcp_ready={server: state == "ready" for server, state in mcp.states().items()},
    )


def serve_metrics(stack: AsyncExitStack, settings: Settings, metrics: Metrics) -> None:
    """For a process without the API, on a thread of its own. Raises AppError where the port is taken."""
    if settings.worker_metrics_port is None:
        return
    try:
        server, thread = start_http_server(settings.worker_metrics_port, settings.host, metrics.registry)
    except OSError as error:
        raise AppError(
            "port_taken",
            status=500,
            title="The port cannot be used",
            detail=f"WORKER_METRICS_PORT={settings.worker_metrics_port} cannot be listened on: {error.strerror}.",
        ) from error

    async def stop() -> None:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()

    stack.push_async_callback(stop)
    log.info("metrics_served", url=f"http://{settings.host}:{server.server_port}/metrics")
