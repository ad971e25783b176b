"""The connections a process takes are a number: docs/deployment.md adds it up."""

import asyncio

import pytest

from segue.config import Settings
from tests.support.kept_connections import processes
from tests.support.service import running
from tests.support.stores import looking_into

POSTGRES = 11
REDIS = 20
HELD = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = 'segue' AND datname = current_database() AND pid <> ALL ($1)
"""


@pytest.mark.sweep
@pytest.mark.hasty
async def test_a_process_keeps_to_its_budget_of_connections(settings: Settings) -> None:
    limited = {"limit_requests_per_minute": 9000, "limit_turns_per_minute": 9000, "limit_tokens_per_day": 9_000_000}
    offline = settings.model_copy(update={**limited, "openai_base_url": None})
    async with running(offline) as client, looking_into(settings) as stores:
        sessions = [await client.new_session() for _ in range(8)]
        asked = (client.send(session, f"ciao {number}") for number in range(5) for session in sessions)
        await stores.redis.client_pause(300)  # what is asked meanwhile holds its connection
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert await stores.database.fetchval(HELD, processes()) <= POSTGRES
        assert len(await stores.redis.client_list()) - 1 <= REDIS  # all but the one that asks
