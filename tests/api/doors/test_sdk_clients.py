"""Others' Python clients against a running service, unmodified. `make sdk-clients` installs them."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.plans import planned
from tests.support.provider import Provider, says
from tests.support.service import running
from tests.support.shelf import Shelf
from tests.support.sweeps import first

PYTHON = Path(os.environ.get("SDK_CLIENTS", ROOT / ".venv" / "sdk-clients")) / "bin" / "python"
PATHS = (  # those that are imported in two seconds first
    "agents_responses llm",
    "agents_chat agents_responses_streamed",
    "pydantic_ai_responses pydantic_ai_chat pydantic_ai_responses_streamed pydantic_ai_chat_streamed",
    "langchain_responses langchain_chat langchain_responses_streamed",
    "litellm litellm_streamed",
)


@pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: make sdk-clients")
@pytest.mark.parametrize("paths", first(1, PATHS))
async def test_each_searches_is_asked_says_yes_once_and_is_given_an_object(
    settings: Settings, provider: Provider, shelf: Shelf, paths: str
) -> None:
    names = paths.split()
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    for name in names:
        find = {"id": 1, "description": "Find", "tool": "mcp_find_items", "args": {"query": name}}
        delete = {"id": 2, "description": "Delete", "tool": "mcp_delete_item", "args": {"item_id": f"itm-{name}"}}
        provider.will_to(f"the things of {name},", planned([find, delete]), says(f"{name} is gone."))
        provider.will_to(f"the capital of {name}?", says('{"reasoning": "It is known.", "name": "Roma"}'))
    async with running(settings) as service:
        await service.connected("shelf")
        url = str(service.http.base_url).rstrip("/")
        command: list[str | Path] = [PYTHON, ROOT / "tests" / "clients" / "sdks.py", url, *names]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        sessions = (await service.get("/sessions"))["items"]
    for name, (question, answer, city) in json.loads(done.stdout.splitlines()[-1]).items():
        assert f"itm-{name}" in question, name
        assert (answer, city) == (f"{name} is gone.", "Roma"), name
    assert sorted(shelf.effects) == sorted(f"delete itm-{name}" for name in names)
    assert len(sessions) == 2 * len(names)
