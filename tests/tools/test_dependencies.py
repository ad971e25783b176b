"""What has to have succeeded before a tool may run: the rules of the groups, and what is refused at start."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from segue.domain.errors import AppError
from segue.domain.tool import DependencyGroup, Tool, ToolContext, ToolSpec
from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import McpServers
from segue.tools.catalog import ToolCatalog
from segue.tools.tool_health import (
    check_groups,
    marks_of_success,
    missing_members,
    to_unlock,
    unknown_members,
    unsatisfied,
)
from tests.support.patience import PATIENCE_S
from tests.support.shelf import serving_shelf

ANY = DependencyGroup("any", ("a", "b"))
ALL = DependencyGroup("all", ("a", "b"))
SEQUENCE = DependencyGroup("sequence", ("a", "b", "c"))
HINTED = DependencyGroup("all", ("a",), optional=("x", "y"))


async def nothing(_: dict[str, Any], __: ToolContext) -> object:
    return None


def tool(name: str, *groups: DependencyGroup) -> Tool:
    return Tool(ToolSpec(name, "", {"type": "object"}, depends_on=groups), nothing)


def after(*succeeded: str, groups: tuple[DependencyGroup, ...]) -> dict[str, tuple[str, ...]]:
    """The successes of a session in which these tools succeeded one after the other."""
    specs = [ToolSpec("dependent", "", {}, depends_on=groups)]
    successes: dict[str, tuple[str, ...]] = {}
    for name in succeeded:
        marks = marks_of_success(name, specs, successes)
        successes[name] = tuple(dict.fromkeys((*successes.get(name, ()), *marks)))
    return successes


def test_a_tool_that_is_in_no_sequence_has_no_place_in_one() -> None:
    successes = after("a", "b", "c", groups=(SEQUENCE,))
    assert marks_of_success("x", [ToolSpec("dependent", "", {}, depends_on=(SEQUENCE,))], successes) == ()


@pytest.mark.parametrize(
    ("group", "succeeded", "missing"),
    [
        (ANY, "", "a b"),
        (ANY, "b", ""),
        (ANY, "x", "a b"),
        (ALL, "", "a b"),
        (ALL, "b", "a"),
        (ALL, "b a", ""),
        (HINTED, "", "a"),
        (HINTED, "x y", "a"),
        (HINTED, "a", ""),
        (SEQUENCE, "", "a b c"),
        (SEQUENCE, "a", "b c"),
        (SEQUENCE, "a b", "c"),
        (SEQUENCE, "a b c", ""),
        (SEQUENCE, "a x b y c", ""),
        (SEQUENCE, "c b a", "b c"),
        (SEQUENCE, "b a c", "b c"),
        (SEQUENCE, "b a b c", ""),
        (SEQUENCE, "a b a c", ""),
        (SEQUENCE, "a b c a", ""),
    ],
    ids=lambda value: value.type if isinstance(value, DependencyGroup) else value or "-",
)
def test_a_group_is_satisfied_by_the_successes_it_asks_for(
    group: DependencyGroup, succeeded: str, missing: str
) -> None:
    successes = after(*succeeded.split(), groups=(group,))
    assert missing_members((group,), successes) == tuple(missing.split())
    assert bool(unsatisfied((group,), successes)) == bool(missing)


def test_every_group_has_to_be_satisfied_and_a_tool_is_missing_once() -> None:
    groups = (ANY, DependencyGroup("all", ("b", "c")))
    assert missing_members(groups, {}) == ("a", "b", "c")
    assert missing_members(groups, {"b": ()}) == ("c",)
    assert missing_members(groups, {"b": (), "c": ()}) == ()


def test_two_sequences_are_followed_apart() -> None:
    groups = (DependencyGroup("sequence", ("a", "b")), DependencyGroup("sequence", ("b", "a")))
    assert unsatisfied(groups, after("a", "b", groups=groups)) == (groups[1],)
    assert unsatisfied(groups, after("a", "b", "a", groups=groups)) == ()


@pytest.mark.parametrize(
    ("group", "succeeded", "said"),
    [
        (ANY, "", "run one of a, b first"),
        (DependencyGroup("any", ("a",)), "", "run a first"),
        (ALL, "", "run a and b first"),
        (ALL, "a", "run b first"),
        (SEQUENCE, "a", "run b, then c first"),
        (HINTED, "y", "run a first (x may help)"),
    ],
)
def test_what_unlocks_a_group_is_said_in_a_sentence(group: DependencyGroup, succeeded: str, said: str) -> None:
    assert to_unlock(group, after(*succeeded.split(), groups=(group,))) == said


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (DependencyGroup("any", ()), "a dependency group of read is empty"),
        (DependencyGroup("all", (), optional=("x", "y")), r"optional members only, which never decide \(x, y\)"),
        (DependencyGroup("all", ("a", "a")), "names a tool twice: a, a"),
        (DependencyGroup("any", ("a",), optional=("a",)), "names a tool twice: a, a"),
    ],
)
def test_a_group_that_could_never_be_met_or_never_decides_is_refused_by_its_names(
    group: DependencyGroup, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check_groups({"read": (group,)})


def test_dependencies_that_go_round_in_a_circle_are_refused_by_their_names() -> None:
    circle = {name: (DependencyGroup("any", (needed,)),) for name, needed in ("ab", "bc", "ca")}
    with pytest.raises(ValueError, match="circle: ") as refused:
        check_groups({**circle, "d": (DependencyGroup("all", ("a",)),)})
    around = str(refused.value).partition("circle: ")[2].split(" → ")
    assert set(around) == {"a", "b", "c"}
    assert around[0] == around[-1]
    with pytest.raises(ValueError, match="circle: a → a"):
        check_groups({"a": (DependencyGroup("any", ("a", "b")),)})


def test_an_optional_member_makes_no_circle_but_has_to_exist() -> None:
    groups = {"a": (DependencyGroup("any", ("b",)),), "b": (DependencyGroup("any", ("c",), optional=("a", "z")),)}
    check_groups(groups)
    assert unknown_members(groups, {"a", "b", "c"}) == ("z",)


def test_built_in_tools_that_depend_on_nothing_that_exists_are_refused() -> None:
    with pytest.raises(AppError, match="do not exist: b, c"):
        ToolCatalog((tool("a", DependencyGroup("any", ("b",), optional=("c",))),))
    with pytest.raises(AppError, match="circle: a → a"):
        ToolCatalog((tool("a", DependencyGroup("any", ("a",))),))
    assert set(ToolCatalog((tool("a"), tool("b", DependencyGroup("any", ("a",))))).tools()) == {"a", "b"}


def configured(folder: Path, url: str = "http://127.0.0.1:1/mcp", **options: object) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"shelf": {"url": url, **options}}}))
    return path


@pytest.mark.parametrize(
    ("depends_on", "said"),
    [
        ({"read": [{"type": "any", "tools": []}]}, "read is empty"),
        ({"read": [{"type": "all", "tools": [], "optional": ["x"]}]}, r"optional members only.*\(x\)"),
        ({"a": [{"type": "any", "tools": ["b"]}], "b": [{"type": "all", "tools": ["a"]}]}, "circle: . → . → ."),
        ({"read": [{"type": "some", "tools": ["x"]}]}, "depends_on.read.0.type"),
        ({"read": [{"type": "any"}]}, "depends_on.read.0.tools"),
        ({"read": ["x"]}, "depends_on.read.0"),
        ({"read": [{"type": "any", "tools": "xy"}]}, "depends_on.read.0.tools"),
    ],
)
def test_a_config_with_dependencies_that_cannot_be_met_is_refused(
    depends_on: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(AppError, match=said) as refused:
        read_mcp_config(configured(tmp_path, depends_on=depends_on))
    assert refused.value.code == "mcp_config_invalid"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"depends_on": {"get_item": [{"type": "any", "tools": ["find_itmes"]}]}}, "find_itmes"),
        ({"depends_on": {"read_item": [{"type": "any", "tools": ["find_items"]}]}}, "read_item"),
        ({"depends_on": {"get_item": [{"type": "any", "tools": ["mcp_find_items"]}]}}, "mcp_find_items"),
        ({"depends_on": {"get_item": [{"type": "any", "tools": ["moody"], "optional": ["x"]}]}}, "x"),
        (
            {"disabled": ["find_items"], "depends_on": {"get_item": [{"type": "all", "tools": ["find_items", "y"]}]}},
            "find_items, y",
        ),
    ],
)
async def test_a_server_without_the_tools_that_are_depended_on_is_refused_at_start(
    options: dict[str, object], names: str, tmp_path: Path
) -> None:
    async with serving_shelf() as shelf:
        servers = McpServers(read_mcp_config(configured(tmp_path, shelf.url, **options)))
        with pytest.raises(AppError) as refused:
            async with servers:
                pass
    assert refused.value.code == "tool_dependencies_invalid"
    assert f"names tools it does not offer: {names}. " in refused.value.detail
    assert "shelf" in refused.value.detail


async def test_dependencies_are_known_by_the_names_the_tools_have_here(tmp_path: Path) -> None:
    groups = [{"type": "sequence", "tools": ["find_items", "base_tool"], "optional": ["moody"]}]
    options = {"prefix": "s_", "depends_on": {"get_item": groups, "burn_item": groups}, "disabled": ["burn_item"]}
    async with (
        serving_shelf() as shelf,
        McpServers(read_mcp_config(configured(tmp_path, shelf.url, **options))) as servers,
    ):
        specs = {tool.spec.name: tool.spec for tool in servers.tools()}
    assert specs["s_get_item"].depends_on == (
        DependencyGroup("sequence", ("s_find_items", "s_base_tool"), optional=("s_moody",)),
    )
    assert specs["s_moody"].depends_on == ()


async def test_a_server_that_joins_late_without_a_tool_it_needs_is_warned_about_and_goes_on(tmp_path: Path) -> None:
    options = {"depends_on": {"get_item": [{"type": "any", "tools": ["find_itmes"]}]}}
    async with serving_shelf() as shelf:
        config = read_mcp_config(configured(tmp_path, shelf.url, **options))
        with capture_logs() as logs:
            async with McpServers(config, start_timeout_s=0) as servers, asyncio.timeout(PATIENCE_S):
                while servers.states() != {"shelf": "ready"}:  # noqa: ASYNC110 (it tells by its state)
                    await asyncio.sleep(0)
                names = {tool.spec.name for tool in servers.tools()}
    [warning] = [entry for entry in logs if entry["event"] == "mcp_dependencies_unknown"]
    assert (warning["log_level"], warning["server"], warning["tools"]) == ("warning", "shelf", ("find_itmes",))
    assert {"mcp_get_item", "mcp_find_items"} <= names
