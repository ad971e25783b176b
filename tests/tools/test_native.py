"""Tools that are functions of the program that embeds Segue, or of an installed package."""

import asyncio
import importlib
from collections.abc import Callable
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from segue import DependencyGroup, ToolContext, ToolFailed, ToolRetry, create_app, tool
from segue.config import Settings
from segue.domain.errors import AppError
from segue.tools.catalog import ToolCatalog
from segue.tools.native import native_tools
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.streams import chatting

SHIPPED: list[tuple[Any, ...]] = []


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


class Address(BaseModel):
    street: str
    city: str = "Trieste"


@tool(effect="read_only")
async def find_order(number: Annotated[int, Field(ge=1, description="as printed on the invoice")]) -> dict[str, Any]:
    """Finds an order by its number."""
    if number == 13:
        raise KeyError(number)
    if number == 14:
        raise ToolFailed("The archive is closed.")
    return {"order_id": f"ord-{number:06}", "lines": ["x" * 500] * 10}


@tool(effect="destructive", depends_on=["find_order"], title="Ship the order")
async def ship_order(
    order_id: str, to: Address, on: date, context: ToolContext, speed: Speed = Speed.SLOW
) -> dict[str, Any]:
    """Ships an order that was found."""
    SHIPPED.append((order_id, to, on, speed, context.owner, context.session_id))
    return {"shipped": order_id, "on": on}


@tool(effect="write", timeout_s=0.05)
async def weigh(parcel: str = "any") -> str:
    """Weighs a parcel."""
    if parcel == "none":
        raise ToolRetry("Say which parcel.")
    await asyncio.Event().wait()
    return "1 kg"


TOOLS = [find_order, ship_order, weigh]


async def run_by_model(client: Client, provider: Provider, session: str, *wanted: tuple[str, dict[str, Any]]) -> Any:
    """What came of the calls that the model makes, by status and error, and the answer."""
    provider.will(calls(*wanted), says("That is that."))
    answer = await client.chat(session, "How is my order?")
    return [(call["status"], call["error"]) for call in answer["tool_calls"]], answer


@pytest.mark.sweep
async def test_a_native_tool_goes_the_way_of_every_other_tool(settings: Settings, provider: Provider) -> None:
    """Arguments are checked and typed, a destructive call waits for a yes, results are kept."""
    SHIPPED.clear()
    async with running(settings, tools=TOOLS) as client:
        listed = {each["name"]: each for each in (await client.get("/tools"))["items"]}
        session = await client.new_session()
        no_such = ("find_order", {"number": 0})
        [(status, error)], _ = await run_by_model(client, provider, session, no_such)
        assert (status, "minimum of 1" in error) == ("failed", True)
        offered = {each["function"]["name"] for each in provider.requests[-1]["tools"]}
        [(status, error)], answer = await run_by_model(client, provider, session, ("find_order", {"number": 7}))
        found = answer["tool_calls"][0]
        kept = await client.get(f"/sessions/{session}/tool-results/{found['tool_call_id']}")
        order = {"order_id": "ord-000007", "to": {"street": "Molo 4"}, "on": "2026-11-30", "speed": "fast"}
        provider.will(calls(("ship_order", order)))
        asked = await client.chat(session, "ship it")
        provider.will(says("On its way."))
        told = await client.chat(session, "yes, please")
    assert {listed[each]["source"] for each in ("find_order", "ship_order", "weigh")} == {"native"}
    assert listed["ship_order"]["confirmation"] is True
    assert listed["ship_order"]["dependencies"] == [{"type": "all", "tools": ["find_order"], "optional": []}]
    assert listed["find_order"]["schema"]["properties"]["number"]["description"] == "as printed on the invoice"
    assert set(listed["ship_order"]["schema"]["properties"]) == {"order_id", "to", "on", "speed"}
    assert "ship_order" not in offered  # before an order is found
    assert (status, error, kept["result"]["order_id"]) == ("succeeded", None, "ord-000007")
    assert "Next step: Ship the order" in asked["message"]["content"]
    assert "Molo 4" in asked["message"]["content"]
    assert [call["status"] for call in told["tool_calls"]] == ["succeeded"]
    on = date(2026, 11, 30)
    assert [("ord-000007", Address(street="Molo 4"), on, Speed.FAST, "local", session)] == SHIPPED


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("confirm", ["destructive", "always", "never"])
async def test_a_tool_that_always_asks_is_listed_as_one_unless_nothing_asks(
    confirm: str, settings: Settings, provider: Provider
) -> None:
    @tool(effect="read_only", confirm="always_ask")
    async def open_door() -> str:
        """Opens the door."""
        return "open"

    asks = confirm != "never"
    async with running(settings.model_copy(update={"confirm": confirm}), tools=[open_door, weigh]) as client:
        listed = {each["name"]: each for each in (await client.get("/tools"))["items"]}
        provider.will(calls(("open_door", {})), *([] if asks else [says("It is open.")]))
        answer = await client.chat(await client.new_session(), "Open the door")
    assert (listed["open_door"]["confirmation"], listed["open_door"]["always_asks"]) == (asks, asks)
    assert (listed["weigh"]["confirmation"], listed["weigh"]["always_asks"]) == (confirm == "always", False)
    assert (answer["plan"] is not None) is asks


