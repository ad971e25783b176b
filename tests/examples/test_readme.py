"""What a reader can paste works as it stands, on one service started as a newcomer does: embedded stores, no model."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from segue.agent.prompts import TIME_OF_DAY
from segue.around.embedded.server_urls import ServerUrls
from tests.support.commands import ROOT, python
from tests.support.mailbox import write_mailbox_config
from tests.support.provider import Provider, says
from tests.support.service import Client, Process
from tests.support.sweeps import first

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {
    page.relative_to(ROOT).as_posix(): re.findall(
        r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for page in PAGES
}
OWN_SERVICE = {"docs/extend.md"}  # `test_extend.py` starts it
PASTED = {
    page: [block for block in blocks if not block.startswith("make ")]
    for page, blocks in BLOCKS.items()
    if page not in OWN_SERVICE
}
TARGETS = {
    line.split()[1]
    for blocks in BLOCKS.values()
    for block in blocks
    for line in block.splitlines()
    if line.startswith("make ")
}
TESTS = ROOT / "tests"
NAMED_FROM = [ROOT, ROOT / "backend" / "segue", TESTS, ROOT / "docs", ROOT / "bench", ROOT / "examples"]

TOOL_CHANGES = [
    ["maintenance → available", "reset"],
    ["failed → maintenance", "set_by_person"],
    ["available → failed", "consecutive_failures"],
]


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    settings: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def segue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`segue serve` with nothing configured but where its data and the mails it sends go, and the example's agents."""
    folder = tmp_path_factory.mktemp("data")
    config, _ = write_mailbox_config(folder)
    settings = {"DATA_DIR": str(folder), "MCP_CONFIG": str(config), "AGENTS_CONFIG": "examples/agents.toml"}
    process = Process(settings)
    url = process.start()
    process.wait_for("mcp_server_ready")
    yield Served(url, settings, folder)
    assert process.stop() == 0


def run(script: str, segue: Served) -> str:
    """What a terminal shows that stands in a checkout, with PORT set as for the service."""
    local = script.replace(".venv/bin/segue", shlex.join([*python(), "-m", "segue"]))
    inherited = {name: value for name, value in os.environ.items() if name != "SEGUE"}
    own = {
        "PORT": segue.url.rpartition(":")[2],
        "XDG_STATE_HOME": str(segue.folder),
        "MAILBOX_OFFLINE": str(segue.folder / "offline"),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", local],
        cwd=ROOT,
        env={**inherited, **segue.settings, **own},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.sweep
def test_the_tour_sees_a_tool_fail_takes_it_out_and_gives_it_back(segue: Served) -> None:
    """First: it counts the sessions of the service."""
    said = run("examples/ops-tour.sh", segue)
    tools, new, failed, fleet, maintenance, back, history = said.split("\n== ")[1:]
    assert "mcp_search_emails (read_only, mcp:mailbox)" in tools
    assert "available, available: True, failures in a row: 0" in new
    assert "failed, available: False, failures in a row: 3, The mail server cannot be reached." in failed
    assert "available: False, It has failed in several sessions., sessions: {'failed': 3}" in fleet
    assert fleet.count("consecutive_failures, to be tried again at ") == 3
    assert "maintenance, available: False" in maintenance
    assert "available, available: True, failures in a row: 0, None" in back
    assert "available: True, None, sessions: {'available': 1, 'failed': 2}" in back
    assert "eml-" in back
    assert [line.split("  ")[1:3] for line in history.splitlines()[1:]] == TOOL_CHANGES
    assert not (segue.folder / "offline").exists()


def test_the_pages_have_commands_to_paste_and_to_make() -> None:
    assert len(PASTED["README.md"]) >= 3
    assert {"run", "test", "check"} <= TARGETS


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_make_target_it_names_exists(target: str) -> None:
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, check=True, timeout=30)


@pytest.mark.parametrize("page", first(3, (page for page, blocks in PASTED.items() if blocks)))
def test_the_blocks_of_a_page_run_as_pasted_one_after_another(page: str, segue: Served) -> None:
    said = run("\n".join(PASTED[page]), segue)
    assert said
    if page == "README.md":
        in_english, in_italian = said.split("Shall I open the first one")[1], said.split("Vuoi che apra la prima")[-1]
        assert "Gentile dottoressa Conti" in in_english
        assert "Gentile dottoressa Conti" in in_italian


