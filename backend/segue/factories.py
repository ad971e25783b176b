"""The parts of the service by subsystem, each made from the settings. The stack that a part is given closes it again.

Settings become objects here; models and tools in `models_from_settings.py` and `tools_from_settings.py`. A library that
costs much time to import and that only some settings need is imported in the function that makes its part.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import structlog
from langchain_core.language_models import BaseChatModel

from segue import limits_from_settings as limits
from segue.agent.graph import build_graph
from segue.agent.tool_choice import ToolSearch
from segue.agents_config import declared_agents
from segue.api.prometheus import Metrics
from segue.around.doctor.examine import Doctor
from segue.around.embedded.server_urls import server_urls
from segue.around.store_clients import OpenStores
from segue.around.tracing import tracing
from segue.config import Settings
from segue.db.engine import Database
from segue.db.redis import Cache, Rates, Streams
from segue.db.redis_server import RedisServer
from segue.db.server import StoreClock, is_newest
from segue.domain.agent import LIMITS, OFFLINE, Agent
from segue.domain.errors import AppError
from segue.domain.ids import Clock
from segue.domain.session import Memory
from segue.domain.telemetry import GlobalToolStateChanged, Observation, Observe, OpenSpan, TurnEnded
from segue.events.event_log import EventLog
from segue.events.outbox import Outbox
from segue.events.user_feed import UserFeeds, fact_noted
from segue.mcp.mcp_servers import McpServers
from segue.mcp_file import McpFile
from segue.memory.history_window import LEAST_LISTED, estimate
from segue.memory.long_term import LongTermMemory
from segue.memory.summary import DueSummary, DueTitle
from segue.models.metered_model import Models
from segue.models_from_settings import ChatModels, provider_options
from segue.net.addresses import allowed_for_operator
from segue.net.http_client import checked_client, tls_context
from segue.secret_files import SecretFiles
from segue.tools.attachment_store import Attachments
from segue.tools.availability import ToolAvailability
from segue.tools.catalog import DefinitionNotes, ToolCatalog
from segue.tools.native import native_tools
from segue.tools_from_settings import builtin_tools, tool_availability
from segue.turns.admission import Limiter
from segue.turns.jobs.learn_facts import DueExtraction, FactExtraction, FactUpkeep
from segue.turns.jobs.leased_loop import JobLoop
from segue.turns.jobs.summarize import Summaries, Titles
from segue.turns.jobs.webhooks import TIMEOUT_S, Webhooks
from segue.turns.queries import outcomes_of
from segue.turns.snapshot import Agents, ContextLimits, Speaker
from segue.turns.turn_deps import TurnDeps
from segue.users.account import Books
from segue.users.api_keys import Anonymous, ApiKeys, Authenticator
from segue.users.user_limits import LimitsInForce

EXTRACTION_SHARE = 1.5  # of the model's deadline: what is around the call takes time too


if TYPE_CHECKING:
    from segue.mcp.oauth.login_tokens import Servers
    from segue.mcp.oauth.personal_server import PersonalServers

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stores(OpenStores):
    """The clients of PostgreSQL and Redis, and the event log, which uses both."""

    redis: RedisServer
    events: EventLog
    feeds: UserFeeds


@dataclass(frozen=True, slots=True)
class Extensions:
    """What the program that embeds the service adds to it: functions under `@tool`, and agents by id."""

    tools: Sequence[object] = ()
    agents: Mapping[str, Agent] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Foundation:
    """What every other part is made from. `models` are those of the settings. `observe` is for what may be an event of
    the webhook, which it wakes.
    """

    settings: Settings
    clock: Clock
    metrics: Metrics
    span: OpenSpan
    chat_models: ChatModels
    models: Models
    stores: Stores
    observe: Observe


@dataclass(frozen=True, slots=True)
class Tooling:
    """`mcp` are the MCP servers; `may_exist` says whether there is a tool of a name or a
    server that has not connected yet may bring it.
    """

    availability: ToolAvailability
    search: ToolSearch
    mcp: McpServers
    may_exist: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Jobs:
    """What works after a turn, and the limits of the context, which depend on whether summaries are written."""

    fact_extraction: JobLoop[DueExtraction]
    fact_upkeep: FactUpkeep
    summaries: JobLoop[DueSummary]
    titles: JobLoop[DueTitle] | None
    context: ContextLimits


async def foundation(
    stack: AsyncExitStack, settings: Settings, model: BaseChatModel | None, clock: Clock | None
) -> Foundation:
    """Without a clock, the time is PostgreSQL's."""
    span = await stack.enter_async_context(
        tracing(settings.otel_exporter_otlp_endpoint, content=settings.otel_capture_content)
    )
    metrics = Metrics()
    models_stack = await stack.enter_async_context(AsyncExitStack())  # agents that are loaded later add to it
    files = await stack.enter_async_context(SecretFiles(settings.secrets_dir))
    chat_models = ChatModels(models_stack, settings, model, metrics.observe, span, files)
    models = await chat_models.of(Agent())
    opened = await stores(stack, settings)
    if clock is None:
        clock = await stack.enter_async_context(StoreClock(opened.database))
    observe = await _waking_webhook(stack, settings, opened, clock, metrics.observe)
    return Foundation(settings, clock, metrics, span, chat_models, models, opened, observe)


