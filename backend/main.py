"""The composition root: the only file that knows everything. `create_app(settings)` wires, the lifespan lives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import httpx
from fastapi import FastAPI
from langchain_core.language_models import BaseChatModel
from starlette.middleware.cors import CORSMiddleware

from backend.agent.context import AgentLimits, Clock
from backend.agent.embeddings import OpenAIEmbedder, openai_embedder
from backend.agent.graph import build_graph
from backend.agent.model import ChatModel, openai_model
from backend.agent.offline import OfflineModel
from backend.api import (
    chat,
    events,
    export,
    health,
    memories,
    plans,
    sessions,
    tool_results,
    tool_states,
    tools,
    turns,
)
from backend.api.deps import Services, State
from backend.api.gate import Gate
from backend.api.middleware import BodyLimit, PlainStart, RequestContext
from backend.api.problems import REQUEST_ID_HEADER, add_problem_handlers
from backend.config import Settings
from backend.db.engine import Database
from backend.db.migrations import upgrade
from backend.db.rates import Rates
from backend.db.redis import Cache, Streams
from backend.domain.tool import Tool
from backend.identity.authenticator import Anonymous, Authenticator
from backend.identity.key_set import KeySet
from backend.identity.keys import ApiKeys
from backend.identity.tokens import KeySource, OneKey, Tokens, verification_key
from backend.memory.long_term import LongTermMemory
from backend.memory.recall import RecallLimits
from backend.memory.tokens import Count, counter_for
from backend.tools.builtin.clock import current_time_tool
from backend.tools.builtin.get_tool_result import get_tool_result_tool
from backend.tools.builtin.memory import remember_tool, search_memory_tool
from backend.tools.builtin.public_http import public_client
from backend.tools.builtin.web_fetch import web_fetch_tool
from backend.tools.builtin.web_search import web_search_tool
from backend.tools.catalog import ToolCatalog
from backend.tools.fleet import Fleet
from backend.tools.guard import ToolGuard
from backend.tools.health import HealthRules
from backend.tools.mcp.config import read_mcp_config
from backend.tools.mcp.servers import McpServers
from backend.tools.retention import Retention
from backend.tools.run import RunLimits
from backend.turn.afterwards import Afterwards, AfterwardsDeps
from backend.turn.events import EventLog
from backend.turn.limiter import Limiter, UserLimits
from backend.turn.retention import KeepLimits
from backend.turn.service import TurnService
from backend.turn.snapshot import SnapshotLimits
from backend.turn.summaries import Summaries, SummaryDeps
from backend.turn.worker import TurnDeps, TurnLimits

OFFLINE = "offline"
FRESH_RESULT_FACTOR = 10
EXTRACTION_SHARE = 1.5  # of the model's deadline: what is around the call takes time too
SHUTDOWN_SHARE = 0.6  # for turns to end; what is left gives them back, answers whoever waits and closes the stores


@dataclass(frozen=True, slots=True)
class ServerUrls:
    database: str
    redis: str


def utc_now() -> datetime:
    return datetime.now(UTC)


def create_app(
    settings: Settings, *, model: BaseChatModel | None = None, clock: Clock = utc_now, takes_turns: bool = True
) -> FastAPI:
    """`model` and `clock` replace the configured ones; everything else comes from the settings.

    Without `takes_turns` the turns are left to other processes, `run_worker` or another app.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            services = await _start(stack, settings, _chat_model(settings, model), clock, takes_turns=takes_turns)
            yield State(services=services)

    app = FastAPI(
        title="Segue",
        version="0.1.0",
        summary="An agent that picks up where it left off.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(Gate, hosts=settings.hosts, metrics_public=settings.metrics_public)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, "Retry-After"],
        )
    app.add_middleware(RequestContext)
    app.add_middleware(PlainStart)
    add_problem_handlers(app)
    for router in (
        sessions.router,
        export.router,
        chat.router,
        turns.router,
        events.router,
        plans.router,
        tool_results.router,
        tools.router,
        tool_states.router,
        memories.router,
        health.router,
    ):
        app.include_router(router)
    return app


async def run_worker(settings: Settings, stopped: asyncio.Event, started: Callable[[], None]) -> None:
    """Runs the turns that other processes accept, until `stopped`."""
    async with AsyncExitStack() as stack:
        await _start(stack, settings, _chat_model(settings, None), utc_now, takes_turns=True)
        started()
        await stopped.wait()


