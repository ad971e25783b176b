"""Replays: what was recorded plays as recorded, and what would come out otherwise is told."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from segue import tool
from segue.around.cli import app
from segue.around.replay.fake_servers import CannotPlay, replay_config
from segue.around.replay.run_replay import until_ended
from segue.config import Settings
from segue.domain.recording import read_recording
from tests.support import conversations
from tests.support.commands import ROOT, segue
from tests.support.conversations import export, lamps, played, shelf_service
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.sweeps import first

Conversation = Callable[[Client, Provider], Awaitable[str]]
Change = Callable[[dict[str, Any]], None]

_recorded: dict[Conversation, str] = {}


async def recording_of(settings: Settings, provider: Provider, conversation: Conversation = lamps) -> dict[str, Any]:
    """Made by the first test that asks for it; each has a copy to change."""
    if conversation not in _recorded:
        async with shelf_service(settings) as client:
            _recorded[conversation] = await export(client, await conversation(client, provider))
    recording: dict[str, Any] = json.loads(_recorded[conversation])
    return recording


def calls_in(recording: dict[str, Any]) -> list[dict[str, Any]]:
    rounds = (each for turn in recording["turns"] for each in turn.get("rounds", []))
    return [call for each in rounds for call in each.get("calls", [])]


def reached_a_tool(call: dict[str, Any]) -> bool:
    return not call.get("error", "").startswith(("There is no tool", "Invalid arguments"))


@pytest.mark.parametrize("name", first(1, ["lamps", "changes_of_mind", "troubles", "searches", "buttons"]))
async def test_a_conversation_replays_as_it_was_recorded(settings: Settings, provider: Provider, name: str) -> None:
    recording = await recording_of(settings, provider, getattr(conversations, name))
    report = await played(settings, json.dumps(recording))
    assert list(report.lines())[:-1] == []
    [playback] = report.playbacks
    assert playback.arrived == sum(reached_a_tool(call) for call in calls_in(recording))


async def test_what_asks_and_which_words_confirm_are_replayed_as_they_were(
    settings: Settings, provider: Provider
) -> None:
    @tool(effect="write", confirm="always_ask")
    async def open_door() -> str:
        """Opens the door."""
        return "open"

    never = settings.model_copy(update={"confirm_words": "never"})
    async with running(never, tools=[open_door]) as client:
        session = await client.new_session()
        provider.will(calls(("open_door", {})))
        await client.chat(session, "Open the door")
        text = await export(client, session)
    config = replay_config({"one": read_recording(text.encode())})
    assert config.environment("http://127.0.0.1")["CONFIRM_WORDS"] == "never"
    assert json.loads(config.mcp_config(""))["mcpServers"]["replay"]["confirm"] == {"open_door": "always_ask"}


def change_an_argument(recording: dict[str, Any]) -> None:
    recording["turns"][3]["rounds"][0]["calls"][0]["args"] = {"item_id": "itm-2"}


def expect_one_call_more(recording: dict[str, Any]) -> None:
    recording["turns"][3]["rounds"] *= 2


def expect_one_call_less(recording: dict[str, Any]) -> None:
    del recording["turns"][1]["rounds"][1]


def change_the_answer(recording: dict[str, Any]) -> None:
    recording["turns"][1]["answer"] = "Shall I?"


def change_the_plan(recording: dict[str, Any]) -> None:
    recording["turns"][3]["plan"]["status"] = "waiting"


def say_less(recording: dict[str, Any]) -> None:
    recording["turns"][0]["answer"] = None


def narrow_a_tool(recording: dict[str, Any]) -> None:
    [tool] = [tool for tool in recording["tools"] if tool["name"] == "mcp_find_items"]
    tool["input_schema"]["properties"]["query"]["maxLength"] = 3


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "told"),
    first(
        3,
        [
            (change_an_argument, ["turn 4: another call", "itm-2", "itm-1", "which is not recorded for this turn"]),
            (expect_one_call_more, ["turn 4: a call is missing", "mcp_delete_item"]),
            (expect_one_call_less, ["turn 2: a call that was not recorded", "mcp_get_item"]),
            (change_the_answer, ["turn 2: another answer", "Shall I?", "Prossimo passo: Cancella"]),
            (change_the_plan, ["turn 4: the plan stands otherwise", "waiting", "completed"]),
            (say_less, ["turn 1: the model was asked for more than was recorded (loop)"]),
            (narrow_a_tool, ["turn 1: another call", '{"query":"lamps"} failed']),
        ],
    ),
)
async def test_what_comes_out_otherwise_is_told(
    settings: Settings, provider: Provider, change: Change, told: list[str]
) -> None:
    recording = await recording_of(settings, provider)
    change(recording)
    report = await played(settings, json.dumps(recording))
    said = "\n".join(report.lines())
    assert report.differs
    assert [part for part in told if part not in said] == []
    assert "0 of 1 as recorded" in said


@pytest.mark.sweep
async def test_another_setting_of_the_service_shows_as_differences(settings: Settings, provider: Provider) -> None:
    recording = await recording_of(settings, provider)
    report = await played(settings, json.dumps(recording), confirm="always")
    assert "turn 1: a call is missing" in "\n".join(report.lines())


@pytest.mark.sweep
async def test_a_window_too_small_for_what_earlier_turns_gave_is_no_difference(
    settings: Settings, provider: Provider
) -> None:
    recording = await recording_of(settings, provider)
    report = await played(settings, json.dumps(recording), history_limit=2)
    assert list(report.lines())[:-1] == []


@pytest.mark.sweep
async def test_a_service_that_asks_another_model_is_told_apart(settings: Settings, provider: Provider) -> None:
    recording = await recording_of(settings, provider)
    with pytest.raises(CannotPlay, match="asks the model scripted"):
        await played(settings, json.dumps(recording), llm_model="scripted")


@pytest.mark.sweep
async def test_recordings_play_side_by_side_unless_they_disagree_on_a_tool(
    settings: Settings, provider: Provider
) -> None:
    first = await recording_of(settings, provider)
    second = json.loads(json.dumps(first))
    report = await played(settings, json.dumps(first), json.dumps(second))
    assert not report.differs
    assert "2 of 2 as recorded" in list(report.lines())[-1]
    narrow_a_tool(second)
    with pytest.raises(CannotPlay, match="mcp_find_items is another tool in"):
        await played(settings, json.dumps(first), json.dumps(second))


async def a_look(client: Client, provider: Provider) -> str:
    """Two turns that only read."""
    session = await client.new_session()
    provider.will(
        calls(("mcp_find_items", {"query": "lamps"})), calls(("mcp_get_item", {"item_id": "itm-1"})), says("A lamp.")
    )
    await client.chat(session, "Which lamps are there?")
    provider.will(calls(("mcp_get_item", {"item_id": "itm-2"})), says("Another."))
    await client.chat(session, "And the second?")
    return session


@pytest.mark.sweep
async def test_a_model_that_makes_the_same_calls_differs_in_nothing_whatever_it_says(
    settings: Settings, provider: Provider
) -> None:
    recording = json.dumps(await recording_of(settings, provider, a_look))
    provider.will(
        calls(("mcp_find_items", {"query": "lamps"})), calls(("mcp_get_item", {"item_id": "itm-1"})), says("One lamp.")
    )
    provider.will(calls(("mcp_get_item", {"item_id": "itm-2"})), says("One more."))
    report = await played(settings, recording, model="scripted")
    assert not report.differs
    assert [recorded == played for recorded, played in report.playbacks[0].usage] == [True, True]
    provider.will(says("It is I."))
    with pytest.raises(CannotPlay, match="asks the model scripted, not another"):
        await played(settings, recording, model="another", llm_model="scripted")


@pytest.mark.sweep
async def test_a_model_is_compared_with_the_recording_and_its_calls_reach_nothing_but_that(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    recording = tmp_path / "look.json"
    recording.write_text(json.dumps(await recording_of(settings, provider, a_look)), "utf-8")
    (tmp_path / "prices.json").write_text('{"scripted": {"input": 1, "output": 2}}')
    provider.requests.clear()
    provider.will(
        calls(("mcp_find_items", {"query": "lamps"})),
        calls(("mcp_get_item", {"item_id": "itm-2"}), ("mcp_get_item", {"item_id": "itm-9"})),
        says("Two lamps."),
        says("I have said so."),
    )
    environment = {"OPENAI_BASE_URL": provider.base_url, "PRICES_FILE": str(tmp_path / "prices.json")}
    code, said = await asyncio.to_thread(segue, "replay", str(recording), "--model", "scripted", **environment)
    assert code == 1, said
    lines = said.splitlines()
    took = "3 calls, 33 tokens in, 21 out"
    assert f"{recording} turn 1: {took}, $0.000075; recorded: {took}" in lines
    assert "  turn 1: another call" in lines
    assert "  turn 1: a call that was not recorded" in lines
    assert "  turn 2: a call is missing" in lines
    assert "another answer" not in said
    found, missing = (message["content"] for message in provider.messages(2, role="tool")[1:])
    assert ("the text of itm-2" in found, "not recorded" in missing) == (True, True)
    offered = {tool["function"]["name"] for tool in provider.requests[0]["tools"]}
    assert offered & {"mcp_get_item", "web_fetch", "remember", "forget", "web_search"} == {"mcp_get_item"}


def test_a_model_without_a_provider_is_refused(tmp_path: Path) -> None:
    code, said = segue("replay", str(tmp_path / "x.json"), "--model", "gpt-5-mini", OPENAI_API_KEY="")
    assert (code, "set OPENAI_API_KEY or OPENAI_BASE_URL" in said) == (2, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read: No such file"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"format": ', "is not JSON: Expecting value at line 1, column 12"),
        (b"\xff\xfe", "it is not UTF-8"),
        ('{"turns": []}', 'there is no "format": "segue-recording" in it'),
        ('{"format": "segue-recording", "version": 9, "turns": []}', "of version 9; this Segue reads version 1"),
        ('{"format": "segue-recording", "version": 1}', "turns: Field required"),
        ('{"format": "segue-recording", "version": 1, "turns": []}', "turns: "),
        ('{"format": "segue-recording", "version": 1, "turns": [{"mesage": "x"}]}', "turns.0.mesage: Extra inputs"),
    ],
)
def test_a_broken_file_is_named_with_what_to_correct(text: str | bytes | None, told: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    result = CliRunner().invoke(app, ["replay", str(file)])
    assert result.exit_code == 2
    assert str(file) in result.output
    assert told in result.output.replace("\n", " ")


def test_a_device_is_refused_since_it_may_have_no_end() -> None:
    result = CliRunner().invoke(app, ["replay", os.devnull])
    told = f"{os.devnull} cannot be read: it is a device, which may have no end.\n"
    assert (result.exit_code, result.output) == (2, told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--listen", "nowhere"), "--listen takes HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "--listen takes HOST:PORT"),
        (("--listen", "[::1"), "--listen takes HOST:PORT"),
        (("--listen", ".segue:0"), "cannot listen at .segue:0: "),
        (("--restart-between-turns",), "leave out --url"),
        (("--api-key", "“key”"), "--api-key or SEGUE_API_KEY is no key"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options: tuple[str, ...], told: str) -> None:
    recording = ROOT / "examples" / "recordings" / "inventory.json"
    result = CliRunner().invoke(app, ["replay", str(recording), "--url", "http://127.0.0.1:1", *options])
    assert (result.exit_code, result.output.count("\n"), told in result.output) == (2, 1, True), result.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_what_is_played_as_an_interrupt_does(number: signal.Signals) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def play() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    signal.signal(number, lambda *_: pytest.fail("it is not heard"))  # which would end the tests
    playing = asyncio.create_task(until_ended(play()))
    await begun.wait()
    os.kill(os.getpid(), number)
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert ended.is_set()
