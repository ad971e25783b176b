"""Makes the parts of the service from the settings. A library that is slow to import is imported where it is used."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from sys import maxsize
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
from langchain_core.language_models import BaseChatModel

from segue.agent.call_approval import ending_tool, proposal_tool
from segue.agent.graph import build_graph
from segue.agent.tool_choice import ToolSearch, ToolTokens
from segue.agents_config import declared_agents
from segue.api.deps import Services
from segue.api.metrics import LoopLag, Metrics, process_metrics
from segue.around.doctor.examine import Doctor
from segue.around.embedded.server_urls import OpenStores, open_clients, server_urls
from segue.around.tracing import tracing
from segue.config import Settings
from segue.db.engine import READING_CONNECTIONS, WRITING_CONNECTIONS, Database
from segue.db.models import mcp_clients, mcp_logins, triggers
from segue.db.postgres_server import StoreClock, ensure_schema
from segue.db.redis_keys import Cache, Rates
from segue.domain.agent import LIMITS, OFFLINE, Agent, provider_and_id
from segue.domain.errors import AppError, app_error
from segue.domain.ids import Clock
from segue.domain.recording import RecordedSettings
from segue.domain.telemetry import GlobalToolStateChanged, Observation, Observe, TurnEnded
from segue.domain.tool import Tool
from segue.events.event_log import EventLog
from segue.events.outbox import Outbox
from segue.events.user_feed import UserFeeds, fact_noted
from segue.history.operator_figures import OperatorFigures
from segue.language.lexicon import read_all
from segue.log import log
from segue.mcp.mcp_servers import McpServers
from segue.mcp_file import McpFile
from segue.memory.history_window import counter_for, estimate
from segue.memory.long_term import LongTermMemory
from segue.memory.session_search import search_said
from segue.models.chat_model import ChatModel
from segue.models.embeddings import openai_embedder
from segue.models.open_models import ChatModels
from segue.models.reply import ProviderModel
from segue.net.addresses import allowed_for_operator
from segue.net.http_client import checked_client, tls_context
from segue.secret_files import SecretFiles
from segue.tools.attachment_store import Attachments
from segue.tools.availability import ToolAvailability
from segue.tools.builtin.builtin_tools import builtin_tools, promise_tool
from segue.tools.catalog import DefinitionNotes, ToolCatalog
from segue.tools.native import native_tools
from segue.tools.receipts import options_of
from segue.tools.tool_states import GlobalToolState
from segue.turns.admission import Limiter
from segue.turns.jobs.learn_facts import FactExtraction, FactUpkeep, cancel_extraction
from segue.turns.jobs.leased_loop import JobLoop
from segue.turns.jobs.summaries_and_titles import Summaries, Titles
from segue.turns.jobs.webhooks import TIMEOUT_S, Webhooks
from segue.turns.queries import outcomes_of
from segue.turns.schedules import LOOKS_A_LEASE, Promised, Schedules
from segue.turns.triggers import Triggers
from segue.turns.turn_deps import Agents, Speaker, TurnDeps, unsampled
from segue.turns.turn_service import TurnService
from segue.users.api_keys import Anonymous, ApiKeys, ApprovalLinks, Authenticator
from segue.users.limits import Limits, LimitsInForce
from segue.users.usage import Books
from segue.watch import Watch

if TYPE_CHECKING:
    from segue.mcp.oauth.login_tokens import Servers
    from segue.mcp.oauth.logins import Logins

EXTRACTION_SHARE = 1.5  # of the model's deadline: what is around the call takes time too


async def start(
    stack: AsyncExitStack,
    settings: Settings,
    *,
    tools: Sequence[object] = (),
    agents: Mapping[str, Agent] = MappingProxyType({}),
    model: BaseChatModel | ProviderModel | None = None,
    clock: Clock | None = None,
    takes_turns: bool = True,
) -> Services:
    """Returns the parts, started in order; the stack stops them in reverse order. `create_app` says what is given;
    without a clock, the time is PostgreSQL's. Raises AppError if a part cannot be made.
    """
    enter = stack.enter_async_context
    span = await enter(tracing(settings.otel_exporter_otlp_endpoint, content=settings.otel_capture_content))
    metrics = Metrics()
    later = await enter(AsyncExitStack())  # agents that are loaded later add to it
    files = await enter(SecretFiles(settings.secrets_dir))
    chat_models = ChatModels(
        stack=later, settings=settings, instead=model, offline=_offline, observe=metrics.observe, span=span, files=files
    )
    models = await chat_models.of(Agent())
    is_offline = models.main.name == OFFLINE
    if is_offline:  # that model reads all tools there are, at no cost
        settings = settings.model_copy(update={"llm_max_tools": maxsize})

    stores = await _stores(stack, settings)
    redis, database, cache = stores.redis, stores.database, stores.cache
    events = await enter(EventLog(stores.streams, partial(outcomes_of, database), outage_s=settings.turn_lease_s))
    feeds = await enter(UserFeeds(stores.streams))
    if clock is None:
        clock = await enter(StoreClock(database))
    observe = await _waking_webhook(stack, settings, stores, clock, metrics.observe)
    stack.enter_context(LoopLag(metrics.observe))
    authenticator = await _authenticator(stack, settings, database, clock)
    limits = await enter(LimitsInForce(database, settings))
    books = _books(settings, database, clock, limits, models.main)

    def tools_for(user: str, groups: Collection[str]) -> Mapping[str, Tool]:
        return availability.tools_for(user, groups)

    long_term = LongTermMemory(
        database,
        await enter(openai_embedder(settings, books, observe, files)),
        lambda owner, fact: events.tell(owner, fact_noted(fact)),
        budget=settings.fact_token_budget,
        stop_learning=cancel_extraction,
    )
    native = native_tools(tools, disabled=settings.disabled_tools)
    mcp = await _mcp_servers(stack, settings, database, clock, files, taken=[tool.spec.name for tool in native])
    promised = Promised(database, settings, long_term.says)
    of_mandates = (proposal_tool(database, tools_for, events.tell), ending_tool(database, events.tell))
    own = (*of_mandates, promise_tool(promised, settings.schedule_groups))
    availability = ToolAvailability(
        ToolCatalog((*await builtin_tools(stack, settings, database, long_term, search_said, own), *native), mcp),
        database,
        GlobalToolState(cache, settings, observe, tells=settings.webhook_url is not None),
        settings,
        clock=clock,
        observe=observe,
    )
    await enter(availability.everywhere)
    tool_search = ToolSearch(long_term.embed)
    stack.push_async_callback(tool_search.close)
    speakers = Agents(lambda: _speakers(settings, chat_models, availability, mcp, agents))
    await speakers.reload()

    count = await asyncio.to_thread(counter_for, provider_and_id(settings.llm_model)[1])
    small, interval_s = models.small, settings.turn_lease_s / 4
    lease_s = settings.llm_timeout_s * EXTRACTION_SHARE
    extraction = FactExtraction(database, small, long_term, books, clock, lease_s=lease_s)
    step_s = 2 * settings.llm_timeout_s + settings.turn_lease_s  # what is too long is condensed by a second call
    most, budget = settings.most_summary_tokens, settings.context_token_budget
    summaries = Summaries(database, small, books, count, most_tokens=most, max_tokens=budget, lease_s=step_s)
    titles = Titles(database, small, books, events.tell, lease_s=lease_s)
    summarises = small.name != OFFLINE
    improves_titles = summarises and settings.llm_small_model is not None
    deps = TurnDeps(
        settings=settings,
        database=database,
        cache=cache,
        events=events,
        graph=build_graph(),
        agents=speakers,
        tools=availability,
        tool_search=tool_search,
        tool_tokens=(lambda _: 0) if is_offline else ToolTokens(count),
        count=count,
        limiter=Limiter(books, cache, first_call=lambda message: models.main.tariff.at_most(estimate(message))),
        books=books,
        clock=clock,
        long_term=long_term,
        fact_extraction=await enter(JobLoop(extraction, interval_s=interval_s)),
        fact_upkeep=await enter(FactUpkeep(database, long_term, clock, interval_s=interval_s)),
        summaries=await enter(JobLoop(summaries, interval_s=interval_s)) if summarises else None,
        titles=await enter(JobLoop(titles, interval_s=interval_s)) if improves_titles else None,
        sample=await _sample(stack, settings, database, availability, clock),
        observe=observe,
        span=span,
    )
    turns = await enter(TurnService(deps, redis, takes_turns=takes_turns))
    looks_every_s = min(1.0, settings.turn_lease_s / LOOKS_A_LEASE)  # a long lease makes no schedule late
    await enter(JobLoop(Schedules(database, turns, events, clock), interval_s=looks_every_s))
    metrics.add_process_state(lambda: process_metrics(turns, events, database, redis, mcp))
    return Services(
        **vars(deps),
        authenticator=authenticator,
        gateway=_gateway(settings),
        limits=limits,
        feeds=feeds,
        turns=turns,
        attachments=Attachments(database, settings, clock),
        triggers=_triggers(settings, database, cache, clock, turns),
        approval_links=ApprovalLinks(database, settings.webhook_secrets, settings.base_url),
        mcp=mcp,
        examine=Doctor(settings, stores, mcp, files, (availability, clock)).examine,
        metrics=metrics,
        figures=OperatorFigures(database),
        words=asyncio.create_task(asyncio.to_thread(read_all), name="word lists"),
    )


def _offline() -> ProviderModel:
    from segue.around.offline.offline_model import OfflineModel  # noqa: PLC0415 (its words take memory)

    return OfflineModel()


async def _stores(stack: AsyncExitStack, settings: Settings) -> OpenStores:
    """Raises AppError if embedded servers do not start, or the database cannot be migrated or should have been."""
    urls = await stack.enter_async_context(server_urls(settings.database_url, settings.redis_url, settings.data_dir))
    webhook = Outbox(settings.webhook_content).options if settings.webhook_url is not None else {}
    signed = options_of(settings.receipt_key)
    pools = {"writing": WRITING_CONNECTIONS, "reading": READING_CONNECTIONS}
    stores = open_clients(stack, urls, pooler=settings.database_pooler, **pools, options={**webhook, **signed})
    await ensure_schema(stores.database, urls.database_url, migrates=settings.migrate_on_start)
    if len(keys := settings.mcp_token_keys) > 1:  # a process that does not know the first opens no secret from now on
        from segue.mcp.oauth.login_tokens import Seal, reseal  # noqa: PLC0415 (cryptography is slow to import)

        with suppress(AppError):  # Postgres is away, which ends no start; the next one seals them
            for table in (triggers, mcp_logins, mcp_clients):
                rows = await stores.database.write(reseal, Seal(keys), table)
                log.info("secrets_resealed", table=table.name, rows=rows)
    return stores


async def _sample(
    stack: AsyncExitStack, settings: Settings, database: Database, tools: ToolAvailability, clock: Clock
) -> Callable[[str, Collection[str], str], None]:
    """Returns what does nothing if no session is to be recorded. Files of an earlier sample go even then."""
    folder, share = settings.data_dir.expanduser() / "recordings", settings.record_sample
    if not share and not folder.is_dir():
        return unsampled
    from segue.history.export import SAMPLE_EVERY_S, Samples  # noqa: PLC0415 (most services record nothing)

    recorded = RecordedSettings.model_validate(settings, from_attributes=True)
    samples = Samples(folder, share, database, tools, recorded, clock)
    stack.push_async_callback(samples.look)
    await stack.enter_async_context(Watch("samples of sessions", samples.look, every_s=SAMPLE_EVERY_S))
    return samples.note


async def _waking_webhook(
    stack: AsyncExitStack, settings: Settings, stores: OpenStores, clock: Clock, observe: Observe
) -> Observe:
    """Sends the events of the outbox if there is a webhook. What is observed has been committed."""
    if settings.webhook_url is None:
        return observe
    url = settings.webhook_url.get_secret_value()
    is_allowed = allowed_for_operator(urlsplit(url).hostname or "", allow_private=True)
    client = await stack.enter_async_context(checked_client(is_allowed=is_allowed, timeout=httpx2.Timeout(TIMEOUT_S)))
    links = ApprovalLinks(stores.database, settings.webhook_secrets, settings.base_url)
    kind = Webhooks(stores.database, stores.cache, client, url, settings.webhook_secrets, links, clock, observe)
    sending = await stack.enter_async_context(JobLoop(kind, interval_s=settings.turn_lease_s / 4))

    def observe_and_wake(observation: Observation) -> None:
        observe(observation)
        if isinstance(observation, TurnEnded | GlobalToolStateChanged):
            sending.wake()

    return observe_and_wake


def _books(settings: Settings, database: Database, clock: Clock, limits: LimitsInForce, main: ChatModel) -> Books:
    """Raises AppError if a cap counts dollars and the model has no price."""
    if settings.cost_cap and main.tariff.at_most(0).cost is None:
        raise app_error("cap_price_missing", cap=settings.cost_cap, model=main.name)
    groups = {group: Limits(cost_per_day=cap) for group, cap in settings.limit_groups.items()}
    return Books(database, clock, limits.of, limits.total, groups)


async def _mcp_servers(
    stack: AsyncExitStack, settings: Settings, database: Database, clock: Clock, files: SecretFiles, *, taken: list[str]
) -> McpServers:
    """Raises AppError if mcp.json cannot be used, or if two tools have one name."""
    file = McpFile(settings.mcp_config, lambda: files.secrets)
    notes = await stack.enter_async_context(DefinitionNotes(database, clock))
    servers = McpServers(
        file.read(),
        timeout_s=settings.tool_timeout_s,
        taken=taken,
        disabled=settings.disabled_tools,
        make_logins=partial(_logins, settings, database, clock),
        listed=notes.listed,
    )
    await stack.enter_async_context(servers)
    await stack.enter_async_context(file.followed_by(servers))
    files.on_change(file.secrets_changed)
    return servers


def _logins(settings: Settings, database: Database, clock: Clock, servers: "Servers") -> "Logins":
    """Raises AppError `mcp_token_key_missing` if the tokens of users, who are to log in, cannot be kept."""
    from segue.mcp.oauth.login_tokens import Seal  # noqa: PLC0415 (the same)
    from segue.mcp.oauth.logins import Logins  # noqa: PLC0415 (cryptography is needed with such servers only)

    if not settings.mcp_token_keys:
        raise app_error("mcp_token_key_missing", servers=", ".join(servers()) or "a server")
    return Logins(database, Seal(settings.mcp_token_keys), servers, settings.base_url, clock)


def _triggers(settings: Settings, database: Database, cache: Cache, clock: Clock, turns: TurnService) -> Triggers:
    seal = None
    if settings.mcp_token_keys:
        from segue.mcp.oauth.login_tokens import Seal  # noqa: PLC0415 (cryptography is slow to import)

        seal = Seal(settings.mcp_token_keys)
    return Triggers(database, turns, Rates(cache), seal, settings, settings.base_url, settings.session_time_zone, clock)


async def _speakers(
    settings: Settings, chat_models: ChatModels, tools: ToolAvailability, mcp: McpServers, given: Mapping[str, Agent]
) -> dict[str, Speaker]:
    """Raises AppError if AGENTS_CONFIG, or an agent of the program, cannot be used."""

    def may_exist(name: str) -> bool:
        return name in tools.tools() or name.startswith(mcp.awaited_prefixes())

    declared = await asyncio.to_thread(declared_agents, settings, may_exist, given)
    if unknown := sorted(mcp.agents() - declared.keys()):
        log.warning("mcp_config_unknown_agents", agents=unknown)
    speakers = {}
    for agent_id, agent in declared.items():
        own = {name: value for name in LIMITS if (value := getattr(agent, name)) is not None}
        models, limits = await chat_models.of(agent), settings.model_copy(update=own)
        others = {name: await chat_models.of(replace(agent, model=name)) for name in agent.models}
        speakers[agent_id] = Speaker(agent_id, agent, agent.digest, models, limits, others)
    return speakers


async def _authenticator(stack: AsyncExitStack, settings: Settings, database: Database, clock: Clock) -> Authenticator:
    """Raises AppError if JWT_KEY is no key."""
    match settings.auth:
        case "none":
            return Anonymous()
        case "api_key":
            return ApiKeys(database, clock)
    from segue.users import id_tokens  # noqa: PLC0415 (PyJWT and cryptography are for AUTH=jwt)

    keys: id_tokens.OneKey | id_tokens.KeySet
    if settings.jwt_key is not None:
        keys = id_tokens.OneKey(id_tokens.verification_key(settings.jwt_key.get_secret_value()))
    else:
        client = await stack.enter_async_context(httpx2.AsyncClient(verify=tls_context()))
        keys = await stack.enter_async_context(id_tokens.KeySet(settings.jwt_jwks_url or "", client))
    issuer, audience = settings.jwt_issuer or "", settings.jwt_audience or ""
    groups, roles = settings.jwt_groups_claim, settings.jwt_roles
    return id_tokens.Tokens(keys, issuer=issuer, audience=audience, groups=groups, roles=roles)


def _gateway(settings: Settings) -> Authenticator | None:
    if settings.openwebui_jwt_secret is None:
        return None
    from segue.users.id_tokens import GATEWAY, OneKey, Tokens, VerificationKey  # noqa: PLC0415 (PyJWT)

    key = VerificationKey(settings.openwebui_jwt_secret.get_secret_value(), ("HS256",))
    return Tokens(OneKey(key), issuer=GATEWAY, audience=None)
