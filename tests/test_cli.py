"""The command line: what it refuses, and that it says how to go on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backend.cli import app
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


def refused(**environment: str) -> str:
    """What `segue serve` says of settings it does not even start with."""
    result = CliRunner().invoke(app, ["serve"], env={**environment, "OPENAI_API_KEY": "sk-canary"})
    assert result.exit_code == 2
    assert "sk-canary" not in result.output
    return result.output


def test_serving_the_network_without_identity_is_refused_with_the_way_out() -> None:
    assert "ALLOW_ANONYMOUS=true" in refused(AUTH="none", HOST="0.0.0.0")  # noqa: S104 (it is what is refused)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"PORT": "many"}, "PORT"),
        ({"LLM_TIMEOUT_S": "-1"}, "LLM_TIMEOUT_S"),
        ({"WEB_SEARCH_PROVIDER": "tavily"}, "TAVILY_API_KEY"),
        ({"WEB_SEARCH_PROVIDER": "searxng"}, "SEARXNG_URL"),
        ({"PLANNING": "perhaps"}, "PLANNING"),
    ],
)
def test_a_setting_that_cannot_be_is_named(environment: dict[str, str], named: str) -> None:
    assert named in refused(**environment)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("migrate",)])
def test_a_data_folder_that_cannot_be_written_is_a_sentence_that_says_what_to_do(command: tuple[str, ...]) -> None:
    code, said = segue(*command, DATA_DIR="/proc/nowhere")
    assert code != 0
    assert "Set DATA_DIR" in said
    assert "Traceback" not in said


def test_a_database_that_is_not_there_is_a_sentence_without_its_password() -> None:
    nowhere = {"DATABASE_URL": "postgresql://u:canary@127.0.0.1:1/x", "REDIS_URL": "redis://127.0.0.1:1"}
    code, said = segue("serve", "--port", "0", **nowhere)
    assert code != 0
    assert "cannot be reached" in said
    assert "canary" not in said


def test_with_urls_the_embedded_servers_are_not_even_imported(tmp_path: Path) -> None:
    script = tmp_path / "imports.py"
    script.write_text("import sys, backend.cli; print([name for name in sys.modules if 'backend.embedded' in name])")
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_migrate_brings_the_embedded_database_up_and_leaves_nothing_running(tmp_path: Path) -> None:
    code, said = segue("migrate", DATA_DIR=str(tmp_path / "data"))
    assert (code, "newest revision" in said) == (0, True)
    running = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False, timeout=10)
    assert running.stdout == ""
