"""Rehearsals: what another model, agent or mcp.json would do otherwise is told, and nothing of it is done."""

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from segue.around.replay.fake_servers import CannotPlay, FakeServers, Trial, replay_config
from segue.around.replay.play import Played
from segue.around.replay.rehearsal import (
    EffectDifference,
    asks,
    effect_differences,
    exceeded,
    read_limits,
)
from segue.config import Settings
from segue.domain.recording import RecordedCall, RecordedTool, RecordedTurn, Recording, read_recording
from segue.mcp.mcp_config import read_mcp_config
from tests.support.commands import segue
from tests.support.provider import Provider, calls, says
from tests.support.service import running
from tests.support.shelf import serving_shelf

KEY = "sk-proj-4f9a8b7c6d5e4f3a2b1c"
FOUND = ("mcp_find_items", {"query": "lamps"})
ASIDE = ("mcp_set_aside", {"item_id": "itm-1"})
DELETED = ("mcp_delete_item", {"item_id": "itm-2"})


def note(to: str, text: str) -> tuple[str, dict[str, str]]:
    return "mcp_send_note", {"to": to, "text": text}


def sample(settings: Settings) -> list[Path]:
    return sorted((settings.data_dir / "recordings").glob("*"))


@pytest.fixture
def sampled(settings: Settings, tmp_path: Path) -> Settings:
    """What records every session, and asks before no call."""
    return settings.model_copy(update={"record_sample": 1.0, "confirm": "never", "data_dir": tmp_path / "own"})


@pytest.mark.sweep
async def test_a_sample_without_its_secrets_is_rehearsed_and_each_other_effect_is_told_and_none_performed(
    sampled: Settings, provider: Provider, tmp_path: Path
) -> None:
    async with serving_shelf() as shelf:
        sampled.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with running(sampled) as client:
            session = await client.new_session()
            provider.will(calls(FOUND), calls(ASIDE), calls(note("Ada", f"The key is {KEY}")), says("Done."))
            await client.chat(session, f"Put item 1 aside and send Ada the key {KEY}")
        done = list(shelf.effects)
        [recorded] = sample(sampled)
        text = recorded.read_text("utf-8")
        assert (KEY in text, "[redacted]" in text) == (False, True)

        folder = tmp_path / "recordings"
        folder.mkdir()
        told = note("Ada", "The key is [redacted]")
        for name, script in {
            "args": [FOUND, ASIDE, note("Bob", "The key is [redacted]")],
            "missing": [FOUND, told],
            "new": [ASIDE, told, DELETED],
            "same": [FOUND, told, ASIDE],
        }.items():
            (folder / f"{name}.json").write_text(text, "utf-8")
            provider.will(*(calls(call) for call in script), says("I have done it."))
        provider.requests.clear()
        (tmp_path / "agents.toml").write_text('[agents.segue]\ninstructions = "Speak as a pirate."\n')
        tried = {"shelf": {"url": shelf.url, "disabled": ["paint_item"]}}
        (tmp_path / "tried.json").write_text(json.dumps({"mcpServers": tried}))
        code, said = await asyncio.to_thread(
            segue,
            *("rehearse", str(folder), "--model", "scripted", "--agents", str(tmp_path / "agents.toml")),
            *("--mcp", str(tmp_path / "tried.json"), "--fail-on", "missing,new,args,failed,questions,tokens:+20%"),
            *("--json", str(tmp_path / "report.json"), "--junit", str(tmp_path / "report.xml")),
            OPENAI_BASE_URL=provider.base_url,
        )
        assert code == 1, said
        assert shelf.effects == done
    report = {Path(each["name"]).stem: each for each in json.loads((tmp_path / "report.json").read_text("utf-8"))}
    assert {name: each["exceeded"] for name, each in report.items()} == {
        "args": ["args"],
        "missing": ["missing"],
        "new": ["new"],
        "same": [],
        "all together": [],
    }
    assert [each["tool"] for each in report["new"]["differences"]] == ["mcp_delete_item"]
    assert [report[name]["same"] for name in ("args", "missing", "new", "same")] == [1, 1, 2, 2]
    assert "  turn 1: missing: mcp_set_aside" in said
    suite = ET.fromstring((tmp_path / "report.xml").read_text("utf-8"))  # noqa: S314 (it is our own)
    assert (suite.get("tests"), suite.get("failures")) == ("5", "3")
    request = provider.requests[0]
    assert "Speak as a pirate." in request["messages"][0]["content"]
    offered = {tool["function"]["name"] for tool in request["tools"]}
    assert offered & {"mcp_delete_item", "mcp_paint_item", "web_fetch", "promise"} == {"mcp_delete_item"}
    answers = [message["content"] for request in provider.requests for message in request["messages"]]
    assert any("was not recorded" in str(answer) for answer in answers)


async def test_a_sample_has_no_secrets_and_loses_what_is_gone_and_everything_once_nothing_is_to_be_recorded(
    sampled: Settings, provider: Provider
) -> None:
    async with running(sampled) as client:
        kept, gone = await client.new_session(), await client.new_session()
        provider.will(says("Good morning."), says("Good evening."))
        await client.chat(kept, f"Good morning, the key is {KEY}")
        await client.chat(gone, "Good evening")
    assert {file.stem for file in sample(sampled)} == {kept, gone}
    assert KEY not in "".join(file.read_text("utf-8") for file in sample(sampled))
    assert (sampled.data_dir / "recordings").stat().st_mode & 0o077 == 0
    async with running(sampled) as client:
        assert (await client.http.delete(f"/sessions/{gone}")).status_code == 204
    assert [file.stem for file in sample(sampled)] == [kept]
    async with running(sampled.model_copy(update={"record_sample": 0.0})):
        pass
    assert sample(sampled) == []


