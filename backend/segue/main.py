"""The composition root: `create_app` and `run_worker` put the parts of `factories` together. Knows everything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI
from langchain_core.language_models import BaseChatModel
from starlette.middleware.cors import CORSMiddleware

from segue import factories
from segue.api import (
    agents,
    attachments,
    chat,
    event_streams,
    health,
    mcp,
    me,
    ops,
    pages,
    plans,
    sessions,
    tools,
    user_admin,
)
from segue.api.access_control import Gate
from segue.api.attachments import MULTIPART_BYTES
from segue.api.deps import Services, State
from segue.api.doors import agui, openai_chat, openai_responses, vercel
from segue.api.middleware import BodyLimit, RequestContext, StartupErrors
from segue.api.pages import DescribedApp
from segue.api.problems import REQUEST_ID_HEADER, VERSION_HEADER, add_problem_handlers
from segue.api.prometheus import LoopLag, metrics_served, process_metrics
from segue.config import Settings
from segue.domain.agent import Agent
from segue.domain.ids import Clock
from segue.language.lexicon import use_folder
from segue.plans.policy import BeforeCall
from segue.turns.service import TurnService
from segue.turns.snapshot import Agents
from segue.version import VERSION

ROUTERS = (
    agents.router,
    sessions.router,
    chat.router,
    attachments.router,
    chat.turns_router,
    event_streams.router,
    event_streams.feed_router,
    plans.router,
    mcp.prompts_router,
    plans.approvals_router,
    tools.results_router,
    tools.router,
    tools.states_router,
    me.memories_router,
    sessions.feedback_router,
    me.usage_router,
    me.router,
    health.router,
    health.metrics_router,
    ops.router,
    health.doctor_router,
    mcp.router,
    mcp.logins_router,
    user_admin.keys_router,
    user_admin.router,
    agui.router,
    vercel.router,
    openai_chat.router,
    openai_responses.router,
)
# Made once: `include_router` would make every route, and the models of what it takes and gives, again for each app.
ROUTES = [route for router in ROUTERS for route in router.routes]


def create_app(
    settings: Settings,
    *,
    tools: Sequence[Callable[..., Awaitable[object]]] = (),
    agents: Mapping[str, Agent] | None = None,
    before_call: BeforeCall | None = None,
    model: BaseChatModel | None = None,
    clock: Clock | None = None,
    takes_turns: bool = True,
) -> FastAPI:
    """Returns the ASGI application. It opens its stores and runs turns while its lifespan lasts.

    `tools` are functions under `@tool`, `agents` are by id, beside those of AGENTS_CONFIG. `before_call`, `model` and
    `clock` replace the configured ones. With `takes_turns=False`, other processes run the turns: `segue worker` has
    tools of MCP servers and of entry points, and no agents but those of the file.
    Raises AppError if LANGUAGE_DIR cannot be used.
    """
    use_folder(settings.language_dir)
    extensions = factories.Extensions(tools, agents or {})
    if before_call is not None:
        settings = settings.model_copy(update={"before_call": before_call})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            services = await _start(stack, settings, extensions, model, clock, takes_turns=takes_turns)
            app.state.services = services
            yield State(services=services)

    app = DescribedApp(
        title="Segue",
        version=VERSION,
        summary="An agent that picks up where it left off.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        routes=[
            *ROUTES,
            *pages.docs_router.routes,
            *mcp.browser_router.routes,
            *(pages.router.routes if settings.console else ()),
        ],
    )
    _add_middleware(app, settings)
    add_problem_handlers(app)
    return app


async def run_worker(settings: Settings, stopped: asyncio.Event, started: Callable[[Agents], None]) -> None:
    """Runs turns that other processes accept, until `stopped` is set. Once it does, `started` gets its agents."""
    use_folder(settings.language_dir)
    async with AsyncExitStack() as stack:
        services = await _start(stack, settings, factories.Extensions(), None, None, takes_turns=True)
        if settings.worker_metrics_port is not None:
            served = metrics_served(services.metrics, settings.host, settings.worker_metrics_port)
            await stack.enter_async_context(served)
        started(services.agents)
        await stopped.wait()


def _add_middleware(app: FastAPI, settings: Settings) -> None:
    """The last one added is the first one that sees a request."""
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        max_door_bytes=settings.max_door_body_bytes,
        max_upload_bytes=settings.attachment_max_bytes + MULTIPART_BYTES,
    )
    app.add_middleware(
        Gate, hosts=settings.hosts, origins=settings.cors_origins, metrics_public=settings.metrics_public
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],  # those that are asked for
            expose_headers=[REQUEST_ID_HEADER, VERSION_HEADER, "X-Session-Id", "X-Turn-Id", "Retry-After"],
        )
    app.add_middleware(RequestContext)
    app.add_middleware(StartupErrors)


async def _start(
    stack: AsyncExitStack,
    settings: Settings,
    extensions: factories.Extensions,
    model: BaseChatModel | None,
    clock: Clock | None,
    *,
    takes_turns: bool,
) -> Services:
    """Starts the parts in order; the stack stops them in reverse order."""
    base = await factories.foundation(stack, settings, model, clock)
    stack.enter_context(LoopLag(base.metrics.observe))
    authenticator = await factories.authenticator(stack, base)
    in_force = await factories.limits_in_force(stack, base)
    books = factories.books(base, in_force)
    limiter = factories.limiter(base, books)
    long_term = await factories.long_term_memory(stack, base)
    tooling = await factories.tooling(stack, base, long_term, extensions)
    speakers = await factories.agents(base, tooling, extensions)
    jobs = await factories.jobs(stack, base, long_term, books)
    deps = factories.turn_deps(
        base, agents=speakers, tooling=tooling, long_term=long_term, jobs=jobs, limiter=limiter, books=books
    )
    service = await stack.enter_async_context(TurnService(deps, base.stores.redis, takes_turns=takes_turns))
    stores = base.stores
    base.metrics.add_process_state(
        lambda: process_metrics(service, stores.events, stores.database, stores.redis, tooling.mcp)
    )
    return Services(
        authenticator=authenticator,
        forwarded_user=factories.forwarded_user(base),
        limiter=limiter,
        limits=in_force,
        database=base.stores.database,
        cache=base.stores.cache,
        events=base.stores.events,
        feeds=base.stores.feeds,
        turns=service,
        agents=speakers,
        tools=tooling.availability,
        attachments=factories.attachments(base),
        planning=settings.planning,
        confirm=settings.confirm,
        confirm_words=settings.confirm_words,
        mcp=tooling.mcp,
        examine=factories.doctor(base, tooling).examine,
        clock=base.clock,
        long_term=long_term,
        memory_ttl_s=settings.short_term_memory_ttl,
        time_zone="" if settings.time_zone == "UTC" else settings.time_zone,
        metrics_public=settings.metrics_public,
        metrics=base.metrics,
        span=base.span,
    )
