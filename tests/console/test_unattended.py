"""The page of what happens unattended, by clicks: schedules, promises, triggers, and what waits for a yes."""

import base64
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from segue.config import Settings
from segue.turns.jobs.webhooks import signatures
from tests.support.browsing import DESK, PHONE, Browsing, Window
from tests.support.health import connect
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf

SEALING = base64.urlsafe_b64encode(bytes(range(32))).decode()
REPORT = "Report on the <b>mails</b> of last week"
ROME = "Europe/Rome"
LANGUAGES = ("en", "it", "zh", "ar")
TOO_WIDE = "() => { const page = document.querySelector('.page'); return page.scrollWidth > page.clientWidth }"


@pytest.fixture
async def service(settings: Settings, shelf: Shelf) -> AsyncIterator[Client]:
    connect(settings, shelf)
    async with running(settings.model_copy(update={"mcp_token_key": SecretStr(SEALING)})) as served:
        await served.connected("shelf")
        yield served


@pytest.fixture
async def window(service: Client, browsing: Browsing) -> Window:
    return await browsing.open(address(service), "#/scheduled", timezone_id=ROME)


def address(service: Client) -> str:
    return str(service.http.base_url).rstrip("/")


async def scheduled(service: Client, **given: Any) -> dict[str, Any]:
    body = {"new_session": True, "message": REPORT, "time_zone": ROME, **given}
    response = await service.http.post("/schedules", json=body)
    assert response.status_code == 201, response.text
    schedule: dict[str, Any] = response.json()
    return schedule


async def choose(window: Window, entry: str) -> None:
    await window.press(f"More for “{REPORT}”")
    await window.page.get_by_role("menuitem", name=entry).click()


async def only(service: Client, path: str) -> dict[str, Any]:
    [found] = (await service.get(path))["items"]
    assert isinstance(found, dict)
    return found


@pytest.mark.sweep
async def test_a_schedule_is_made_run_changed_paused_resumed_and_deleted(
    service: Client, window: Window, provider: Provider
) -> None:
    session = await service.new_session(title="Weekly")
    await window.page.reload()
    await window.sees("Nothing is scheduled yet")
    await window.press("New schedule")
    await window.page.get_by_label("What is to be said").fill(REPORT)
    await window.page.get_by_role("combobox", name="When").select_option(label="Every week")
    await window.page.get_by_label("Thursday").check()
    await window.page.get_by_label("Time", exact=True).fill("08:30")
    await window.page.get_by_role("combobox", name="Where").select_option(label="Weekly")
    await window.press("Save")
    row = window.page.get_by_role("listitem").filter(has_text=REPORT)
    await row.get_by_text("every Monday and Thursday at 08:30").wait_for()
    await row.get_by_role("link", name="Weekly").wait_for()
    made = await only(service, "/schedules")
    assert (made["cron"], made["time_zone"], made["session_id"]) == ("30 8 * * MON,THU", ROME, session)

    provider.will(says("Nothing new."))
    await row.get_by_role("button", name="Run now").click()
    await row.get_by_role("link", name="last").click()
    await window.sees("Nothing new.")
    await window.page.go_back()

    await choose(window, "Edit")
    await window.page.get_by_role("combobox", name="When").select_option(label="Every day")
    await window.press("Save")
    await row.get_by_text("every day at 08:30").wait_for()
    await choose(window, "Pause")
    await row.get_by_text("Paused").wait_for()
    assert (await only(service, "/schedules"))["next_at"] is None
    await choose(window, "Resume")
    await row.get_by_text("Active").wait_for()
    assert (await only(service, "/schedules"))["cron"] == "30 8 * * *"
    await choose(window, "Delete")
    await window.press("Delete", exact=True)
    await window.sees("Nothing is scheduled yet")
    assert (await service.get("/schedules"))["items"] == []


