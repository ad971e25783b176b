"""A session knows what day it is where its user is, and the language to speak."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.responses import Response

from segue import Agent
from segue.agent.prompts import notes_and_message
from segue.config import Settings
from segue.domain.ids import UNKNOWN_ZONE
from tests.support.facts import fact, known, notes
from tests.support.logs import awaiting
from tests.support.plans import Frozen, planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.stores import arrived

KIRITIMATI, LOS_ANGELES = "Pacific/Kiritimati", "America/Los_Angeles"
TOLD = {
    "Remember that my exam is tomorrow": "The exam is tomorrow",
    "Ricorda che domani ho la visita medica": "Domani l'utente ha la visita medica",
    "记住我明天去看牙医": "用户明天去看牙医",
    "تذكر أن عندي موعد مع الطبيب غدا": "عند المستخدم موعد مع الطبيب غدا",
}


async def test_the_same_moment_is_another_day_for_each_user_and_has_their_summer_time(
    settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    moments = {
        datetime(2026, 11, 1, 8, 30, tzinfo=UTC): ("Sunday, 2026-11-01, 22:30", "Sunday, 2026-11-01, 01:30", "-0700"),
        datetime(2026, 11, 1, 10, 30, tzinfo=UTC): ("Monday, 2026-11-02, 00:30", "Sunday, 2026-11-01, 02:30", "-0800"),
    }
    async with running(settings, clock=clock) as client:
        east, west = [await client.new_session(time_zone=zone) for zone in (KIRITIMATI, LOS_ANGELES)]
        for clock.now, (there, here, offset) in moments.items():
            for session, said in (
                (east, f"{there} ({KIRITIMATI}, +1400)"),
                (west, f"{here} ({LOS_ANGELES}, {offset})"),
            ):
                provider.will(calls(("current_time", {})), says("It is."))
                await client.chat(session, "What day is it?")
                assert provider.notes() == f"It is {said}."
                [told] = provider.messages(role="tool")[-1:]
                assert said.split(" (")[1].split(",")[0] in told["content"]


async def test_the_time_told_is_that_of_the_message_however_late_and_wherever_it_is_answered(
    settings: Settings, provider: Provider
) -> None:
    early, late = Frozen(), Frozen()
    late.now += timedelta(hours=3)
    provider.will(says("It is nine."))
    async with running(settings, clock=early, takes_turns=False) as client:
        session = await client.new_session()
        await client.send(session, "What time is it?", background=True)
    async with running(settings, clock=late) as client:
        await client.ended(session)
    assert provider.notes() == f"It is Friday, 2026-11-20, 09:00 ({UNKNOWN_ZONE}, +0000)."


async def test_what_was_said_on_another_day_is_shown_with_the_day_and_time_that_it_was_for_the_user(
    settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    moments = [datetime(2026, 10, 24, 21, 30, tzinfo=UTC) + timedelta(minutes=minutes) for minutes in (0, 15, 45)]
    async with running(settings, clock=clock) as client:
        session = await client.new_session(time_zone="Europe/Rome")
        for clock.now, said in zip(moments, ("The dentist is tomorrow at 9", "Lunch is at noon", "When?"), strict=True):
            provider.will(says("Noted."))
            await client.chat(session, said)
    sent = [[str(each["content"]) for each in request["messages"][1:-1]] for request in provider.requests]
    assert sent[1][0] == "The dentist is tomorrow at 9"
    came = [f"This message came on Saturday, 2026-10-24, {time}." for time in ("23:30", "23:45")]
    assert list(map(notes_and_message, sent[2][::2])) == [(came[0], sent[1][0]), (came[1], "Lunch is at noon")]
    assert provider.notes() == "It is Sunday, 2026-10-25, 00:15 (Europe/Rome, +0200)."


async def test_the_setting_is_the_zone_of_sessions_that_name_none(settings: Settings) -> None:
    async with running(settings.model_copy(update={"time_zone": "Europe/Rome"})) as client:
        session = await client.new_session()
        path = f"/sessions/{session}"
        assert (await client.get(path))["time_zone"] == "Europe/Rome"
        assert (await client.http.patch(path, json={"time_zone": LOS_ANGELES})).json()["time_zone"] == LOS_ANGELES
        assert (await client.http.patch(path, json={"title": "A"})).json()["time_zone"] == LOS_ANGELES
        assert (await client.http.patch(path, json={"time_zone": None})).json()["time_zone"] == "Europe/Rome"


async def test_the_model_is_told_that_the_zone_is_not_known_where_neither_a_client_nor_the_setting_names_one(
    settings: Settings, provider: Provider
) -> None:
    there = Agent(instructions="The user's time zone is {time_zone}.")
    told = []
    async with running(settings, clock=Frozen(), agents={"there": there}) as client:
        session = await client.new_session(agent="there")
        for zone in (..., "Europe/Rome", "UTC", None):
            if zone is not ...:
                await client.http.patch(f"/sessions/{session}", json={"time_zone": zone})
            provider.will(calls(("current_time", {})), says("It is nine."))
            await client.chat(session, "What time is it?")
            told.append(provider.notes())
            shown = (await client.get(f"/sessions/{session}"))["time_zone"]
            assert shown == (zone if isinstance(zone, str) else "UTC")
            assert f'"timezone":"{shown}"' in provider.messages(role="tool")[-1]["content"]
    unknown, rome, utc, unknown_again = told
    assert unknown == unknown_again
    assert "(UTC, since the user's time zone is not known, +0000)" in unknown
    assert "The user's time zone is UTC, since the user's time zone is not known." in unknown
    assert "10:00 (Europe/Rome, +0100)" in rome
    assert utc == "It is Friday, 2026-11-20, 09:00 (UTC, +0000).\n\nThe user's time zone is UTC."


async def test_a_message_of_a_client_that_names_no_zone_is_told_that_of_the_last_one_that_did(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, clock=Frozen()) as client:
        session = await client.new_session()
        await client.http.patch(f"/sessions/{session}", json={"time_zone": "Europe/Rome"})
        provider.will(says("Ten."))
        body = {"model": "segue", "messages": [{"role": "user", "content": "What time is it?"}]}
        door = await client.http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session})
        assert door.status_code == 200
    assert provider.notes() == "It is Friday, 2026-11-20, 10:00 (Europe/Rome, +0100)."


async def test_an_unknown_zone_is_refused_by_name(client: Client) -> None:
    session = await client.new_session()
    for zone in ("Mars/Olympus", "localtime", "europe/rome", "../UTC", "", 2):
        for response in (
            await client.http.post("/sessions", json={"time_zone": zone}),
            await client.http.patch(f"/sessions/{session}", json={"time_zone": zone}),
        ):
            assert response.status_code == 422, zone
            assert "time_zone" in response.text, zone
            assert "Value error" not in response.text, zone


async def test_a_turn_keeps_the_zone_and_the_language_that_its_message_came_in(
    client: Client, provider: Provider, settings: Settings
) -> None:
    go = asyncio.Event()

    async def later(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("One.")

    provider.will(later, says("Two."), says("Three."))
    session = await client.new_session(time_zone=KIRITIMATI, language="it")
    first, second = [asyncio.create_task(client.chat(session, said)) for said in ("one", "two")]
    await provider.wait_for_requests(1)
    await arrived(settings, session, 2)
    await client.http.patch(f"/sessions/{session}", json={"time_zone": LOS_ANGELES, "language": None})
    go.set()
    await asyncio.gather(first, second)
    await client.chat(session, "three")
    zones = [provider.notes(index).partition("(")[2].partition(",")[0] for index in range(3)]
    assert zones == [KIRITIMATI, KIRITIMATI, LOS_ANGELES]
    assert ["language 'it'" in provider.notes(index) for index in range(3)] == [True, True, False]


@pytest.mark.sweep
async def test_what_segue_says_itself_is_in_the_language_of_the_session_or_else_of_the_user(
    client: Client, provider: Provider
) -> None:
    steps: list[dict[str, Any]] = [
        {"id": number, "description": "Time", "tool": "current_time", "args": {}, "requires_confirmation": True}
        for number in (1, 2)
    ]
    for language, opening in ((None, "Shall I go ahead?"), ("it-CH", "Procedo?"), ("sv", "Shall I go ahead?")):
        session = await client.new_session(language=language)
        assert (await client.get(f"/sessions/{session}"))["language"] == language
        provider.will(planned(steps))
        answer = await client.chat(session, "Please tell me the time first, then tell me the time again")
        assert opening in answer["message"]["content"]
    for tag in ("Italian", "i", "it_IT", "it\n", ""):
        assert (await client.http.patch(f"/sessions/{session}", json={"language": tag})).status_code == 422, tag


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("zone", [KIRITIMATI, LOS_ANGELES])
async def test_a_fact_about_tomorrow_is_stored_with_the_date_that_the_user_meant(
    settings: Settings, provider: Provider, zone: str
) -> None:
    clock = Frozen()
    clock.now = datetime(2026, 11, 1, 10, 30, tzinfo=UTC)
    today, tomorrow = (
        ("Monday, 2026-11-02", "2026-11-03") if zone == KIRITIMATI else ("Sunday, 2026-11-01", "2026-11-02")
    )
    async with running(settings, clock=clock) as client:
        session = await client.new_session(time_zone=zone)
        for said, told in TOLD.items():
            provider.will(says("Noted."), notes(fact(told), fact(f"{told} 2026-12-24")))
            async with awaiting("facts_extracted") as extracted:
                await client.chat(session, said)
                await extracted.wait()
            assert f'"said_on":"{today}"' in provider.messages(role="user")[0]["content"]
        assert await known(client) == [f"{told} ({tomorrow})" for told in reversed(TOLD.values())]


async def test_what_the_model_remembers_on_the_users_word_gets_its_date_too(
    settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    clock.now = datetime(2026, 11, 1, 10, 30, tzinfo=UTC)
    kept = [
        ("remember", {"content": said, "kind": "fact"}) for said in ("My exam is on 2026-11-04", "My exam is tomorrow")
    ]
    provider.will(calls(*kept), says("Noted."), notes())
    async with running(settings, clock=clock) as client:
        session = await client.new_session(time_zone=KIRITIMATI)
        async with awaiting("facts_extracted") as extracted:
            answer = await client.chat(session, "Remember that my exam is tomorrow")
            await extracted.wait()
        assert [call["status"] for call in answer["tool_calls"]] == ["failed", "succeeded"]
        assert await known(client) == ["My exam is tomorrow (2026-11-03)"]
        provider.will(calls(("search_memory", {"query": "exam"})), says("Tomorrow."))
        await client.chat(session, "When is it?")
        assert '"date":"2026-11-02"' in provider.messages(role="tool")[-1]["content"]
