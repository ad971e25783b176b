"""The command line as a user runs it, in a process of its own."""

import subprocess
import sys

from tests.support.service import ROOT, surroundings


def segue(*arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and everything that was printed."""
    done = piped("", *arguments, **environment)
    return done.returncode, done.stdout + done.stderr


def piped(given: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What became of it, with this on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "segue", *arguments],
        cwd=ROOT,
        env=surroundings(environment),
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
