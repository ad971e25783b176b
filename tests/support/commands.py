"""The command line as a user runs it, in a process of its own."""

import os
import subprocess
import sys

from tests.support.service import ROOT


def segue(*arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and everything that was printed."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "backend.cli", *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
