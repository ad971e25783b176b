"""What is run: `create_app` makes the service, `run_worker` takes turns without HTTP. `factories.py` has the parts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI
from langchain_core.language_models import BaseChatModel
from starlette.middleware.cors import CORSMiddleware

from segue import __version__
from segue.api import (
    agents,
    approve,
    attachments,
    chat,
    event_streams,
    health,
    mcp,
    me,
    ops,
    pages,
    plans,
    schedules,
    sessions,
    tools,
    user_admin,
)
from segue.api.deps import Services, State
from segue.api.doors import agui, langgraph, openai_chat, openai_responses, vercel
from segue.api.metrics import metrics_served
from segue.api.middleware import BodyLimit, Gate, RequestContext, StartupErrors
from segue.api.problems import REQUEST_ID_HEADER, VERSION_HEADER, add_problem_handlers
from segue.config import Settings
from segue.domain.agent import Agent
from segue.domain.ids import Clock
from segue.factories import start
from segue.language.lexicon import use_folder
from segue.models.reply import ProviderModel
from segue.plans.policy import BeforeCall

# In the order of the pages about them.
SESSIONS = (agents.router, sessions.router, chat.router, attachments.router, chat.turns_router)
EVENTS = (event_streams.router, event_streams.feed_router)
PLANS = (plans.router, mcp.prompts_router, plans.approvals_router, plans.mandates_router, plans.grants_router)
BY_THEMSELVES = (schedules.router, schedules.triggers_router, schedules.hooks_router)
TOOLS = (tools.results_router, tools.receipts_router, tools.router, tools.states_router)
USERS = (me.memories_router, sessions.feedback_router, me.usage_router, me.router)
OPS = (health.router, health.metrics_router, ops.router, health.doctor_router, mcp.router, mcp.logins_router)
KEYS = (user_admin.keys_router, user_admin.router)
DOORS = (agui.router, vercel.router, openai_chat.router, openai_responses.router, langgraph.router)
ROUTERS = (*SESSIONS, *EVENTS, *PLANS, *BY_THEMSELVES, *TOOLS, *USERS, *OPS, *KEYS, *DOORS)
EXPOSED_HEADERS = ("X-Session-Id", "X-Turn-Id", "Retry-After", "X-Should-Retry", "Content-Location", "Location")
# Made once: `include_router` would make every route, and the models of what it takes and gives, again for each app.
ROUTES = [route for router in ROUTERS for route in router.routes]


def create_app(
    settings: Settings,
    *,
    tools: Sequence[Callable[..., Awaitable[object]]] = (),
    agents: Mapping[str, Agent] | None = None,
    before_call: BeforeCall | None = None,
    model: BaseChatModel | ProviderModel | None = None,
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
    if before_call is not None:
        settings = settings.model_copy(update={"before_call": before_call})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            services = await start(
                stack, settings, tools=tools, agents=agents or {}, model=model, clock=clock, takes_turns=takes_turns
            )
            app.state.services = services
            yield State(services=services)

    routes = [*ROUTES, *pages.docs_router.routes, *mcp.browser_router.routes, *approve.router.routes]
    routes += pages.router.routes if settings.console else ()
    app = pages.DescribedApp(
        title="Segue",
        version=__version__,
        summary="An agent that picks up where it left off.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        routes=routes,
    )
    _add_middleware(app, settings)
    add_problem_handlers(app)
    return app


async def run_worker(settings: Settings, stop: asyncio.Event, started: Callable[[Services], Awaitable[None]]) -> None:
    """Runs turns that other processes accept, until `stop` is set. `started` is given its parts once it runs them."""
    use_folder(settings.language_dir)
    async with AsyncExitStack() as stack:
        services = await start(stack, settings)
        if settings.worker_metrics_port is not None:
            served = metrics_served(services.metrics, settings.host, settings.worker_metrics_port)
            await stack.enter_async_context(served)
        await started(services)
        await stop.wait()


def _add_middleware(app: FastAPI, settings: Settings) -> None:
    """The last one added is the first one that sees a request."""
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        max_door_bytes=settings.max_door_body_bytes,
        max_upload_bytes=settings.attachment_max_bytes + attachments.MULTIPART_BYTES,
    )
    app.add_middleware(Gate, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],  # those that are asked for
            expose_headers=[REQUEST_ID_HEADER, VERSION_HEADER, *EXPOSED_HEADERS],
        )
    app.add_middleware(RequestContext)
    app.add_middleware(StartupErrors)
