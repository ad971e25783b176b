"""The tour of ops through the tools, on the service a newcomer starts: embedded servers, offline model."""

import os
import subprocess
from pathlib import Path

from tests.support.mailbox import write_mailbox_config
from tests.support.service import ROOT, Process


def test_the_tour_sees_a_tool_fail_takes_it_out_and_gives_it_back(tmp_path: Path) -> None:
    config, _ = write_mailbox_config(tmp_path)
    process = Process({"DATA_DIR": str(tmp_path), "MCP_CONFIG": str(config)})
    try:
        environment = {**os.environ, "SEGUE": process.start(), "MAILBOX_OFFLINE": str(tmp_path / "offline")}
        done = subprocess.run(
            [str(ROOT / "examples" / "ops-tour.sh")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        process.stop()
    assert done.returncode == 0, done.stdout + done.stderr
    tools, new, failed, fleet, maintenance, back, history = done.stdout.split("\n== ")[1:]
    assert "mcp_search_emails (read_only, mcp:mailbox)" in tools
    assert "available, available: True, failures in a row: 0" in new
    assert "failed, available: False, failures in a row: 3, The mail server cannot be reached." in failed
    assert "available: False, It has failed in several sessions., sessions: {'failed': 3}" in fleet
    assert fleet.count("consecutive_failures, to be tried again at ") == 3
    assert "maintenance, available: False" in maintenance
    assert "available, available: True, failures in a row: 0, None" in back
    assert "available: True, None, sessions: {'available': 1, 'failed': 2}" in back
    assert "eml-" in back
    changes = [line.split("  ")[1:3] for line in history.splitlines()[1:]]
    assert changes == [
        ["maintenance → available", "reset"],
        ["failed → maintenance", "set_by_person"],
        ["available → failed", "consecutive_failures"],
    ]
    assert not (tmp_path / "offline").exists()
