"""How far a call is: what that does to its time limit, and what a server may do with it."""

from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from segue.domain.tool import ToolContext, ToolFailed
from tests.support.mcp_peer import WHO, speaking_protocol, tool

Said = list[tuple[float, float | None, str | None]]


def hearing(said: Said) -> ToolContext:
    return replace(WHO, report=lambda *report: said.append(report))


async def test_a_call_is_told_how_far_it_is(tmp_path: Path) -> None:
    said: Said = []
    async with speaking_protocol(tmp_path) as servers:
        assert await tool(servers, "count_up").run({"to": 2, "message": "mails"}, hearing(said)) == "counted"
    assert said == [(0, 2, "mails"), (1, 2, "mails")]


async def test_progress_gives_a_call_its_time_again_up_to_a_ceiling(tmp_path: Path) -> None:
    async with speaking_protocol(tmp_path, timeout_s=1) as servers:
        called_at = monotonic()
        with pytest.raises(ToolFailed, match=r"stall did not answer within 1\.[5-9]\d* s") as failed:
            await tool(servers, "stall").run({}, WHO)
        assert monotonic() - called_at >= float(str(failed.value).split()[-2])
    async with speaking_protocol(tmp_path, timeout_s=1, max_timeout_s=0.2) as servers:
        with pytest.raises(ToolFailed, match=r"stall did not answer within 0\.2 s"):
            await tool(servers, "stall").run({}, WHO)


async def test_a_flood_of_progress_is_not_read_and_ends_nothing(tmp_path: Path) -> None:
    said: Said = []
    async with speaking_protocol(tmp_path) as servers:
        assert await tool(servers, "count_up").run({"to": 20_000}, hearing(said)) == "counted"
        assert servers.statuses()[0].last_error is None
        assert servers.states() == {"ours": "ready"}
    assert len(said) < 200