def effect(tool: str, status: str = "succeeded", **args: object) -> tuple[int, RecordedCall]:
    return 1, RecordedCall.model_validate({"tool": tool, "args": args, "status": status})


def test_effects_are_paired_by_what_they_have_in_common_and_one_that_had_failed_need_not_come_again() -> None:
    recorded = [effect("pay", to="a", sum=1), effect("pay", to="b", sum=2), effect("pay", "failed", to="c")]
    played = [effect("pay", to="b", sum=3), effect("pay", to="a", sum=1), effect("pay", to="a", sum=1)]
    assert effect_differences(recorded, played, ()) == (
        1,
        [
            EffectDifference("args", 1, "pay", {"to": "b", "sum": 2}, {"to": "b", "sum": 3}),
            EffectDifference("new", 1, "pay", None, {"to": "a", "sum": 1}),
        ],
    )
    assert effect_differences(recorded[1:2], played[:1], {"pay.sum"}) == (1, [])


def test_a_limit_is_an_amount_or_a_share_of_what_was_recorded() -> None:
    limits = read_limits("new, tokens:+20%,dollars:+0.5")
    assert limits == {"new": (0, 0), "tokens": (0, 0.2), "dollars": (0.5, 0)}
    assert exceeded(limits, {"new": (0, 0), "tokens": (100, 120), "dollars": (1, 1.5)}) == []
    assert exceeded(limits, {"new": (0, 1), "tokens": (100, 121), "dollars": (1, 1.6)}) == ["new", "tokens", "dollars"]
    for wrong in ("", "words", "tokens:+x%"):
        with pytest.raises(CannotPlay, match="it takes missing, new"):
            read_limits(wrong)


def test_a_question_is_a_plan_that_waits_or_an_answer_that_ends_with_one() -> None:
    asked: list[RecordedTurn | Played] = [
        RecordedTurn(message="Delete it", answer="Shall I? *(yes or no?)*"),
        RecordedTurn(message="Delete it", answer="Done."),
        Played("completed", "I would delete it.", plan={"status": "waiting"}),
        Played("failed (model_failed)", "Shall I?"),
    ]
    assert [asks(turn) for turn in asked] == [True, False, True, False]


def one_tool(source: str = "mcp:shelf") -> dict[str, Recording]:
    named = [RecordedTool(name=f"mcp_{name}", input_schema={}, source=source, confirm=True) for name in ("a", "b")]
    whole = Recording(format="segue-recording", version=1, tools=tuple(named), turns=(RecordedTurn(message="x"),))
    return {"one": read_recording(whole.model_dump_json().encode())}


def test_the_tools_of_a_trial_are_as_its_mcp_json_has_them_and_no_value_of_it_is_needed(tmp_path: Path) -> None:
    shelf = {"url": "${SHELF_URL}", "headers": {"Authorization": "Bearer ${NO_SUCH_TOKEN}"}}
    changes = {"disabled": ["b"], "confirm": {"a": "always_ask"}}

    def tried(servers: object) -> list[RecordedTool]:
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        trial = Trial(servers=read_mcp_config(file, as_written=True).servers)
        return list(replay_config(one_tool(), {"LLM_MODEL": "m"}, trial).tools)

    [a] = tried({"shelf": {**shelf, **changes}})
    assert (a.name, a.confirm) == ("mcp_a", "always_ask")
    assert [tool.confirm for tool in tried({"shelf": shelf})] == [None, None]
    assert tried({"other": shelf}) == []
    with pytest.raises(CannotPlay, match="keep the prefix"):
        tried({"shelf": {**shelf, "prefix": "shelf_"}})


def test_a_second_call_gets_its_own_result_and_only_an_effect_gets_that_of_one_with_other_arguments() -> None:
    tools = (
        RecordedTool(name="read", input_schema={}, effect="read_only"),
        RecordedTool(name="write", input_schema={}),
    )
    known = (
        RecordedCall(tool="read", args={"id": 1}, result="before"),
        RecordedCall(tool="write", args={"id": 1, "to": "x"}, result="written"),
        RecordedCall(tool="read", args={"id": 1}, result="after"),
    )
    servers = FakeServers(tools, known=known, stands_in=True)

    def result(tool: str, **args: object) -> object:
        called = RecordedCall(tool=tool, args=args)
        answer = servers.from_record(called)
        servers.arrived.append(called)
        return answer and answer.result

    assert [result("read", id=1) for _ in range(3)] == ["before", "after", "after"]
    assert [result("read", id=2), result("write", id=1, to="y")] == [None, "written"]
    assert FakeServers(tools, known=known).from_record(RecordedCall(tool="write", args={})) is None


def test_a_tool_of_an_installed_package_is_not_offered_to_a_model_that_rehearses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moon.py").write_text(
        "from segue import tool\n\n@tool(effect='write')\nasync def land() -> None:\n    'Lands.'\n", "utf-8"
    )
    about = tmp_path / "moon-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text("[segue.tools]\nmoon = moon:land\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    environment = replay_config(one_tool(), {"LLM_MODEL": "m"}, Trial()).environment("")
    assert "land" in environment["DISABLED_TOOLS"].split(",")


def test_what_cannot_be_tried_is_refused(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none" / "report")
    for options in (("--fail-on", "words"), ("--mcp", f"{nowhere}.json"), ("--json", nowhere), ("--junit", nowhere)):
        code, said = segue("rehearse", str(tmp_path), "--model", "m", *options, OPENAI_API_KEY="k")
        assert (code, "Traceback" in said, "no recording" in said) == (2, False, False), said
    code, said = segue("rehearse", str(tmp_path), "--model", "m", OPENAI_API_KEY="k")
    assert (code, "There is no recording to rehearse" in said) == (2, True)