async def _start(
    stack: AsyncExitStack, settings: Settings, model: ChatModel, clock: Clock, *, takes_turns: bool
) -> Services:
    """Opens everything in order; the stack closes it in the reverse."""
    urls = await server_urls(stack, settings)
    if settings.migrate_on_start:
        await asyncio.to_thread(upgrade, urls.database)
    database = Database(urls.database)
    stack.push_async_callback(database.close)
    cache = Cache(urls.redis)
    stack.push_async_callback(cache.close)
    streams = Streams(urls.redis)
    stack.push_async_callback(streams.close)
    event_log = await stack.enter_async_context(EventLog(streams, database))
    rates = Rates(urls.redis)
    stack.push_async_callback(rates.close)
    limiter = Limiter(_user_limits(settings), rates, cache, database, clock)
    authenticator = await _authenticator(stack, settings, database, clock)
    mcp = await stack.enter_async_context(
        McpServers(read_mcp_config(settings.mcp_config), timeout_s=settings.tool_timeout_s)
    )
    long_term = LongTermMemory(database, await _embedder(stack, settings))
    catalog = ToolCatalog(await _builtin_tools(stack, settings, database, long_term), mcp.tools)
    rules = HealthRules(
        threshold=settings.tool_failure_threshold,
        failure_s=settings.tool_failure_duration_s,
        fleet_threshold=settings.tool_fleet_threshold,
    )
    fleet = Fleet(cache, rules)
    afterwards = await stack.enter_async_context(
        Afterwards(
            AfterwardsDeps(
                database=database,
                model=model,
                long_term=long_term,
                clock=clock,
                lease_s=settings.llm_timeout_s * EXTRACTION_SHARE,
                look_s=settings.turn_lease_s / 4,
            )
        )
    )
    snapshot = await asyncio.to_thread(_snapshot_limits, settings, summarises=model.name != OFFLINE)
    summaries = _summaries(settings, database, model, snapshot.count)
    if snapshot.recall.summarises:
        await stack.enter_async_context(summaries)
    deps = TurnDeps(
        database=database,
        cache=cache,
        events=event_log,
        graph=build_graph(),
        model=model,
        new_guard=partial(ToolGuard, catalog, database, fleet, rules, clock, timeout_s=settings.tool_timeout_s),
        limiter=limiter,
        clock=clock,
        long_term=long_term,
        afterwards=afterwards,
        summaries=summaries,
        agent_limits=_agent_limits(settings),
        limits=TurnLimits(
            timeout_s=settings.turn_timeout_s,
            lease_s=settings.turn_lease_s,
            grace_s=settings.shutdown_grace_s * SHUTDOWN_SHARE,
            snapshot=snapshot,
            kept=KeepLimits(session_days=settings.session_ttl_days, change_days=settings.tool_result_ttl_days),
            concurrency=settings.worker_concurrency,
        ),
    )
    service = await stack.enter_async_context(TurnService(deps, urls.redis, takes_turns=takes_turns))
    return Services(
        authenticator=authenticator,
        limiter=limiter,
        database=database,
        cache=cache,
        events=event_log,
        turns=service,
        tools=catalog,
        fleet=fleet,
        health_rules=rules,
        planning=settings.planning,
        confirm=settings.confirm,
        mcp=mcp,
        clock=clock,
        long_term=long_term,
        memory_ttl_s=settings.short_term_memory_ttl,
        metrics_public=settings.metrics_public,
    )


async def server_urls(stack: AsyncExitStack, settings: Settings) -> ServerUrls:
    """The servers that are configured, or embedded ones for as long as the stack is open."""
    database, redis = settings.database_url, settings.redis_url
    if database is not None and redis is not None:
        return ServerUrls(database.get_secret_value(), redis.get_secret_value())
    from backend.embedded import embedded_servers  # noqa: PLC0415 (not even imported where URLs are given)

    entered = embedded_servers(settings.data_dir)
    servers = await asyncio.to_thread(entered.__enter__)
    stack.push_async_callback(asyncio.to_thread, entered.__exit__, None, None, None)
    return ServerUrls(
        database.get_secret_value() if database else servers.database_url,
        redis.get_secret_value() if redis else servers.redis_url,
    )


async def _authenticator(stack: AsyncExitStack, settings: Settings, database: Database, clock: Clock) -> Authenticator:
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
    client = await stack.enter_async_context(httpx.AsyncClient())
    return await stack.enter_async_context(KeySet(settings.jwt_jwks_url or "", client))


def _user_limits(settings: Settings) -> UserLimits:
    return UserLimits(
        requests_per_minute=settings.limit_requests_per_minute,
        turns_per_minute=settings.limit_turns_per_minute,
        concurrent_turns=settings.limit_concurrent_turns,
        tokens_per_day=settings.limit_tokens_per_day,
    )


def _chat_model(settings: Settings, model: BaseChatModel | None) -> ChatModel:
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
    )


async def _embedder(stack: AsyncExitStack, settings: Settings) -> OpenAIEmbedder | None:
    if settings.embedding_model is None:
        return None
    return await stack.enter_async_context(
        openai_embedder(
            model=settings.embedding_model, api_key=settings.openai_api_key, base_url=settings.openai_base_url
        )
    )


async def _builtin_tools(
    stack: AsyncExitStack, settings: Settings, database: Database, long_term: LongTermMemory
) -> tuple[Tool, ...]:
    fresh_bytes = settings.tool_result_inline_bytes * FRESH_RESULT_FACTOR
    fetching = await stack.enter_async_context(public_client())
    tools = [
        current_time_tool(),
        web_fetch_tool(client=fetching),
        get_tool_result_tool(database, shown_bytes=fresh_bytes),
        remember_tool(long_term.remember),
        search_memory_tool(long_term.search),
    ]
    if settings.web_search_provider != "none":
        searching = await stack.enter_async_context(httpx.AsyncClient())
        tools.append(
            web_search_tool(
                provider=settings.web_search_provider,
                client=searching,
                searxng_url=settings.searxng_url,
                tavily_api_key=settings.tavily_api_key,
            )
        )
    return tuple(tool for tool in tools if tool.spec.name not in settings.disabled_tools)


def _agent_limits(settings: Settings) -> AgentLimits:
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


def _snapshot_limits(settings: Settings, *, summarises: bool) -> SnapshotLimits:
    return SnapshotLimits(
        recall=RecallLimits(settings.history_limit, settings.context_token_budget, summarises=summarises),
        count=counter_for(settings.llm_model),
        memory_ttl_s=settings.short_term_memory_ttl,
        inline_bytes=settings.tool_result_inline_bytes,
        all_inline_bytes=settings.tool_result_inline_bytes * FRESH_RESULT_FACTOR,
    )


def _summaries(settings: Settings, database: Database, model: ChatModel, count: Count) -> Summaries:
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
