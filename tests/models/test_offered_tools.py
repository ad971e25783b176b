"""The tools of a request: whatever a server announces, the endpoint takes them and the model can call them."""

import re
from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage

from segue.around.replay.request_rules import invalid_tools
from segue.config import Settings
from segue.domain.ids import offered_name
from segue.domain.session import MAKE_IMAGE, READ_ATTACHMENT
from segue.domain.tool import ToolSpec
from segue.models.reply import ModelCall
from segue.models.tool_schemas import CALL_TOOL, Bounds, ToolBindings, as_shown_calls, meant_call
from tests.support.provider import Provider, calls, says
from tests.support.results import TOOLBOX, use_toolbox
from tests.support.service import running


def bindings(**bounds: Any) -> ToolBindings:
    return ToolBindings(Bounds(**bounds))


def tool(name: str, description: str = "Does something.") -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": {}})


def test_a_tool_goes_out_under_a_name_that_endpoints_take_and_is_known_by_it() -> None:
    own = ["look_up", "look.up", "look up", "", "名前", "a" * 64, "a" * 65, "b" * 70, "b" * 69 + "c"]
    offered, bound = bindings().offered(map(tool, own)), bindings().of(tuple(map(tool, own)))
    names = [function["function"]["name"] for function in offered]
    assert invalid_tools(offered) is None
    assert [bound.names[name] for name in names] == own
    assert (names[0], names[5]) == ("look_up", "a" * 64)
    assert names[1:5] == [offered_name(name) for name in own[1:5]]


def test_a_tool_with_the_name_that_another_would_go_out_under_keeps_it_apart() -> None:
    taken = offered_name("look.up")
    tools = tool(taken), tool("look.up")
    assert invalid_tools(bindings().offered(tools)) is None
    assert list(bindings().of(tools).names.values()) == [taken, "look.up"]


def test_calls_of_the_engines_own_are_shown_as_they_are_beside_those_that_call_tool_makes() -> None:
    names = ("search", READ_ATTACHMENT, MAKE_IMAGE, "found_later")
    calls = [{"name": name, "args": {}, "id": f"call_{name}"} for name in names]
    [shown] = as_shown_calls([AIMessage("", tool_calls=calls)], ["search", CALL_TOOL.name])
    assert isinstance(shown, AIMessage)
    assert [call["name"] for call in shown.tool_calls] == [*names[:3], "call_tool"]
    assert shown.tool_calls[-1]["args"] == {"name": "found_later", "arguments": {}}


@pytest.mark.parametrize(
    ("made", "args"),
    [
        ({"args": {"id": "p3"}}, {"id": "p3"}),
        ({"parameters": {"id": "p3"}}, {"id": "p3"}),
        ({"args": ["-l"]}, {"args": ["-l"]}),
        ({"args": {"id": "p3"}, "deep": True}, {"args": {"id": "p3"}, "deep": True}),
        ({"arguments": {"args": {"id": "p3"}}}, {"args": {"id": "p3"}}),
    ],
)
def test_arguments_under_another_name_are_not_lost_in_a_tool_that_takes_any(
    made: dict[str, Any], args: dict[str, Any]
) -> None:
    assert meant_call(ModelCall("call_tool", {"name": "look", **made})) == ModelCall("look", args)


def test_descriptions_are_bounded() -> None:
    [function] = bindings(description_chars=40).offered([tool("look", "x" * 100)])
    assert function["function"]["description"] == "x" * 39 + "…"


def test_a_tool_that_its_server_has_changed_is_offered_as_it_is_now() -> None:
    offers = bindings()
    [before], [again], [after] = (offers.offered([tool("look", said)]) for said in ("Old.", "Old.", "New."))
    assert before == again
    assert after["function"]["description"] == "New."


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "look up"}, "impossible names"),
        ({"parameters": {"type": "object"}}, "not simply"),
        ({"parameters": {"type": "object", "properties": {}, "anyOf": []}}, "not simply"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}, "array without items"),
        ({"parameters": {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}]}}}}, "a reference"),
    ],
)
def test_tools_that_an_endpoint_would_refuse_are_told(change: dict[str, Any], fault: str) -> None:
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    assert invalid_tools([{"function": function}]) is None
    assert fault in (invalid_tools([{"function": function | change}]) or "")
    assert "2 tools with 1 names" in (invalid_tools([{"function": function}] * 2) or "")


async def test_a_server_with_too_many_tools_and_odd_schemas_stops_no_turn(
    settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings, args=[TOOLBOX, "150"])
    provider.will(calls(("odd_99", {"list": [1]}), ("odd_3", {"size": 11}), ("odd_3", {})), says("Odd."), says("Yes."))
    limits = {"llm_tool_description_chars": 100, "llm_max_tools": 128, "context_token_budget": 300_000}
    async with running(settings.model_copy(update=limits)) as client:
        await client.connected("toolbox")
        session = await client.new_session()
        answer = await client.chat(session, "What is odd?")
        assert [call["status"] for call in answer["tool_calls"]] == ["succeeded", "failed", "failed"]
        await client.chat(session, "Really?")
    first, _, last = ([tool["function"] for tool in request["tools"]] for request in provider.requests)
    assert (len(first), last) == (128, first)
    assert "odd_99" not in (function["name"] for function in first)
    assert '"name":"odd_99"' in provider.requests[-1]["messages"][1]["content"]
    assert {len(function["description"]) for function in first if function["name"].startswith("odd")} == {100}
    errors = [orjson.loads(message["content"])["error"] for message in provider.messages(1, role="tool")[1:]]
    assert [bool(re.search(r"\$\.size|is not valid under", error)) for error in errors] == [True, True]
