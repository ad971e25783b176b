"""A service whose tools are a shelf, under a clock that stands still."""

import json
from collections.abc import AsyncIterator

import pytest

from segue.config import Settings
from tests.support.plans import Frozen
from tests.support.service import Client, running
from tests.support.shelf import Shelf


@pytest.fixture
def effects(shelf: Shelf) -> list[str]:
    return shelf.effects


@pytest.fixture
def clock() -> Frozen:
    return Frozen()


@pytest.fixture
async def client(settings: Settings, shelf: Shelf, clock: Frozen) -> AsyncIterator[Client]:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    async with running(settings, clock=clock) as served:
        yield served
