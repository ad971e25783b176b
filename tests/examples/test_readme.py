"""What a reader can paste works as it stands, on the service a newcomer starts: embedded servers, offline model."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.mailbox import write_mailbox_config
from tests.support.service import ROOT, Process

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PASTED = [block for block in BLOCKS if not block.startswith("make ")]
TARGETS = [line.split()[1] for block in BLOCKS for line in block.splitlines() if line.startswith("make ")]


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    settings: dict[str, str]


@pytest.fixture(scope="module")
def segue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`segue serve` with nothing configured but where its data and the mails it sends go."""
    folder = tmp_path_factory.mktemp("data")
    config, _ = write_mailbox_config(folder)
    settings = {"DATA_DIR": str(folder), "MCP_CONFIG": str(config)}
    process = Process(settings)
    url = process.start()
    yield Served(url, settings)
    assert process.stop() == 0


def run(script: str, segue: Served) -> str:
    """As pasted in the folder of a checkout, on this service and with the interpreter of the tests."""
    local = script.replace("http://127.0.0.1:8000", segue.url)
    local = local.replace(".venv/bin/segue", f"{sys.executable} -m segue")
    state = {"XDG_STATE_HOME": segue.settings["DATA_DIR"]}
    environment = {**os.environ, **segue.settings, **state, "SEGUE": segue.url}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", local],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_commands_to_paste_and_to_make() -> None:
    assert len(PASTED) >= 2
    assert {"run", "test", "check"} <= set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_it_names_exists(target: str) -> None:
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, check=True, timeout=30)


@pytest.mark.parametrize("block", PASTED)
def test_every_block_runs_as_pasted(block: str, segue: Served) -> None:
    assert run(block, segue)


def test_the_first_conversation_searches_hears_a_yes_and_reads_the_mail(segue: Served) -> None:
    said = run("examples/first-conversation.sh", segue)
    searched, read = said.split("> sì, grazie")
    [newest] = re.findall(r"\((eml-[0-9a-f]{6})\)", searched)[:1]
    assert newest in searched
    assert "Gentile dottoressa Conti" in read


def test_every_script_is_executable() -> None:
    assert all(os.access(script, os.X_OK) for script in Path(ROOT / "examples").glob("*.sh"))
