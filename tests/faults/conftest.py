"""A site for all faults, and two instances on it for the modules whose faults leave them alive."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from segue.around.embedded.server_urls import ServerUrls
from segue.around.embedded.servers import embedded_servers
from segue.db.migrations import upgrade
from tests.support.service import Client
from tests.support.site import Pair, Site, site_on
from tests.support.stores import notify_changes


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "servers"


@pytest.fixture(scope="package")
def own_servers(data: Path) -> Iterator[ServerUrls]:
    """Which may be killed, other than those of the other tests."""
    with embedded_servers(data, fast=True) as started:
        upgrade(started.database_url)
        yield started


@pytest.fixture(scope="package")
async def site(own_servers: ServerUrls, data: Path) -> AsyncIterator[Site]:
    await notify_changes(own_servers.database_url)
    async with site_on(own_servers, data) as whole:
        yield whole


@pytest.fixture(scope="module")
async def pair(site: Site) -> AsyncIterator[Pair]:
    """Two instances, each with a worker. They end with their module: others crash whole installations."""
    async with AsyncExitStack() as stack:
        both = (stack.enter_async_context(site.serving()) for _ in range(2))
        yield await asyncio.gather(*both)


@pytest.fixture
def here(pair: Pair) -> Client:
    return pair[0][1]


@pytest.fixture
def there(pair: Pair) -> Client:
    return pair[1][1]
