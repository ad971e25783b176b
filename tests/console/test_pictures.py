"""The pictures in README.md and docs/, of a running console: `make pictures` takes them anew."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsing import ASK, DESK, PHONE, Browsing, Window
from tests.support.commands import ROOT

FOLDER = ROOT / "docs" / "pictures"
TALLER = {"width": 1280, "height": 860}
AT_MOST = 200_000
WAITS_FOR = "marco.rossi@rossi-ottica.example"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE},
    "arabic": {"locale": "ar"},
}
REASON = "The mail server moves tonight"
KNOWN = "Marco Rossi delivers the lenses"


def named_in_the_docs() -> set[str]:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return {name for page in pages for name in re.findall(r"pictures/([\w-]+\.png)", page.read_text("utf-8"))}


def test_each_picture_in_the_docs_is_there_and_each_there_is_shown() -> None:
    there = {file.name: file.stat().st_size for file in FOLDER.glob("*.png")}
    assert there.keys() == named_in_the_docs()
    assert [name for name, size in there.items() if size > AT_MOST] == []


@pytest.mark.skipif("PICTURES" not in os.environ, reason="it makes docs/pictures: make pictures")
async def test_pictures_are_taken(browsing: Browsing, mailbox_service: str) -> None:
    folder = Path(os.environ["PICTURES"])
    first = await browsing.open(mailbox_service, viewport=TALLER)
    turn = await converse(first)
    address = first.page.url.partition("#")[2]
    for name, path, shown, options in (
        ("chat", address, WAITS_FOR, {}),
        ("chat-dark", address, WAITS_FOR, {"color_scheme": "dark"}),
        ("chat-phone", address, WAITS_FOR, {"viewport": PHONE, "device_scale_factor": 1.75}),
        ("chat-arabic", address, WAITS_FOR, {"locale": "ar"}),
        ("memory", "/memory", KNOWN, {"viewport": DESK}),
        ("operations", "/ops", "Time to answer", {}),
        ("operations-dark", "/ops", "Time to answer", {"color_scheme": "dark"}),
        ("timeline", f"/ops/turns/{turn}", "mcp_get_email", {}),
        ("tools", "/tools", REASON, {}),
    ):
        window = await browsing.open(mailbox_service, f"#{path}", **{"viewport": TALLER, **options})
        await window.sees(shown)
        await window.picture(folder / f"{name}.png")


@pytest.mark.skipif("ALL_PICTURES" not in os.environ, reason="it is looked at, not kept: make pictures ALL=folder")
async def test_every_page_is_taken_in_every_look(
    browsing: Browsing, mailbox_service: str, addresses: list[str]
) -> None:
    folder = Path(os.environ["ALL_PICTURES"])
    await converse(await browsing.open(mailbox_service))
    for look, options in LOOKS.items():
        window = await browsing.open(mailbox_service, **options)
        for number, address in enumerate(addresses):
            await window.go(address)
            await window.settled()
            name = re.sub(r"[^a-z]+", "-", address.lower())[:40].strip("-")
            await window.picture(folder / f"{number:02}-{name}-{look}.png")


async def converse(window: Window) -> str:
    """Makes what the pictures show: facts, chats, a tool that is held, a plan that waits. Returns the plan's turn."""
    http = window.page.request
    for content, kind in (
        ("I work at a shop for glasses in Turin", "personal_info"),
        (KNOWN, "contact"),
        ("I want answers in Italian", "preference"),
    ):
        await http.post(f"{window.url}/memories", data={"content": content, "kind": kind})
    held = {"status": "maintenance", "reason": REASON}
    await http.put(f"{window.url}/tool-states/mcp_delete_email", data=held)
    for message in ("Che ore sono?", "Cerca le mail con Ordine", "What time is it in Tokyo?", "查找来自 Rossi 的邮件"):
        session = await (await http.post(f"{window.url}/sessions", data={})).json()
        await http.post(f"{window.url}/sessions/{session['id']}/chat", data={"message": message})
    await window.say(ASK)
    await window.page.get_by_role("region", name="Waits for you").wait_for()
    session_id = window.page.url.rpartition("/")[2]
    [turn] = (await (await http.get(f"{window.url}/sessions/{session_id}/turns")).json())["items"]
    return str(turn["turn_id"])