@pytest.mark.sweep
async def test_a_trigger_shows_its_secret_once_takes_events_and_is_rolled_paused_and_deleted(
    service: Client, window: Window, provider: Provider
) -> None:
    await window.press("New trigger")
    await window.page.get_by_label("What is to be said").fill(REPORT)
    await window.press("Save")
    secret = await window.page.locator(".secret code").first.inner_text()
    await window.press("I have kept it")
    made = await only(service, "/triggers")
    await window.page.get_by_text(made["url"]).wait_for()
    assert await window.page.get_by_text(secret).count() == 0
    assert await window.page.get_by_text("Nothing is scheduled yet").count() == 1

    provider.will(says("Read."))
    at, body = int(time.time()), b'{"mails": 3}'
    signed = signatures([base64.b64decode(secret.removeprefix("whsec_"))], "msg_1", at, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signed}
    taken = await service.http.post(f"/hooks/{made['id']}", content=body, headers=headers)
    assert taken.status_code == 202, taken.text
    session = (await only(service, "/sessions"))["id"]
    await service.ended(session)

    await choose(window, "New secret")
    await window.page.get_by_role("dialog").get_by_role("button", name="New secret").click()
    assert await window.page.locator(".secret code").first.inner_text() != secret
    await window.press("I have kept it")
    await choose(window, "Pause")
    await window.page.get_by_label("Triggers").get_by_text("Paused").wait_for()
    assert (await only(service, "/triggers"))["status"] == "paused"
    await choose(window, "Delete")
    await window.press("Delete", exact=True)
    await window.page.get_by_text(made["url"]).wait_for(state="hidden")
    assert (await service.get("/triggers"))["items"] == []


@pytest.mark.sweep
async def test_what_waits_is_counted_with_links_as_it_comes(
    service: Client, window: Window, provider: Provider
) -> None:
    await window.sees("Nothing is scheduled yet")
    for count in ("1 waits for you", "2 wait for you"):
        session = await service.new_session()
        provider.will(calls(("mcp_delete_item", {"item_id": "itm-9"})))
        await service.chat(session, "Delete item 9")
        waiting = window.page.get_by_role("region", name=count)
        await waiting.locator(f"a[href='#/sessions/{session}']").wait_for()
    await waiting.locator(f"a[href='#/sessions/{session}']").click()
    await window.page.get_by_role("region", name="Waits for you").wait_for()


@pytest.mark.sweep
async def test_a_promise_is_told_from_what_the_user_has_set(
    service: Client, window: Window, provider: Provider
) -> None:
    provider.will(calls(("promise", {"what": "call Rossi", "at": "2099-01-05T09:00"})), says("⏰ I will."))
    session = await service.new_session(title="Rossi", time_zone=ROME)
    await service.chat(session, "Remind me to call Rossi")
    row = window.page.get_by_role("listitem").filter(has_text="once, 5 Jan 2099, 09:00")
    await row.get_by_text("promised by the assistant").wait_for()


@pytest.mark.sweep
async def test_only_what_was_changed_is_sent_as_an_rrule_counts_anew(service: Client, window: Window) -> None:
    rule = "FREQ=WEEKLY;INTERVAL=2;BYHOUR=9;BYMINUTE=0"
    await scheduled(service, rrule=rule, until="2099-01-01T00:00:30+01:00")
    await window.page.reload()
    sent: list[Any] = []
    window.page.on("request", lambda each: sent.append(each.post_data_json) if each.method == "PATCH" else None)
    await choose(window, "Edit")
    await window.page.get_by_label("What is to be said").fill(f"{REPORT}, briefly")
    await window.press("Save")
    await window.sees(f"{REPORT}, briefly")
    assert sent == [{"message": f"{REPORT}, briefly"}]
    assert (await only(service, "/schedules"))["until"].startswith("2098-12-31T23:00:30")


