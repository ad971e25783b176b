"""`segue init`: what it writes is what the service reads, and what is there is never written over."""

import os
import re
import subprocess
import sys
from pathlib import Path

from dotenv import dotenv_values

from segue.agents_config import read_agents_file
from segue.config import Settings
from segue.mcp.mcp_config import read_mcp_config
from tests.support.commands import ROOT, segue


def test_the_files_it_writes_are_read_and_change_nothing(tmp_path: Path) -> None:
    code, said = segue("init", str(tmp_path))
    assert code == 0, said
    assert sorted(path.name for path in tmp_path.iterdir()) == [".env", "agents.toml", "mcp.json"]
    given = dotenv_values(tmp_path / ".env")
    assert given.keys() == {name.upper() for name in Settings.model_fields}
    assert Settings(_env_file=tmp_path / ".env") == Settings(_env_file=None)
    assert all(server.off for server in read_mcp_config(tmp_path / "mcp.json").servers.values())
    agents = tmp_path / "agents.toml"
    assert not read_agents_file(agents).agents
    agents.write_text(re.sub("(?m)^# (?!Two agents)", "", agents.read_text("utf-8")), "utf-8")
    assert read_agents_file(agents).agents == read_agents_file(ROOT / "examples" / "agents.toml").agents
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_a_file_that_is_there_stays_as_it_is_and_the_others_are_written(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-mine")
    (tmp_path / "mcp.json").symlink_to(tmp_path / "elsewhere.json")
    code, said = segue("init", str(tmp_path))
    assert code == 0, said
    assert said.count("stays as it is") == 2
    assert (tmp_path / ".env").read_text() == "OPENAI_API_KEY=sk-mine"
    assert not (tmp_path / "elsewhere.json").exists()
    assert (tmp_path / "agents.toml").is_file()


def test_what_the_encoding_of_the_output_cannot_show_is_replaced(tmp_path: Path) -> None:
    (folder := tmp_path / "\u043f\u043e\u0447\u0442\u0430").mkdir()
    command, latin = [sys.executable, "-m", "segue", "init", str(folder)], {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=ROOT, env=latin, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, f"{tmp_path}/?????/mcp.json: the MCP servers" in done.stdout) == (0, True), done.stderr


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    code, said = segue("init", str(tmp_path / "nowhere"), COLUMNS="500")
    assert code == 2
    assert "nowhere" in said