async def _waking_webhook(
    stack: AsyncExitStack, settings: Settings, stores: Stores, clock: Clock, observe: Observe
) -> Observe:
    """Sends the events of the outbox if there is a webhook. What is observed has been committed."""
    if settings.webhook_url is None:
        return observe
    url = settings.webhook_url.get_secret_value()
    is_allowed = allowed_for_operator(urlsplit(url).hostname or "", allow_private=True)
    client = await stack.enter_async_context(checked_client(is_allowed=is_allowed, timeout=httpx2.Timeout(TIMEOUT_S)))
    kind = Webhooks(stores.database, stores.cache, client, url, settings.webhook_secrets, clock, observe)
    sending = await stack.enter_async_context(JobLoop(kind, interval_s=settings.turn_lease_s / 4))

    def observe_and_wake(observation: Observation) -> None:
        observe(observation)
        if isinstance(observation, TurnEnded | GlobalToolStateChanged):
            sending.wake()

    return observe_and_wake


async def stores(stack: AsyncExitStack, settings: Settings) -> Stores:
    """Raises AppError if embedded servers do not start or the database cannot be migrated."""
    urls = await stack.enter_async_context(server_urls(settings.database_url, settings.redis_url, settings.data_dir))
    told = Outbox(settings.webhook_content).options if settings.webhook_url is not None else {}
    database = Database(urls.database_url, pooler=settings.database_pooler, options=told)
    redis = RedisServer(urls.redis_url)
    cache, streams = Cache(redis), Streams(redis)
    for client in (redis, database, cache, streams):
        stack.push_async_callback(client.close)
    if settings.migrate_on_start and not await is_newest(database):
        from segue.db.migrations import upgrade  # noqa: PLC0415 (alembic is not needed if there is nothing to migrate)

        await asyncio.to_thread(upgrade, urls.database_url)
    events = await stack.enter_async_context(
        EventLog(streams, partial(outcomes_of, database), outage_s=settings.turn_lease_s)
    )
    feeds = await stack.enter_async_context(UserFeeds(streams))
    return Stores(urls, database, cache, streams, redis, events, feeds)


async def authenticator(stack: AsyncExitStack, base: Foundation) -> Authenticator:
    """Raises AppError if JWT_KEY is no key."""
    match base.settings.auth:
        case "none":
            return Anonymous()
        case "api_key":
            return ApiKeys(base.stores.database, base.clock)
        case "jwt":
            return await _token_authenticator(stack, base.settings)


async def _token_authenticator(stack: AsyncExitStack, settings: Settings) -> Authenticator:
    from segue.users import id_tokens  # noqa: PLC0415 (PyJWT and cryptography are for AUTH=jwt)

    keys: id_tokens.KeySource
    if settings.jwt_key is not None:
        keys = id_tokens.OneKey(id_tokens.verification_key(settings.jwt_key.get_secret_value()))
    else:
        client = await stack.enter_async_context(httpx2.AsyncClient(verify=tls_context()))
        keys = await stack.enter_async_context(id_tokens.KeySet(settings.jwt_jwks_url or "", client))
    issuer, audience = settings.jwt_issuer or "", settings.jwt_audience or ""
    return id_tokens.Tokens(keys, issuer=issuer, audience=audience, groups=settings.jwt_groups_claim)