@pytest.mark.sweep
async def test_the_two_agents_of_their_page_stay_with_their_sessions_and_a_killed_turn_with_its_own(
    servers: ServerUrls, database_url: str, provider: Provider, tmp_path: Path
) -> None:
    config, _ = write_mailbox_config(tmp_path)
    agents = shutil.copy(ROOT / "examples" / "agents.toml", tmp_path)
    own = {"DATABASE_URL": database_url, "REDIS_URL": servers.redis_url, "MCP_CONFIG": str(config)}
    model = {"OPENAI_BASE_URL": provider.base_url, "LLM_MODEL": "scripted"}
    process = Process({**own, **model, "AGENTS_CONFIG": str(agents), "TURN_LEASE_S": "3", "MIGRATE_ON_START": "false"})
    never = asyncio.Event()

    async def stays_away(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    provider.will(says("No mail."), says("A fine day."))
    async with _client(process) as client:
        served = Served(str(client.http.base_url), {**own, "AGENTS_CONFIG": str(agents)}, tmp_path)
        await asyncio.to_thread(run, "\n".join(PASTED["docs/agents.md"]), served)
        mail, facts = provider.requests
        assert [mail["model"], facts["model"]] == ["gpt-5-mini", "gpt-5-nano"]
        assert "mailbox of local" in mail["messages"][0]["content"]
        assert "three sentences" in facts["messages"][0]["content"]
        assert "mcp_send_email" in str(mail["tools"])
        assert "mcp_" not in str(facts["tools"])
        _declare(agents, '[agents.librarian]\ntolls = "typo"')
        os.kill(process.pid, signal.SIGHUP)
        await asyncio.to_thread(process.wait_for, "agents_refused")
        session = await client.new_session(agent="librarian")
        provider.will(stays_away)
        await client.send(session, "Who was Rossi?", background=True)
        await provider.wait_for_requests(3)
        assert (await client.http.patch(f"/sessions/{session}", json={"agent": "segue"})).status_code == 200
    shutil.copy(ROOT / "examples" / "agents.toml", tmp_path)
    provider.will(says("A painter."), says("As I said."))
    async with _client(process) as client:
        assert (await client.ended(session))[0]["answer"]["message"]["content"] == "A painter."
        await client.chat(session, "Who else?")
        kept = [each["agent"] for each in (await client.get("/sessions"))["items"]]
        assert kept == ["segue", "postmaster", "postmaster"]
    cut_off, goes_on, after = provider.requests[2:]
    assert _timeless(goes_on) == _timeless(cut_off)
    assert (cut_off["model"], after["model"]) == ("gpt-5-nano", "scripted")


def _timeless(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "messages": [TIME_OF_DAY.sub(r"\1", str(message["content"])) for message in request["messages"]]}


@asynccontextmanager
async def _client(process: Process) -> AsyncIterator[Client]:
    """Leaving it is kill -9."""
    url = await asyncio.to_thread(process.start)
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
            await asyncio.to_thread(process.wait_for, "mcp_server_ready")
            yield Client(http)
    finally:
        process.kill()


def _declare(path: str | Path, text: str) -> None:
    Path(path).write_text(text)


def test_the_first_conversation_searches_hears_a_yes_and_reads_the_mail(segue: Served) -> None:
    searched, read = run("examples/first-conversation.sh", segue).split("> sì, grazie")
    [newest] = re.findall(r"\((eml-[0-9a-f]{6})\)", searched)[:1]
    assert newest in searched
    assert "Gentile dottoressa Conti" in read


def test_every_script_is_executable() -> None:
    assert all(os.access(script, os.X_OK) for script in Path(ROOT / "examples").glob("*.sh"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_empty_line_cuts_a_table_of_a_page_in_two(page: Path) -> None:
    assert re.findall(r"^\|.*\n\n(\|.*)\n(?!\|[-:| ]+\|$)", page.read_text("utf-8"), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.py|\.toml|\.sh|\.md|\.json))`", page.read_text("utf-8"))
    missing = {name for name in named if not any((base / name).exists() for base in NAMED_FROM)}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]+\.py)::(\w+)", page.read_text("utf-8")))
    missing = {(file, test) for file, test in named if not any(_has(path, test) for path in TESTS.glob(f"**/{file}"))}
    assert missing == set()


def _has(path: Path, test: str) -> bool:
    return bool(re.search(rf"^ *(?:async def|def|class) {test}\b|^{test} =", path.read_text("utf-8"), re.MULTILINE))


def test_the_map_of_the_code_has_every_room_and_every_module_beside_them() -> None:
    package = ROOT / "backend" / "segue"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    modules = {path.stem for path in package.glob("[!_]*.py")} - {"version"}
    named = re.findall(r"^\| (`.+?`) \|", (ROOT / "docs" / "how-it-works.md").read_text("utf-8"), re.MULTILINE)
    assert {each for row in named for each in re.findall("`(.+?)`", row)} >= rooms | modules
