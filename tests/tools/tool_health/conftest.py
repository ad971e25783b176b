"""A service whose tools are a shelf, one of them locked and one moody, under a clock that stands still."""

from collections.abc import AsyncIterator

import pytest

from segue.config import Settings
from tests.support.health import connect
from tests.support.plans import Frozen
from tests.support.service import Client, running
from tests.support.shelf import Shelf


@pytest.fixture
def clock() -> Frozen:
    return Frozen()


@pytest.fixture
def settings(settings: Settings, shelf: Shelf) -> Settings:
    connect(settings, shelf)
    return settings


@pytest.fixture
async def client(settings: Settings, clock: Frozen) -> AsyncIterator[Client]:
    async with running(settings, clock=clock) as served:
        yield served


@pytest.fixture
async def other(settings: Settings, clock: Frozen) -> AsyncIterator[Client]:
    """A second instance on the same stores."""
    async with running(settings, clock=clock) as served:
        yield served
