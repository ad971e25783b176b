"""The memory page by clicks: what is known is read, added, changed, found and forgotten, taken along and erased."""

import json
from pathlib import Path

import pytest

from segue.config import Settings
from tests.support.browsing import Browsing, Window
from tests.support.identity import new_key
from tests.support.service import running


@pytest.mark.sweep
async def test_a_fact_is_added_changed_found_and_forgotten(page: Window) -> None:
    await page.go("#/memory")
    await page.press("Add a fact")
    await page.page.get_by_label("Fact", exact=True).fill("I take the <b>night</b> train")
    await page.page.get_by_label("Kind").select_option("preference")
    await page.press("Save")
    fact = page.page.get_by_role("listitem").filter(has_text="I take the <b>night</b> train")
    await fact.get_by_text("Preference").wait_for()
    await fact.get_by_role("button", name="Change").click()
    await page.page.get_by_label("Fact", exact=True).fill("I take the morning train")
    await page.press("Save")
    changed = page.page.get_by_role("listitem").filter(has_text="I take the morning train")
    await changed.wait_for()
    await page.page.get_by_label("Search what is known about me").fill("train")
    await changed.get_by_role("button", name="Forget").click()
    await page.press("Forget", exact=True)
    await page.sees("Nothing found")


@pytest.mark.sweep
async def test_a_standing_approval_shows_its_bounds_and_is_revoked(settings: Settings, browsing: Browsing) -> None:
    bounds = {"url": {"prefix": "https://acme.example/"}}
    terms = {"tool": "web_fetch", "scope": "user", "args": bounds, "uses": {"total": 3}, "unattended": True}
    async with running(settings) as service:
        assert (await service.http.post("/mandates", json=terms)).status_code == 201
        window = await browsing.open(str(service.http.base_url).rstrip("/"), "#/memory")
        shown = window.page.get_by_label("Standing approvals")
        await shown.get_by_text("url ^= https://acme.example/").wait_for()
        await shown.get_by_text("in all chats · used 0/3, today 0 · also when you are not there").wait_for()
        await shown.get_by_role("button", name="Revoke").click()
        await shown.wait_for(state="hidden")
        assert (await service.get("/mandates"))["items"] == []


@pytest.mark.sweep
async def test_all_that_is_mine_is_taken_along_and_erased_with_the_key(
    settings: Settings, browsing: Browsing, tmp_path: Path
) -> None:
    guarded = settings.model_copy(update={"auth": "api_key", "openai_base_url": None})
    async with running(guarded) as service:
        window = await browsing.open(str(service.http.base_url).rstrip("/"), "#/memory")
        await window.page.get_by_role("textbox", name="API key").fill(await new_key(guarded, "ada"))
        await window.press("Continue")
        await window.sees("Nothing is known about you yet")
        await window.press("Your data")
        async with window.page.expect_download() as saving:
            await window.page.get_by_role("menuitem", name="Export all that is mine").click()
        await (await saving.value).save_as(tmp_path / "mine")
        rows = [json.loads(line) for line in (tmp_path / "mine").read_text("utf-8").splitlines()]
        assert [row["row"]["owner"] for row in rows if row["table"] == "api_keys"] == ["ada"]
        await window.press("Your data")
        await window.page.get_by_role("menuitem", name="Erase me").click()
        erase = window.page.get_by_role("dialog").get_by_role("button", name="Erase me")
        await window.page.get_by_label("Type “ada” to confirm").fill("bob")
        assert await erase.is_disabled()
        await window.page.get_by_label("Type “ada” to confirm").fill("ada")
        await window.page.evaluate("localStorage.setItem('segue.draft.ada.new', JSON.stringify({text: 'my secret'}))")
        await erase.click()
        await window.sees("This service asks for an API key.")
        assert "my secret" not in await window.page.evaluate("JSON.stringify({...localStorage})")