@pytest.mark.sweep
async def test_how_far_a_call_is_reaches_the_stream(settings: Settings, provider: Provider) -> None:
    @tool(effect="read_only")
    async def count(context: ToolContext) -> str:
        """Counts."""
        context.report(1, 3, "boxes")
        await asyncio.sleep(0)
        await told.wait()
        return "3"

    told = asyncio.Event()
    async with running(settings, tools=[count]) as client:
        provider.will(calls(("count", {})), says("Three."))
        async with chatting(client, await client.new_session(), "count") as stream:
            sent = await stream.until("CUSTOM tool_progress")
            told.set()
            await stream.rest()
    [start] = [each.event for each in sent if each.type == "TOOL_CALL_START"]
    assert sent[-1].event["value"] == {
        "tool_call_id": start["toolCallId"],
        "progress": 1,
        "total": 3,
        "message": "boxes",
    }


@pytest.mark.sweep
async def test_what_a_function_raises_is_a_failed_call_and_one_that_is_late_is_stopped(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, tools=TOOLS) as client:
        session = await client.new_session()
        found = [("find_order", {"number": number}) for number in (13, 14)]
        weighed: list[tuple[str, dict[str, Any]]] = [("weigh", {"parcel": "none"}), ("weigh", {})]
        came_of, _ = await run_by_model(client, provider, session, *found, *weighed)
        order = {"order_id": "x", "to": {"street": "y"}, "on": "2026-11-31"}
        await run_by_model(client, provider, session, ("find_order", {"number": 1}))
        provider.will(calls(("ship_order", order)))
        await client.chat(session, "ship it")
        provider.will(says("That is no day."))
        refused = await client.chat(session, "yes, please")
        states = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]
    assert came_of[:3] == [
        ("failed", "find_order failed: KeyError: 13"),
        ("failed", "The archive is closed."),
        ("failed", "Say which parcel."),
    ]
    assert (came_of[3][0], "did not answer within 0.05 s" in came_of[3][1]) == ("unknown", True)
    assert "on: Input should be a valid date" in refused["tool_calls"][0]["error"]
    assert states["find_order"]["last_failure_time"] is not None
    assert states["ship_order"]["consecutive_failures"] == 0  # the arguments were wrong, not the tool


def sync(number: int) -> int:
    """Doubles."""
    return number * 2


async def silent(number: int) -> int:
    return number


async def untyped(number) -> int:  # type: ignore[no-untyped-def]  # noqa: ANN001 (what is refused)
    """Doubles."""
    return int(number)


