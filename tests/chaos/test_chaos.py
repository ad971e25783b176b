"""Seconds of what `make chaos` does for minutes, and that its check can fail."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segue.around.embedded.server_urls import ServerUrls
from tests.chaos.ledger import ONCE
from tests.chaos.run import CHAOS, Run
from tests.chaos.site import site_on
from tests.support.commands import forked

SEED = 7


async def test_a_doubled_effect_and_a_lost_message_are_told_and_nothing_is_wrong_before(
    database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.chaos.site.LEASE_S", 1)
    monkeypatch.setattr("tests.chaos.world.LONGEST_WORK_S", 0.5)
    weather = replace(CHAOS, faults={"kill": 1}, calm_s=1.0, histories=1)
    urls = ServerUrls(database_url, redis_url)
    async with (
        site_on(urls, tmp_path, Random(SEED), instances=2, start=forked) as site,  # noqa: S311
        site.stores() as stores,
    ):
        await Run(weather, seconds=1.0, seed=SEED, talkers=3).through(site)
        assert await site.ledger.check(stores.database) == []
        effect = next(effect for effect in site.ledger.effects if effect.startswith(ONCE))
        site.ledger.effects[effect] += 1
        kept = next(turn for turn in site.ledger.turns if turn.turn_id and turn.session not in site.ledger.deleted)
        await stores.database.execute("DELETE FROM messages WHERE turn_id = $1 AND role = 'user'", kept.turn_id)
        [doubled, lost] = await site.ledger.check(stores.database)
    assert doubled == f"effect doubled: {effect}, 2 times"
    assert lost == f"message lost or doubled: {kept.message!r} of {kept.turn_id}"
