"""The composition root: the only file that knows everything. `create_app(settings)` wires, the lifespan lives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI
from langchain_core.language_models import BaseChatModel
from starlette.middleware.cors import CORSMiddleware

from segue import factories
from segue.agent.graph import build_graph
from segue.api import (
    chat,
    events,
    export,
    health,
    memories,
    metrics,
    plans,
    sessions,
    tool_results,
    tool_states,
    tools,
    turns,
)
from segue.api.deps import Services, State
from segue.api.gate import Gate
from segue.api.middleware import BodyLimit, PlainStart, RequestContext
from segue.api.problems import REQUEST_ID_HEADER, add_problem_handlers
from segue.config import Settings
from segue.db.engine import Database
from segue.db.migrations import upgrade
from segue.db.rates import Rates
from segue.db.redis import Cache, Streams
from segue.domain.clock import Clock, utc_now
from segue.embedded.urls import server_urls
from segue.events.log import EventLog
from segue.jobs.afterwards import Afterwards, AfterwardsDeps
from segue.log import never_tell
from segue.mcp.config import read_mcp_config
from segue.mcp.servers import McpServers
from segue.memory.long_term import LongTermMemory
from segue.telemetry.gauges import Standing
from segue.telemetry.metrics import Metrics
from segue.telemetry.tracing import tracing
from segue.tools.availability import ToolGuard
from segue.tools.catalog import ToolCatalog
from segue.tools.global_state import Fleet
from segue.turns.deps import TurnDeps, TurnLimits
from segue.turns.limits import Limiter
from segue.turns.maintenance import KeepLimits
from segue.turns.queries import outcomes_of
from segue.turns.service import TurnService

EXTRACTION_SHARE = 1.5  # of the model's deadline: what is around the call takes time too
LEASE_SHARE = 0.8  # what is left is for somebody to find the turn and to end it: no dead owner holds it for longer
SHUTDOWN_SHARE = 0.6  # for turns to end; what is left gives them back, answers whoever waits and closes the stores


def create_app(
    settings: Settings, *, model: BaseChatModel | None = None, clock: Clock = utc_now, takes_turns: bool = True
) -> FastAPI:
    """`model` and `clock` replace the configured ones; everything else comes from the settings.

    Without `takes_turns` the turns are left to other processes, `run_worker` or another app.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            services = await _start(stack, settings, model, clock, takes_turns=takes_turns)
            yield State(services=services)

    app = FastAPI(
        title="Segue",
        version="0.1.0",
        summary="An agent that picks up where it left off.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(
        Gate, hosts=settings.hosts, origins=settings.cors_origins, metrics_public=settings.metrics_public
    )
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
        metrics.router,
    ):
        app.include_router(router)
    return app


async def run_worker(settings: Settings, stopped: asyncio.Event, started: Callable[[], None]) -> None:
    """Runs the turns that other processes accept, until `stopped`."""
    async with AsyncExitStack() as stack:
        services = await _start(stack, settings, None, utc_now, takes_turns=True)
        factories.serve_metrics(stack, settings, services.metrics)
        started()
        await stopped.wait()


async def _start(
    stack: AsyncExitStack, settings: Settings, given: BaseChatModel | None, clock: Clock, *, takes_turns: bool
) -> Services:
    """Opens everything in order; the stack closes it in the reverse."""
    counted, span = Metrics(), await stack.enter_async_context(tracing(settings.otel_exporter_otlp_endpoint))
    model = factories.chat_model(settings, given, counted.observe, span)
    urls = await server_urls(stack, settings)
    if settings.migrate_on_start:
        await asyncio.to_thread(upgrade, urls.database)
    database = Database(urls.database)
    stack.push_async_callback(database.close)
    cache = Cache(urls.redis)
    stack.push_async_callback(cache.close)
    streams = Streams(urls.redis)
    stack.push_async_callback(streams.close)
    event_log = await stack.enter_async_context(EventLog(streams, partial(outcomes_of, database)))
    rates = Rates(urls.redis)
    stack.push_async_callback(rates.close)
    limiter = Limiter(factories.user_limits(settings), rates, cache, database, clock)
    authenticator = await factories.authenticator(stack, settings, database, clock)
    mcp_config = read_mcp_config(settings.mcp_config)
    never_tell(mcp_config.untold)
    mcp = await stack.enter_async_context(McpServers(mcp_config, timeout_s=settings.tool_timeout_s))
    long_term = LongTermMemory(database, await factories.embedder(stack, settings))
    catalog = ToolCatalog(await factories.builtin_tools(stack, settings, database, long_term), mcp.tools)
    rules = factories.health_rules(settings)
    fleet = Fleet(cache, rules, counted.observe)
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
    snapshot = await asyncio.to_thread(factories.snapshot_limits, settings, summarises=model.name != factories.OFFLINE)
    summaries = factories.rolling_summaries(settings, database, model, snapshot.count)
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
        agent_limits=factories.agent_limits(settings),
        limits=TurnLimits(
            timeout_s=settings.turn_timeout_s,
            lease_s=settings.turn_lease_s * LEASE_SHARE,
            grace_s=settings.shutdown_grace_s * SHUTDOWN_SHARE,
            snapshot=snapshot,
            kept=KeepLimits(session_days=settings.session_ttl_days, change_days=settings.tool_result_ttl_days),
            concurrency=settings.worker_concurrency,
        ),
        observe=counted.observe,
        span=span,
    )
    service = await stack.enter_async_context(TurnService(deps, urls.redis, takes_turns=takes_turns))
    redis: dict[str, factories.MayBeLost] = {"cache": cache, "streams": streams, "rates": rates, "queue": service.queue}
    counted.add(Standing(partial(factories.process_standing, deps, service, mcp, redis)))
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
        metrics=counted,
        span=span,
    )
