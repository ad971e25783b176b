"""The stores every test uses: a real PostgreSQL and a real Redis for each worker, both emptied before a test."""

from tests.support import garbage  # before the modules with much to import

# isort: split

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import asyncpg
import hypothesis
import pytest
import structlog
from pydantic import SecretStr
from redis.asyncio import Redis

from segue.around.embedded.server_urls import ServerUrls
from segue.around.embedded.servers import embedded_servers
from segue.config import Settings
from segue.db.migrations import upgrade
from segue.log import log
from tests.support import fork_client, fork_server, forked_workers, kept_connections, memory, statements, sweeps
from tests.support.commands import forks
from tests.support.logs import notify_waiting
from tests.support.patience import PATIENCE_S, patient_with_stores
from tests.support.provider import Provider, scripted_provider
from tests.support.service import Client, running
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import (
    KeptDatabase,
    Stores,
    looking_into,
    named,
    new_database,
    notify_changes,
    plain,
    urls_of,
)

TEMPLATE = "segue_template"
LONGEST = (
    "tests/examples/test_readme.py",
    "tests/turns/plans/test_one_yes.py",
    "tests/mcp/test_servers.py",
    "tests/console/test_types.py",
    "tests/turns/test_survival.py",
    "tests/turns/plans/test_changes_of_mind.py",
    "tests/db/test_backup.py",
    "tests/examples/test_recording.py",
    "tests/models/test_model.py",
    "tests/turns/plans/test_plans.py",
    "tests/turns/test_context.py",
    "tests/api/test_ownership.py",
    "tests/api/test_schemathesis.py",
    "tests/test_structure.py",
    "tests/turns/plans/test_mandates.py",
    "tests/turns/plans/test_buttons.py",
    "tests/around/test_processes.py",
    "tests/turns/plans/test_said_by_user.py",
    "tests/turns/test_fork.py",
    "tests/turns/plans/test_grants.py",
    "tests/turns/plans/test_expiry.py",
    "tests/turns/plans/test_strength.py",
    "tests/turns/plans/test_user_requests.py",
    "tests/turns/test_outage.py",
    "tests/turns/test_settled_calls.py",
    "tests/turns/jobs/test_fact_extraction.py",
    "tests/usage/test_usage.py",
    "tests/turns/test_limits.py",
    "tests/tools/test_paging.py",
    "tests/turns/test_presence.py",
    "tests/models/test_native_providers.py",
    "tests/faults/test_takeover.py",
    "tests/db/test_migrations.py",
    "tests/test_deployment.py",
    "tests/console/test_conversation.py",
    "tests/api/test_generated_client.py",
    "tests/turns/test_schedules.py",
    "tests/api/doors/test_wrong_types.py",
    "tests/api/doors/test_openai_options.py",
    "tests/turns/jobs/test_summaries.py",
    "tests/api/doors/test_vercel.py",
    "tests/turns/jobs/test_webhooks.py",
    "tests/around/replay/test_replay.py",
    "tests/turns/plans/test_approvals.py",
    "tests/mcp/test_logins.py",
    "tests/tools/test_results_api.py",
    "tests/db/test_erasure.py",
    "tests/models/test_images.py",
    "tests/turns/test_maintenance.py",
    "tests/users/test_tokens.py",
    "tests/turns/test_bounds.py",
    "tests/test_main.py",
    "tests/api/doors/test_sdk_clients.py",
    "tests/api/test_turns.py",
    "tests/usage/test_caps.py",
    "tests/faults/test_crash.py",
    "tests/around/embedded/test_servers.py",
    "tests/turns/test_clocks.py",
    "tests/turns/test_fair_scheduling.py",
    "tests/turns/plans/test_effects.py",
    "tests/turns/test_turn.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """One fork server serves all workers of a run. No test asks an authority on the network, and reading all there are
    takes a tenth of a second a service. How long Hypothesis takes for its examples says what else the machine does;
    CI tries a quarter of them.
    """
    if fork_client.SOCKET not in os.environ:  # else this is a worker, which inherits the environment of the run
        config.add_cleanup(fork_server.launch())
        memory.keep_temporary_files()
    if config.getoption("numprocesses") and not config.option.collectonly and hasattr(os, "fork"):
        forked_workers.launch(config)
    config.add_cleanup(forks.close)
    statements.compile_once()
    examples = 100 if _all_runs(config) else 25
    slow = [hypothesis.HealthCheck.too_slow]
    of_any_machine: dict[str, Any] = {"max_examples": examples, "deadline": None, "suppress_health_check": slow}
    hypothesis.settings.register_profile("any machine", **of_any_machine)
    hypothesis.settings.load_profile("any machine")
    # A shell's python3 is this one, and no script that looks for it first, as pyenv's, which takes ten times as long.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.base_prefix, "bin")), os.environ["PATH"]))
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("support") / "authority.pem")


def _all_runs(config: pytest.Config) -> bool:
    """Whether this is a sweep, or tests are named."""
    return bool(os.environ.get("SWEEP")) or any("::" in argument for argument in config.args)


def pytest_runtest_setup() -> None:
    """The test before may have run a command in this process, which set up its own log: the logger keeps what it was
    first used with.
    """
    vars(log).pop("bind", None)
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            notify_waiting,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
        ]
    )


def pytest_xdist_auto_num_workers() -> int:
    """Four more than there are cores: a test often waits for what another process does."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or (os.cpu_count() or 1) + 4)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest modules begin first, so that no worker is left alone with one at the end. Sweeps run with SWEEP=1,
    and if a test is named on the command line, as `make mutants` does.
    """
    if not _all_runs(config):
        for item in [*sweeps.left_out(items)]:
            item.add_marker(pytest.mark.skip(reason="a sweep: make sweep"))

    def rank(item: pytest.Item) -> int:
        module = item.nodeid.partition("::")[0]
        return LONGEST.index(module) if module in LONGEST else len(LONGEST)

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """To show where a test failed, its source is parsed."""
    with garbage.left_alone():
        return (yield)


def pytest_collection_finish() -> None:
    garbage.collect_again()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUrls]:
    with embedded_servers(tmp_path_factory.mktemp("servers"), fast=True) as started:
        yield started


@pytest.fixture(scope="session")
async def template(servers: ServerUrls) -> str:
    """The name of an empty database at the newest revision, with the extensions of the one that `segue` would use."""
    connection = await asyncpg.connect(plain(named(servers.database_url, "postgres")))
    try:
        await connection.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE segue")
    finally:
        await connection.close()
    await asyncio.to_thread(upgrade, named(servers.database_url, TEMPLATE))
    await notify_changes(named(servers.database_url, TEMPLATE))
    return TEMPLATE


@pytest.fixture(scope="session")
async def kept_database(servers: ServerUrls, template: str) -> AsyncIterator[KeptDatabase]:
    """One for the tests of a run: to make one takes a quarter of a second, to empty one a few milliseconds."""
    async with new_database(servers, template) as url:
        kept = KeptDatabase(url)
        yield kept
        await kept.close()


@pytest.fixture
async def database_url(kept_database: KeptDatabase) -> AsyncIterator[str]:
    """A database with no rows, and no connections that a service left. It is the next test's too: one that changes the
    schema puts `own_database_url` in its place.
    """
    await kept_database.empty()
    yield kept_database.url
    assert await kept_database.is_as_it_was(), "the test has changed the schema of the database of all tests"


@pytest.fixture
async def new_connections(database_url: str) -> None:
    """Every connection of a service is a new one. Other tests keep them, and what is set for a database or a role
    reaches only those that are opened later.
    """
    assert database_url
    await kept_connections.keep_none()


@pytest.fixture
async def own_database_url(servers: ServerUrls, template: str) -> AsyncIterator[str]:
    """A database for one test alone."""
    async with new_database(servers, template) as url:
        yield url


@pytest.fixture(scope="session")
async def kept_redis(servers: ServerUrls) -> AsyncIterator[Redis]:
    async with Redis.from_url(servers.redis_url, protocol=2) as redis:
        yield redis


@pytest.fixture
async def redis_url(servers: ServerUrls, kept_redis: Redis) -> str:
    """Redis, empty."""
    await kept_redis.flushall()
    return servers.redis_url


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with scripted_provider() as scripted:
        yield scripted


@pytest.fixture(scope="session")
def base_settings() -> Settings:
    """What all tests have in common, made once: pydantic-settings takes 8 ms to look for it in the environment."""
    return Settings(
        _env_file=None,
        llm_model="scripted",
        llm_max_retries=0,
        llm_idle_timeout_s=2 * PATIENCE_S,  # a scripted answer may wait for all else that a test does
        history_limit=20,  # few turns fill it
        context_token_budget=8000,
        web_search_provider="none",
        migrate_on_start=False,
    )


@pytest.fixture
def settings(
    base_settings: Settings, redis_url: str, database_url: str, provider: Provider, tmp_path: Path
) -> Settings:
    """A service on real stores that asks the scripted provider and has no MCP servers."""
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    stores = {"database_url": SecretStr(database_url), "redis_url": SecretStr(redis_url)}
    return base_settings.model_copy(
        update={**stores, "openai_base_url": provider.base_url, "mcp_config": tmp_path / "mcp.json"}
    )


@pytest.fixture(autouse=True)
def waits_for_stores(request: pytest.FixtureRequest) -> Iterator[None]:
    """Longer than in production, but for tests of what becomes of a store that does not answer: they are `hasty`."""
    with nullcontext() if request.node.get_closest_marker("hasty") else patient_with_stores():
        yield


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done as often as the lease of a turn has it comes often, and yet no lease lapses on a busy machine."""
    monkeypatch.setattr("segue.turns.turn_settings.LEASE_SHARE", 5 * PATIENCE_S)


@pytest.fixture
async def stores(settings: Settings) -> AsyncIterator[Stores]:
    """Looked at behind the service's back."""
    async with looking_into(settings) as opened:
        yield opened


@pytest.fixture
def urls(settings: Settings) -> dict[str, str]:
    """What a process has in its environment that shares the stores."""
    return urls_of(settings)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as served:
        yield served


@pytest.fixture
async def shelf() -> AsyncIterator[Shelf]:
    async with serving_shelf() as served:
        yield served


@pytest.fixture
async def shelved(settings: Settings, shelf: Shelf) -> AsyncIterator[Client]:
    """A service with the shelf connected."""
    settings.mcp_config.write_text(f'{{"mcpServers": {{"shelf": {{"url": "{shelf.url}"}}}}}}')
    async with running(settings) as served:
        await served.connected("shelf")
        yield served
