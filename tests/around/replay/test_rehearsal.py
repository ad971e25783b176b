"""Rehearsals: what another model, agent or mcp.json would do otherwise is told, and nothing of it is done."""

import asyncio
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from segue.around.replay.fake_servers import CannotPlay, RealModel, Trial, replay_config
from segue.around.replay.rehearsal import (
    Effect,
    InvalidLimit,
    RehearsalReport,
    SessionReport,
    effect_differences,
    read_limits,
)
from segue.around.replay.run_replay import rehearse
from segue.config import Settings
from segue.domain.recording import read_recording
from segue.mcp.mcp_config import declared_servers
from tests.support.commands import segue
from tests.support.conversations import export
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf, serving_shelf

ASKED = "Put item 1 aside and write Ada"
NOTE = ("mcp_send_note", {"to": "Ada", "text": "It is yours."})
ASIDE = ("mcp_set_aside", {"item_id": "itm-1"})
FOUND = ("mcp_find_items", {"query": "lamps"})

_recorded: list[str] = []


async def recorded(settings: Settings, provider: Provider, folder: Path) -> tuple[Path, Shelf]:
    """A read and two effects, recorded once; and the shelf that they happened on."""
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        if not _recorded:
            async with running(settings.model_copy(update={"confirm": "never"})) as client:
                session = await client.new_session()
                provider.will(calls(FOUND), calls(ASIDE), calls(NOTE), says("Done."))
                await client.chat(session, ASKED)
                _recorded.append(await export(client, session))
    file = folder / "shelf.json"
    file.write_text(_recorded[0], "utf-8")
    return file, shelf


async def tried(file: Path, provider: Provider, *options: str) -> tuple[int, str]:
    environment = {"OPENAI_BASE_URL": provider.base_url}
    return await asyncio.to_thread(segue, "rehearse", str(file), "--model", "scripted", *options, **environment)


async def test_a_model_that_does_the_same_differs_in_no_effect(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    file, shelf = await recorded(settings, provider, tmp_path)
    before = list(shelf.effects)
    provider.will(calls(FOUND), calls(ASIDE), calls(NOTE), says("I have done both."))
    code, said = await tried(file, provider, "--fail-on", "missing,new,args,failed,questions,tokens:+10%")
    assert code == 0, said
    print(said)
    assert shelf.effects == before