async def listing(*numbers: int) -> int:
    """Adds."""
    return sum(numbers)


async def unwritable(done: Callable[[], None]) -> None:
    """Calls."""
    done()


async def unknown(number: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821 (what is refused)
    """Goes."""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (sync, "The tool sync has to be `async def`"),
        (silent, "The tool silent needs a docstring"),
        (untyped, "The tool untyped needs a type hint for number"),
        (listing, r"The tool listing takes \*numbers: int"),
        (unwritable, "The tool unwritable has a type hint that cannot be written as JSON"),
        (unknown, "The tool unknown has a type hint that is not known where"),
    ],
)
def test_a_function_that_no_tool_can_be_made_of_is_refused_where_it_is_decorated(function: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        tool(effect="write")(function)


def test_a_decorated_function_can_still_be_called_and_its_name_has_to_fit_every_endpoint() -> None:
    assert asyncio.run(find_order(2))["order_id"] == "ord-000002"
    with pytest.raises(TypeError, match="needs an effect that is one of read_only, write, destructive"):
        tool(effect="destroys")(weigh)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a confirm that is True, False or 'always_ask'"):
        tool(effect="write", confirm="always-ask")(weigh)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a name of up to 64 letters"):
        tool(effect="write", name="find an order")(weigh)


async def start(settings: Settings, *tools: Any) -> None:
    app = create_app(settings, tools=tools)
    async with app.router.lifespan_context(app):
        pass


@tool(effect="write", name="current_time")
async def another_clock() -> str:
    """Tells the time."""
    return "late"


@tool(effect="write", name="mcp_find_items")
async def another_shelf() -> str:
    """Finds."""
    return "nothing"


@tool(effect="write", depends_on=[DependencyGroup("any", ("nothing",))])
async def dependent() -> str:
    """Waits."""
    return "for ever"


async def test_a_tool_whose_name_is_taken_or_whose_dependency_is_missing_stops_the_start(settings: Settings) -> None:
    with pytest.raises(AppError, match="Two tools are called current_time"):
        await start(settings, another_clock)
    with pytest.raises(AppError, match="do not exist: nothing"):
        ToolCatalog(native_tools([dependent]))
    with pytest.raises(AppError, match="is no tool: decorate it"):
        native_tools([sync])
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(f'{{"mcpServers": {{"shelf": {{"url": "{shelf.url}"}}}}}}')
        with pytest.raises(
            AppError, match="The MCP server shelf offers a tool called mcp_find_items, as this application"
        ):
            await start(settings, another_shelf)


PLUGIN = '''
from segue import tool

@tool(effect="read_only")
async def moon() -> str:
    """Says how the moon is."""
    return "full"

@tool(effect="read_only")
async def tides() -> str:
    """Says how high the water is."""
    return "high"

plain = 1
'''


def install(folder: Path, leads_to: str) -> None:
    """Puts a package there that offers a tool, as pip would."""
    (folder / "sky.py").write_text(PLUGIN)
    about = folder / "sky-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sky\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[segue.tools]\nmoon = {leads_to}\n")


def test_the_tools_of_an_installed_package_are_found_and_can_be_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, leads_to in enumerate(("sky:moon", "sky:plain", "sky:sun")):
        folder = tmp_path / str(number)
        folder.mkdir()
        install(folder, leads_to)
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path / "0")
        assert [each.spec.name for each in native_tools()] == ["moon"]
        assert native_tools(disabled=["moon"]) == ()
        assert len(native_tools([importlib.import_module("sky").moon])) == 1  # not twice
    monkeypatch.syspath_prepend(tmp_path / "1")
    with pytest.raises(AppError, match=r"1 in the entry point moon = sky:plain of .* is no tool"):
        native_tools()
    monkeypatch.syspath_prepend(tmp_path / "2")
    with pytest.raises(AppError, match=r"moon = sky:sun of .* leads nowhere"):
        native_tools()
