"""A service with a shelf as its MCP server, before which the commands are run."""

from collections.abc import AsyncIterator

import pytest

from segue.config import Settings
from tests.support.service import Client, running
from tests.support.shelf import Shelf, serving_shelf


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as served:
        settings.mcp_config.write_text(f'{{"mcpServers": {{"shelf": {{"url": "{served.url}"}}}}}}')
        yield served


@pytest.fixture
async def service(settings: Settings, shelf: Shelf) -> AsyncIterator[Client]:
    assert shelf.url
    async with running(settings) as served:
        yield served
