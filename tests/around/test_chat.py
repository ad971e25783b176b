"""`segue chat` in a process of its own, before a real service: what it shows, what an answer does, how it is left."""

import asyncio
import re
import socket
import subprocess
from pathlib import Path

import pytest

from segue.config import Settings
from tests.support.commands import piped
from tests.support.plans import ASK, THREE_STEPS, planned, reads
from tests.support.provider import Provider, calls, says, streams
from tests.support.proxy import proxied
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.terminal import CTRL_C, on_a_terminal, through_pipes

DELETED = "delete itm-1"
MARKS_PASTED = "\x1b[?2004h"  # asks a terminal to
HIDDEN = "a " * 4_500 + "\u202ethe end\u200b"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Where the last session is remembered."""
    return {"XDG_STATE_HOME": str(tmp_path)}


async def chats(lines: list[str], *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = "".join(f"{line}\n" for line in lines)
    return await asyncio.to_thread(piped, given, "chat", *arguments, **environment)


@pytest.mark.sweep
async def test_one_that_goes_on_shows_the_last_six_messages_of_a_long_conversation(
    service: Client, provider: Provider, home: dict[str, str]
) -> None:
    session = await service.new_session()
    provider.will(*(says(f"answer {number}") for number in range(4)))
    for number in range(4):
        await service.chat(session, f"question {number}")
    again = await chats([], "--session", session, SEGUE_URL=str(service.http.base_url), **home)
    shown = [line for line in again.stdout.splitlines() if "question" in line or "answer" in line]
    assert shown == [line for number in range(1, 4) for line in (f"> question {number}", f"answer {number}")]


async def test_a_conversation_shows_words_calls_and_plans_and_only_a_yes_runs_what_waits(
    service: Client, provider: Provider, shelf: Shelf, home: dict[str, str]
) -> None:
    url = str(service.http.base_url)
    provider.will(
        calls(("mcp_find_items", {"query": "lamps"})), says("三つあります：\x1b[2Jitm-1…"), planned(THREE_STEPS)
    )
    first = await chats(["Which lamps are there?", "", ASK, "", "  "], "--url", url, **home)
    assert first.returncode == 0, first.stderr
    assert '→ mcp_find_items {"query":"lamps"}' in first.stdout
    assert "三つあります：" in first.stdout
    assert "\x1b" not in first.stdout + first.stderr
    for shown in ("[x] 1. Cerca (mcp_find_items)", "[x] 2. Leggi", "[?] 3. Cancella (mcp_delete_item)"):
        assert shown in first.stdout
    assert first.stderr.count("Nothing was decided") == 2
    assert re.search(r"The plan waits until \d{4}-\d\d-\d\d \d\d:\d\d\.\n", first.stderr)
    assert DELETED not in shelf.effects

    note = {"description": "Wri\u202ete", "tool": "mcp_send_note", "args": {"to": "eve", "text": HIDDEN}}
    provider.will(says("Gone."), planned(THREE_STEPS), planned([note, note]))
    lines = ["y", ASK, "n", "/plan", "/sessions", "/tools", "/nonsense", "/memory", ASK, "/plan"]
    again = await chats(lines, "--url", url, **home)
    assert again.returncode == 0, again.stderr
    resumed, _, later = again.stdout.partition("Gone.")
    assert "> Which lamps are there?" in resumed
    assert "[?] 3. Cancella" in resumed
    assert "[?] 3. Cancella" in later
    assert shelf.effects.count(DELETED) == 1
    assert "No plan is open." in again.stderr
    assert "mcp_delete_item (asks first): Delete an item for good." in again.stdout
    assert "There is no /nonsense. /help" in again.stderr
    assert "  mcp_delete_item: " in again.stdout  # of its memory
    [session] = (await service.get("/sessions"))["items"]
    assert session["id"] in again.stdout
    assert session["title"] == "Which lamps are there?"
    asked, _, whole = later.rpartition("Plan, waiting")
    asked = asked.rpartition("Plan, active")[2]
    for shown, letters in ((asked, 2_000), (whole, 4_500)):
        assert "1. Wri‹U+202E›te (mcp_send_note)" in shown
        assert "the end‹U+200B›" in shown
        assert 0 <= shown.count("a") - letters < 100
    assert "su 9009 non sono mostrati; per intero: GET /sessions/" in asked
    plans = (await service.get(f"/sessions/{session['id']}/plans"))["items"]
    assert [plan["status"] for plan in plans] == ["waiting", "cancelled", "completed"]


async def test_what_is_refused_is_one_line_that_says_what_to_do(settings: Settings, home: dict[str, str]) -> None:
    async with running(settings.model_copy(update={"auth": "api_key"})) as service:
        url = str(service.http.base_url)
        refused, with_line_end, unanswered = await asyncio.gather(
            chats(["hello"], "--url", url, "--new", **home),
            chats(["hello"], "--url", url, "--new", SEGUE_API_KEY="not-the-key\n", **home),
            chats(["hello"], "--url", "http://127.0.0.1:1", **home),
        )
    assert (refused.returncode, refused.stdout) == (1, "")
    [line] = [line for line in refused.stderr.splitlines() if "segue keys create" in line]
    assert "SEGUE_API_KEY" in line
    assert line in with_line_end.stderr  # whose line end is none of the key
    assert unanswered.returncode == 2
    assert "Does `segue serve` run there?" in unanswered.stderr


@pytest.mark.sweep
async def test_a_stream_that_is_cut_is_taken_up_where_it_was(
    service: Client, provider: Provider, home: dict[str, str]
) -> None:
    gate = asyncio.Event()
    provider.will(streams("One, two", gate, ", three."))
    upstream = service.http.base_url.port
    assert upstream is not None
    async with proxied(upstream) as proxy, through_pipes("--url", f"http://127.0.0.1:{proxy.port}", **home) as seat:
        seat.types("Count\n")
        await seat.until("One, two")
        await proxy.begin("hangs_up")
        gate.set()
        await proxy.open()
        assert await seat.until(", three.\n") == ""
        assert await seat.left() == 0
        assert seat.seen == ""


@pytest.mark.sweep
async def test_ctrl_c_cancels_the_answer_and_then_leaves(
    service: Client, provider: Provider, home: dict[str, str]
) -> None:
    never = asyncio.Event()
    provider.will(streams("I am think", never), says("Here I am."))
    async with on_a_terminal("--url", str(service.http.base_url), **home) as seat:
        await seat.until("> ")
        seat.types("Think for ever\n")
        await seat.until("I am think")
        seat.types(CTRL_C)
        await seat.until("cancelling")
        await seat.until("> ")
        seat.types("Hello?\n")
        await seat.until("Here I am.")
        await seat.until("> ")
        await seat.presses(CTRL_C, "Ctrl-C again, or /quit, leaves")
        await seat.presses(CTRL_C)
        assert await seat.left() == 130
    never.set()
    [session] = (await service.get("/sessions"))["items"]
    turns = await service.ended(session["id"], 2)
    assert [turn["status"] for turn in turns] == ["cancelled", "completed"]


async def test_only_what_is_typed_once_a_question_stands_there_answers_it(
    service: Client, provider: Provider, shelf: Shelf, home: dict[str, str]
) -> None:
    provider.will(planned(THREE_STEPS), reads("none"), says("A red one."))
    async with on_a_terminal("--url", str(service.http.base_url), **home) as seat:
        assert MARKS_PASTED in await seat.until("> ")
        seat.types(f"{ASK}\ny\n")
        await seat.until("Run step 3? y, n")
        await seat.until("> ")
        seat.types("\x1b[200~Which one is it?\ny\x1b[201~\n")  # as a terminal sends what is pasted
        await seat.until("A red one.")
        await seat.until("Run step 3? y, n")
        await seat.until("> ")
        assert DELETED not in shelf.effects
        seat.types("n\n")
        await seat.until("the plan is cancelled")
        seat.types("/quit\n")
        assert await seat.left() == 0
    [session] = (await service.get("/sessions"))["items"]
    messages = (await service.get(f"/sessions/{session['id']}/messages"))["items"]
    assert [each["content"] for each in messages if each["role"] == "user"][:2] == [ASK, "Which one is it?\ny"]
    [plan] = (await service.get(f"/sessions/{session['id']}/plans"))["items"]
    assert plan["status"] == "cancelled"


@pytest.mark.sweep
async def test_without_a_service_it_starts_one_and_stops_it(tmp_path: Path, home: dict[str, str]) -> None:
    (tmp_path / "none.json").write_text('{"mcpServers": {}}')
    nothing_there = {"PORT": "1", "DATA_DIR": str(tmp_path / "data"), "MCP_CONFIG": str(tmp_path / "none.json")}
    done = await chats(["ciao"], **nothing_there, **home)
    assert done.returncode == 0, done.stderr
    assert "No service answers at http://127.0.0.1:1; starting one" in done.stderr
    assert "offline" in done.stdout
    [port] = re.findall(r"It serves at http://127.0.0.1:(\d+) until", done.stderr)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)
    left = ["pgrep", "-f", str(tmp_path)]
    found = await asyncio.to_thread(subprocess.run, left, capture_output=True, text=True, check=False, timeout=10)
    assert found.stdout == ""
