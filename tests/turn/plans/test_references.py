"""An argument whose reference leads to nothing is asked for, and otherwise ends the step."""

import json
from typing import Any

import pytest

from backend.config import Settings
from tests.support.plans import ASK, planned
from tests.support.provider import Provider, calls, says
from tests.support.service import running
from tests.turn.test_survival import TOOLBOX


@pytest.mark.parametrize("folder", [{"$from": 1, "path": "none"}, [{"$from": 1, "path": "none"}]])
async def test_an_argument_that_came_to_nothing_is_not_left_out(
    settings: Settings, provider: Provider, folder: Any
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"t": {"command": "python", "args": [str(TOOLBOX)]}}}))
    steps = [
        {"id": 1, "description": "Count", "tool": "mcp_count", "args": {"of": "x"}},
        {"id": 2, "description": "Echo", "tool": "mcp_echo", "args": {"all": True, "only_in": folder}},
    ]
    provider.will(planned(steps), calls(("mcp_echo", {"all": True})), says("It could not be found."))
    async with running(settings) as client:
        answer = await client.chat(await client.new_session(), ASK)
    assert [call["tool_name"] for call in answer["tool_calls"]] == ["mcp_count"]
    assert answer["plan"]["status"] == "failed"
    assert "only_in" in answer["plan"]["steps"][1]["error"]
