"""What a page of docs says to paste, run as it stands."""

import asyncio
import re
import shlex
import subprocess

from tests.support.commands import ROOT, python, surroundings


async def pasted(page: str, heading: str, **environment: str) -> tuple[int, str]:
    """The exit code of the first block below a heading, and everything that it prints."""
    below = (ROOT / "docs" / page).read_text("utf-8").partition(f"\n## {heading}\n")[2]
    found = re.search(r"^```sh\n(.*?)^```", below, re.MULTILINE | re.DOTALL)
    assert found, heading
    script = found[1].replace(".venv/bin/segue", shlex.join([*python(), "-m", "segue"]))
    run = subprocess.run
    command = ["bash", "-euo", "pipefail", "-c", script]
    given = {"cwd": ROOT, "env": surroundings(environment), "capture_output": True, "text": True}
    done = await asyncio.to_thread(lambda: run(command, timeout=120, check=False, **given))  # type: ignore[call-overload]
    return done.returncode, done.stdout + done.stderr
