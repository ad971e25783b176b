"""Streams of events held against AG-UI's own verifier, of both versions of its client.

CI holds one conversation against it; `make proof-agui` all streams that the tests of the events read.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import needs_node, node
from tests.support.provider import Provider, calls, says
from tests.support.service import Client
from tests.support.streams import RECORDS, replayed, streamed

HEARD = os.environ.get("AGUI_HEARD", "")

pytestmark = needs_node


async def verified(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await node("verify.mjs", file))
    return found


@pytest.mark.sweep
async def test_a_conversation_with_a_call_and_a_replay_of_it_are_streams_as_the_verifier_of_ag_ui_wants_them(
    client: Client, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = tmp_path / "heard"
    monkeypatch.setenv(RECORDS, str(heard))
    provider.will(calls(("current_time", {})), says("Noon."))
    session = await client.new_session()
    sent = await streamed(client, session, "What time is it?")
    await replayed(client, session, sent[0].event["runId"])
    found = await verified(heard)
    assert [(each["valid"], each["faults"]) for each in found.values()] == [(2, [])] * 2
    [whole, *_] = heard.read_text("utf-8").splitlines()
    cut_off = json.loads(whole)
    cut_off["events"] = [each for each in cut_off["events"] if each["type"] != "STEP_FINISHED"]
    heard.write_text(json.dumps(cut_off), "utf-8")
    [told] = {each["faults"][0]["fault"].partition(":")[0] for each in (await verified(heard)).values()}
    assert told == "Cannot send 'RUN_FINISHED' while steps are still active"


@pytest.mark.skipif(not HEARD, reason="it reads what the tests of the events heard: make proof-agui")
async def test_all_streams_are_as_the_verifier_of_ag_ui_wants_them(capsys: pytest.CaptureFixture[str]) -> None:
    found = await verified(Path(HEARD))
    with capsys.disabled():
        print("\n", {client: (each["valid"], each["events"]) for client, each in found.items()})  # noqa: T201 (the table)
    assert [fault for each in found.values() for fault in each["faults"]] == []
