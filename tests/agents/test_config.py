"""What is wrong with `agents.toml` is told before anything starts, a sentence each, with the line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from segue.around.cli import app

DECLARED = '''\
[agents.travel]
name = "Reisebüro"
instructions = """
Today is {date}.
tools = nothing of the kind, this is text
"""
model = "gpt-5"
tools = [
  "mcp_*",
  "current_time",
]
not_tools = ["find_tools"]
'''


def check(folder: Path, text: str, **environment: str) -> tuple[int, list[str]]:
    """The exit code of `segue agents check` for such a file, and the lines it prints, without the file's name."""
    path = folder / "agents.toml"
    path.write_text(text, "utf-8")
    (folder / "mcp.json").write_text('{"mcpServers": {"shelf": {"url": "http://127.0.0.1:9/mcp", "prefix": "mcp_"}}}')
    environment = {"AGENTS_CONFIG": str(path), "MCP_CONFIG": str(folder / "mcp.json"), **environment}
    result = CliRunner().invoke(app, ["agents", "check"], env=environment)
    return result.exit_code, result.output.replace(str(path), "F").splitlines()


def test_a_file_that_can_be_used_is_listed(tmp_path: Path) -> None:
    assert check(tmp_path, DECLARED) == (0, ["segue  Segue", "travel  Reisebüro"])


def test_a_name_that_takes_no_tool_away_is_told_to_the_operator(tmp_path: Path) -> None:
    code, said = check(
        tmp_path, "", DISABLED_TOOLS="web_fetch, web-search, mcp_read_resource, mcp_mail", LOG_FORMAT="json"
    )
    told = [(line["event"], line["tool"]) for line in map(json.loads, said[:-1])]
    assert (code, told) == (0, [("tool_not_disabled", "mcp_mail"), ("tool_not_disabled", "web-search")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agents.a]\n\n# a\ntolls = []\n", "F, line 4: agents.a.tolls is no key of an agent. There are name, "),
        (
            DECLARED.replace("find_tools", "fly"),
            "F, line 12: agents.travel.not_tools names fly, and there is no such tool",
        ),
        ('[agents.a]\nconfirm = "sometimes"\n', "F, line 2: agents.a.confirm should be 'destructive', 'always' or"),
        ('[agents.a]\nconfirm_words = "all"\n', "F, line 2: agents.a.confirm_words should be 'shown' or 'never'"),
        ("[agents.a]\nmax_rounds = 0\n", "F, line 2: agents.a.max_rounds should be greater than or equal to 1"),
        ("[agents.a]\nmax_tool_calls = 2.5\n", "F, line 2: agents.a.max_tool_calls should be a valid integer"),
        ("[agents.a]\nmax_parallel_calls = 101\n", "F, line 2: agents.a.max_parallel_calls should be less than or"),
        ("[agents.a]\ntemperature = -1\n", "F, line 2: agents.a.temperature should be greater than or equal to 0"),
        ('[agents.a]\ntools = [\n "mcp_*",\n 3]\n', "F, line 2: agents.a.tools.1 should be a valid string"),
        ('[agents.a]\ninstructions_file = "a.md"\n', "F, line 2: agents.a.instructions_file names a.md, which cannot"),
        ('[agents.a]\nmodel = "anthropic:x"\n', "F, line 2: agents.a.model is anthropic:x, which needs ANTHROPIC_API"),
        ("[agents.a]\nusers = []\n", "F, line 2: agents.a.users Tuple should have at least 1 item"),
        ("[agents.a]\ngroups = 'staff'\n", "F, line 2: agents.a.groups should be a valid"),
        ("[agents.segue]\ngroups = ['staff']\n", "F, line 2: agents.segue.groups cannot be: it answers in the place"),
        ("[agents.segue]\nusers = ['ada']\n", "F, line 2: agents.segue.users cannot be: it answers in the place"),
        ("[agents.a]\nweb_search = true\n", "F, line 2: agents.a.web_search is true, and WEB_SEARCH_PROVIDER or"),
        ("[agents.A]\n", "F, line 1: agents.A is no id of an agent: lower-case letters"),
        ("\n[agent.a]\n", "F, line 2: agent is not known here: an agent is a table [agents.<id>]."),
        ("agents = 3\n", "F, line 1: agents should be tables [agents.<id>]."),
        ("[agents.a\n", "F is not TOML: Expected ']' at the end of a table declaration (at line 1, column 10)."),
    ],
)
def test_a_fault_is_told_with_its_name_and_line(text: str, said: str, tmp_path: Path) -> None:
    code, [line] = check(tmp_path, text, WEB_SEARCH_PROVIDER="none")
    assert code == 2
    assert line.startswith(said), line


def test_every_fault_is_told_and_a_service_does_not_start_with_them(tmp_path: Path) -> None:
    code, lines = check(tmp_path, "[agents.a]\nx = 1\n[agents.b]\ntools = ['nope']\n")
    assert (code, [line.split(":")[0] for line in lines]) == (2, ["F, line 2", "F, line 4"])
    environment = {"AGENTS_CONFIG": str(tmp_path / "agents.toml"), "MCP_CONFIG": str(tmp_path / "mcp.json")}
    served = CliRunner().invoke(app, ["serve"], env=environment)
    assert (served.exit_code, served.output.count("\n")) == (2, 2)


@pytest.mark.parametrize("name", ["AGENTS_CONFIG", "INSTRUCTIONS_FILE"])
def test_a_file_that_is_named_has_to_be_there(name: str, tmp_path: Path) -> None:
    code, [line] = check(tmp_path, "", **{name: "/nowhere"})
    assert (code, line.startswith(f"{name}=/nowhere ")) == (2, True)
