"""The page that docs/events.md has its reader paste together speaks to a service: its JavaScript, run by Node."""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from starlette.responses import Response

from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.conversations import shelf_service
from tests.support.node import needs_node, node
from tests.support.plans import deletion, planned
from tests.support.provider import Provider, calls, says

PAGE = (ROOT / "docs" / "events.md").read_text("utf-8")


@needs_node
async def test_the_page_of_the_guide_does_what_the_guide_says(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    environment = {"PATH": os.environ["PATH"], "FOLDER": str(tmp_path)}
    await asyncio.to_thread(subprocess.run, ["bash", "-euc", blocks], env=environment, check=True, capture_output=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    never = asyncio.Event()

    async def hangs(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    provider.will(says("Hello to you."))
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"})), planned([deletion(2)]), says("itm-3 is gone."))
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-4"})), hangs, says("And to you."))
    async with shelf_service(settings) as client:
        said = json.loads(await node("page.mjs", tmp_path, str(client.http.base_url).rstrip("/")))
    never.set()
    assert said == {
        "told": ["replay_gap", "session_created"],
        "cuts": 3,
        "ids": 1,
        "words": "Hello to you.",
        "end": "RUN_FINISHED",
        "step": "mcp_delete_item",
        "named": [],
        "changed": {"item_id": "itm-2"},
        "approved": "completed",
        "rejected": "cancelled",
        "attached": True,
        "byToken": True,
        "stopped": "turn_cancelled",
        "newest": "cancelled",
        "edited": "And to you.",
        "found": [True],
        "refused": "session_not_found",
    }