def forwarded_user(base: Foundation) -> Callable[[str], str] | None:
    secret = base.settings.openwebui_jwt_secret
    if secret is None:
        return None
    from segue.users.id_tokens import user_of_token  # noqa: PLC0415 (PyJWT)

    return partial(user_of_token, secret=secret.get_secret_value())


def attachments(base: Foundation) -> Attachments:
    return Attachments(base.stores.database, limits.attachment_limits(base.settings), base.clock)


async def limits_in_force(stack: AsyncExitStack, base: Foundation) -> LimitsInForce:
    return await stack.enter_async_context(LimitsInForce(base.stores.database, limits.user_limits(base.settings)))


def books(base: Foundation, in_force: LimitsInForce) -> Books:
    """Raises AppError if a cap counts dollars and the model has no price."""
    if base.settings.cost_cap and base.models.main.tariff.at_most(0).cost is None:
        detail = f"{base.settings.cost_cap} needs a price of {base.models.main.name} in the file PRICES_FILE."
        raise AppError("price_missing", status=500, title="A price is missing", detail=detail)
    return Books(base.stores.database, base.clock, in_force.of, limits.total_limits(base.settings))


def limiter(base: Foundation, books: Books) -> Limiter:
    return Limiter(
        books.limits_of,
        Rates(base.stores.cache),
        base.stores.cache,
        books=books,
        first_call=lambda message: base.models.main.tariff.at_most(estimate(message)),
    )


async def long_term_memory(stack: AsyncExitStack, base: Foundation) -> LongTermMemory:
    settings, events = base.settings, base.stores.events

    def noted(owner: str, fact: Memory) -> None:
        events.tell(owner, fact_noted(fact))

    if settings.embedding_model is None:
        return LongTermMemory(base.stores.database, None, noted)
    from segue.models.embeddings import openai_embedder  # noqa: PLC0415 (openai is not needed offline)

    embedder = openai_embedder(provider_options(settings, f"openai:{settings.embedding_model}", base.chat_models.files))
    return LongTermMemory(base.stores.database, await stack.enter_async_context(embedder), noted)


async def tooling(
    stack: AsyncExitStack, base: Foundation, long_term: LongTermMemory, extensions: Extensions
) -> Tooling:
    """Raises AppError if mcp.json or a native tool cannot be used, or if two tools have one name."""
    native = native_tools(extensions.tools, disabled=base.settings.disabled_tools)
    taken, files = [tool.spec.name for tool in native], base.chat_models.files
    file = McpFile(base.settings.mcp_config, lambda: files.secrets)
    notes = await stack.enter_async_context(DefinitionNotes(base.stores.database, base.clock))
    servers = McpServers(
        file.read(),
        timeout_s=base.settings.tool_timeout_s,
        taken=taken,
        disabled=base.settings.disabled_tools,
        personal=partial(_personal_servers, base),
        listed=notes.listed,
    )
    await stack.enter_async_context(servers)
    await stack.enter_async_context(file.followed_by(servers))
    files.on_change(file.secrets_changed)
    builtin = await builtin_tools(stack, base.settings, base.stores.database, long_term)
    availability = tool_availability(
        base.settings,
        ToolCatalog((*builtin, *native), servers),
        base.stores.database,
        base.stores.cache,
        clock=base.clock,
        observe=base.observe,
    )

    await stack.enter_async_context(availability.everywhere)

    def may_exist(name: str) -> bool:
        return name in availability.tools() or name.startswith(servers.awaited_prefixes())

    search = ToolSearch(long_term.embed)
    stack.push_async_callback(search.close)
    return Tooling(availability, search, servers, may_exist)


def _personal_servers(base: Foundation, servers: "Servers") -> "PersonalServers":
    """Raises AppError `mcp_token_key_missing` if the tokens of users, who are to log in, cannot be kept."""
    from segue.mcp.oauth.login_tokens import Seal  # noqa: PLC0415 (the same)
    from segue.mcp.oauth.logins import Logins  # noqa: PLC0415 (cryptography is needed with such servers only)
    from segue.mcp.oauth.personal_server import PersonalServers  # noqa: PLC0415 (the same)

    settings, database = base.settings, base.stores.database
    if not settings.mcp_token_keys:
        raise AppError(
            "mcp_token_key_missing",
            status=500,
            title="Tokens could not be kept",
            detail=f"Users log in at {', '.join(servers()) or 'a server'} (oauth in mcp.json), and their tokens are "
            "kept encrypted: set MCP_TOKEN_KEY to what `openssl rand -base64 32` prints, the same in all processes.",
        )
    logins = Logins(database, Seal(settings.mcp_token_keys), servers, settings.base_url, base.clock)
    return PersonalServers(logins, database)


