"""The recorded conversation among the examples plays as it stands, its service killed between the turns."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ROOT, piped

RECORDING = ROOT / "examples" / "recordings" / "inventory.json"


@pytest.mark.sweep
def test_it_replays_as_recorded_through_restarts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = piped(
        "",
        *("replay", str(RECORDING), "--restart-between-turns", "--json"),
        TMPDIR=str(tmp_path),
        CONFIRM="always",
        OPENAI_BASE_URL="http://127.0.0.1:1/v1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["differs"], report["restarts"]) == (False, 2)
    [recording] = report["recordings"]
    assert (recording["turns"], recording["calls"], recording["arrived"]) == (3, 6, 6)
    assert list(tmp_path.iterdir()) == []
    running = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False, timeout=10)
    assert running.stdout == ""
