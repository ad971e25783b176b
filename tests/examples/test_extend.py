"""Every block of docs/extend.md works: its files are an application, and its commands talk to it."""

import asyncio
import importlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from segue.language.lexicon import use_folder
from segue.tools.native import native_tools
from tests.support.commands import ROOT, python
from tests.support.patience import PATIENCE_S
from tests.support.server import serving
from tests.support.service import Client

PAGE = (ROOT / "docs" / "extend.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
MODULES = {"shop", "app"}


def named(text: str) -> str:
    """The file that a block is, or is a part of: its first line says so."""
    [name] = re.findall(r"\A# ([\w/]+\.\w+)\n", text)
    return str(name)


@pytest.fixture
def folder(tmp_path: Path, servers: ServerUrls, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page, and the settings of a newcomer but for the stores, where a program of the folder runs."""
    for kind, text in BLOCKS:
        if kind in ("python", "toml"):
            path = tmp_path / named(text)
            path.parent.mkdir(exist_ok=True)
            path.write_text((path.read_text("utf-8") if path.exists() else "") + text, "utf-8")
    [config] = [json.loads(text) for kind, text in BLOCKS if kind == "json"]
    program, *options = python()  # has imported what it needs already
    config["mcpServers"]["stock"] |= {"command": program, "args": [*options, str(tmp_path / "stock.py")]}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {"DATABASE_URL": database_url, "REDIS_URL": servers.redis_url}.items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    use_folder(None)
    for name in MODULES:
        sys.modules.pop(name, None)


async def test_the_application_of_the_page_uses_its_tools_its_rule_and_its_words(folder: Path) -> None:
    [commands] = [text for kind, text in BLOCKS if kind == "sh"]
    async with (
        serving(importlib.import_module("app").app) as url,
        httpx2.AsyncClient(base_url=f"{url}/assistant", timeout=PATIENCE_S) as http,
    ):
        await Client(http).connected("stock")
        pasted = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", commands, env={**os.environ, "SEGUE": f"{url}/assistant"}, stdout=-1
        )
        said, _ = await pasted.communicate()
        tools = {tool["name"]: tool for tool in (await http.get("/tools")).json()["items"]}
    assert pasted.returncode == 0
    found, asked, done, denied, counted, annotated = map(json.loads, said.decode().splitlines())
    assert [answer["tool_calls"][0]["status"] for answer in (found, done, denied, counted)] == [
        *["succeeded"] * 2, "failed", "succeeded",
    ]  # fmt: skip
    assert (asked["plan"]["status"], asked["tool_calls"]) == ("waiting", [])
    assert (done["tool_calls"][0]["tool_name"], done["acknowledgement"]["verdict"]) == ("refund_order", "confirm")
    assert "made by the accountants" in denied["tool_calls"][0]["error"]
    assert counted["tool_calls"][0]["tool_name"] == "mcp_count_items"
    assert (annotated["plan"]["status"], annotated["plan"]["steps"][0]["tool"]) == ("waiting", "mcp_write_off")
    assert [tools[f"mcp_{name}"]["effect"] for name in ("count_items", "write_off")] == ["read_only", "destructive"]
    assert (folder / "words").is_dir()


def test_the_package_of_the_page_brings_its_tools_and_a_setting_its_rule(folder: Path) -> None:
    written = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    tools = written["project"]["entry-points"]["segue.tools"]
    assert written["tool"]["setuptools"]["py-modules"] == [leads_to.partition(":")[0] for leads_to in tools.values()]
    about = folder / "shop-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    lines = [f"{name} = {leads_to}" for name, leads_to in tools.items()]
    (about / "entry_points.txt").write_text("\n".join(["[segue.tools]", *lines]))
    assert [tool.spec.name for tool in native_tools()] == ["find_order", "refund_order"]
    rule = Settings.model_validate({"before_call": "shop:before_call"}).before_call
    assert rule is importlib.import_module("shop").before_call


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "toml", "json", "sh"}
    assert PAGE.count("```") == 2 * len(BLOCKS)
