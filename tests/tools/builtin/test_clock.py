from dataclasses import replace
from datetime import UTC, datetime

import pytest

from segue.domain.tool import ToolContext, ToolRetry
from segue.tools.builtin.builtin_tools import current_time_tool

CONTEXT = ToolContext(
    owner="anna",
    session_id="session",
    turn_id="turn",
    tool_call_id="call",
    now=datetime(2026, 3, 29, 23, 30, 15, 999_999, tzinfo=UTC),
)


async def test_without_a_time_zone_local_time_is_the_users() -> None:
    assert await current_time_tool().run({}, replace(CONTEXT, time_zone="America/New_York")) == {
        "utc": "2026-03-29T23:30:15+00:00",
        "local": "2026-03-29T19:30:15-04:00",
        "timezone": "America/New_York",
        "weekday": "Sunday",
    }


async def test_a_time_zone_moves_local_time_and_weekday_with_its_summer_time() -> None:
    assert await current_time_tool().run({"timezone": "Europe/Rome"}, CONTEXT) == {
        "utc": "2026-03-29T23:30:15+00:00",
        "local": "2026-03-30T01:30:15+02:00",
        "timezone": "Europe/Rome",
        "weekday": "Monday",
    }


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "Europe", "../../etc/passwd", "/etc/localtime", "a\0b", "\ud800"])
async def test_an_unknown_time_zone_tells_the_model_what_a_known_one_looks_like(name: str) -> None:
    with pytest.raises(ToolRetry, match="Europe/Rome"):
        await current_time_tool().run({"timezone": name}, CONTEXT)