@pytest.mark.sweep
async def test_what_cannot_be_followed_is_said_and_the_form_stays(service: Client, window: Window) -> None:
    await window.press("New schedule")
    await window.page.get_by_label("What is to be said").fill(REPORT)
    await window.page.get_by_role("combobox", name="When").select_option(label="Once")
    await window.page.get_by_label("Day and time").fill("2020-01-01T09:00")
    await window.press("Save")
    await window.sees("These values do not fit. Correct them and try again.")
    assert await window.page.get_by_label("What is to be said").input_value() == REPORT
    assert (await service.get("/schedules"))["items"] == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"cron": "5 9 * * *"}, ("every day at 09:05", "ogni giorno alle 09:05", "每天 09:05", "كل يوم الساعة 09:05")),
        (
            {"cron": "0 9 * * mon-fri"},
            ("Monday to Friday at", "dal lunedì al venerdì alle", "星期一至星期五", "من الاثنين إلى الجمعة"),
        ),
        (
            {"cron": "0 9 * * 0,1"},
            ("every Monday and Sunday", "ogni lunedì e domenica", "每星期一和星期日", "الاثنين والأحد"),
        ),
        ({"cron": "*/15 * * * *"}, ("every 15 minutes", "ogni 15 minuti", "每 15", "15 دقيقة")),
        ({"cron": "0 9 L * *"}, ("every month on the last day", "ogni mese l'ultimo giorno", "最后一天", "آخر يوم")),
        ({"cron": "0 9 * * MON#1"}, ("0 9 * * MON#1",) * 4),
        ({"cron": "0 9 1 1 *"}, ("0 9 1 1 *",) * 4),
        (
            {"rrule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU;BYHOUR=7;BYMINUTE=30"},
            ("every 2 weeks on Tuesday at 07:30", "ogni 2 settimane di martedì alle 07:30", "每 2", "الثلاثاء"),
        ),
        ({"rrule": "FREQ=MONTHLY;BYDAY=-1FR"}, ("FREQ=MONTHLY;BYDAY=-1FR",) * 4),
        ({"rrule": "FREQ=DAILY;COUNT=3"}, ("FREQ=DAILY;COUNT=3",) * 4),
        ({"rrule": "FREQ=HOURLY"}, ("every hour", "ogni ora", "每小时", "كل ساعة")),
    ],
)
async def test_when_it_is_due_is_said_in_words_of_the_language_or_as_it_is_written(
    service: Client, browsing: Browsing, rule: dict[str, str], words: tuple[str, ...]
) -> None:
    await scheduled(service, **rule)
    for language, said in zip(LANGUAGES, words, strict=True):
        window = await browsing.open(address(service), "#/scheduled", locale=language, timezone_id=ROME)
        await window.page.locator(".due .when", has_text=said).wait_for()


@pytest.mark.sweep
async def test_what_an_rrule_leaves_out_is_taken_from_when_it_is_due_next(service: Client, window: Window) -> None:
    made = await scheduled(service, rrule="FREQ=WEEKLY", time_zone="Asia/Tokyo")
    await window.page.reload()
    said = await window.page.locator(".due .when").inner_text()
    options = "{timeZone: 'Asia/Tokyo', weekday: 'long'}"
    day = await window.page.evaluate(
        f"at => new Intl.DateTimeFormat('en', {options}).format(new Date(at))", made["next_at"]
    )
    assert said.startswith(f"every {day} at ")
    assert said.endswith("(Asia/Tokyo)")


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
async def test_axe_finds_nothing_serious_with_all_that_there_may_be_in_any_language(
    service: Client, browsing: Browsing, provider: Provider, scheme: str, viewport: Any
) -> None:
    session = await service.new_session(title="Weekly " * 20)
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-9"})))
    await service.chat(session, "Delete item 9")
    await scheduled(service, cron="0 9 * * MON,WED,SUN", message="W" * 300)
    paused = await scheduled(service, rrule="FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=9;BYMINUTE=0")
    await service.http.patch(f"/schedules/{paused['id']}", json={"status": "paused"})
    for place in ({"new_session": True}, {"session_id": session}):
        assert (await service.http.post("/triggers", json={"message": REPORT, **place})).status_code == 201
    found: dict[str, Any] = {}
    for language in LANGUAGES:
        window = await browsing.open(
            address(service), "#/scheduled", locale=language, color_scheme=scheme, viewport=viewport
        )
        await window.page.locator(".triggers .one").nth(1).wait_for()
        await window.page.locator(".due .one.paused").wait_for()
        await window.page.locator(".card.warn").wait_for()
        found[language] = [*await window.axe(), *["too wide"] * await window.page.evaluate(TOO_WIDE)]
        await window.page.locator(".actions .button").click()
        await window.page.locator("dialog select").first.select_option("week")
        found[f"{language}, form"] = await window.axe()
    assert {each: faults for each, faults in found.items() if faults} == {}