async def agents(base: Foundation, tooling: Tooling, extensions: Extensions) -> Agents:
    """Raises AppError if AGENTS_CONFIG, or an agent of the program, cannot be used."""
    usual = limits.agent_limits(base.settings)

    async def speaker(agent_id: str, agent: Agent) -> Speaker:
        own = {name: value for name in LIMITS if (value := getattr(agent, name)) is not None}
        return Speaker(agent_id, agent, agent.digest, await base.chat_models.of(agent), replace(usual, **own))

    async def load() -> dict[str, Speaker]:
        declared = await asyncio.to_thread(declared_agents, base.settings, tooling.may_exist, extensions.agents)
        if unknown := sorted(tooling.mcp.agents() - declared.keys()):
            log.warning("mcp_config_unknown_agents", agents=unknown)
        return {agent_id: await speaker(agent_id, agent) for agent_id, agent in declared.items()}

    loaded = Agents(load)
    await loaded.reload()
    return loaded


async def jobs(stack: AsyncExitStack, base: Foundation, long_term: LongTermMemory, books: Books) -> Jobs:
    settings, clock, database, model = base.settings, base.clock, base.stores.database, base.models.small
    interval_s = settings.turn_lease_s / 4
    lease_s = settings.llm_timeout_s * EXTRACTION_SHARE
    extraction = FactExtraction(database, model, long_term, books, clock, lease_s=lease_s)
    context = await asyncio.to_thread(limits.context_limits, settings, summarises=model.name != OFFLINE)
    summaries = Summaries(
        database,
        model,
        context.count,
        books,
        max_tokens=settings.context_token_budget,
        max_listed_tokens=int(settings.context_token_budget * LEAST_LISTED),
        lease_s=settings.llm_timeout_s + settings.turn_lease_s,
    )
    titles = Titles(database, model, books, base.stores.events.tell, lease_s=lease_s)
    improves_titles = settings.llm_small_model is not None and model.name != OFFLINE
    parts = Jobs(
        fact_extraction=JobLoop(extraction, interval_s=interval_s),
        fact_upkeep=FactUpkeep(database, long_term, clock, interval_s=interval_s),
        summaries=JobLoop(summaries, interval_s=interval_s),
        titles=JobLoop(titles, interval_s=interval_s) if improves_titles else None,
        context=context,
    )
    await stack.enter_async_context(parts.fact_extraction)
    await stack.enter_async_context(parts.fact_upkeep)
    if context.recall.summarises:
        await stack.enter_async_context(parts.summaries)
    if parts.titles is not None:
        await stack.enter_async_context(parts.titles)
    return parts


def turn_deps(
    base: Foundation,
    *,
    agents: Agents,
    tooling: Tooling,
    long_term: LongTermMemory,
    jobs: Jobs,
    limiter: Limiter,
    books: Books,
) -> TurnDeps:
    settings, stores = base.settings, base.stores
    choice = limits.choice_limits(settings, jobs.context.count, offline=base.models.main.name == OFFLINE)
    return TurnDeps(
        database=stores.database,
        cache=stores.cache,
        events=stores.events,
        graph=build_graph(),
        agents=agents,
        tools=tooling.availability,
        tool_search=tooling.search,
        limiter=limiter,
        books=books,
        clock=base.clock,
        long_term=long_term,
        fact_extraction=jobs.fact_extraction,
        fact_upkeep=jobs.fact_upkeep,
        summaries=jobs.summaries,
        titles=jobs.titles,
        limits=limits.turn_limits(settings, jobs.context, choice),
        observe=base.observe,
        span=base.span,
    )


def doctor(base: Foundation, tooling: Tooling) -> Doctor:
    return Doctor(base.settings, base.stores, tooling.mcp, tooling.availability, base.clock)
