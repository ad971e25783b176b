import time

import pytest

from tests.support.logs import until
from tests.support.loop_lag import HELD_S, TOLERANCE, loop_kept_free
from tests.support.metrics import Scrape, scraped
from tests.support.service import Client


def hold(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def late(scrape: Scrape) -> float:
    """How many timers were late by more than a fortieth of a second."""
    name = "segue_event_loop_lag_seconds"
    return scrape(f"{name}_count") - scrape(f"{name}_bucket", le=0.025)


async def test_a_callback_that_holds_the_loop_shows_in_the_metrics(client: Client) -> None:
    before = late(await scraped(client))

    async def shows() -> bool:
        hold(0.1)
        return late(await scraped(client)) > before

    assert await until(shows)


async def test_what_holds_the_loop_in_a_test_fails_it() -> None:
    with pytest.raises(AssertionError, match="was held for"), loop_kept_free():
        hold(1.1 * HELD_S * TOLERANCE)
