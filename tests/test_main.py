"""What the package offers to a program that embeds it, and how it is put together from its settings."""

import json
import subprocess
import sys

import pytest
from fastapi import FastAPI

import segue
from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.service import running

PROVIDERS = {"langchain_openai", "openai", "langchain_anthropic", "anthropic", "langchain_google_genai", "google.genai"}
HEAVY = {
    "fastapi",
    "pydantic",
    "sqlalchemy",
    "langchain_core",
    *PROVIDERS,
    "mcp",
    "alembic",
    "jwt",
    "cryptography",
    "trafilatura",
}
NOT_TO_START = {
    *PROVIDERS,
    "mcp",
    "alembic",
    "jwt",
    "trafilatura",
    "segue.around.embedded.servers",
    "segue.around.offline.offline_model",
}


def imported_by(statement: str) -> set[str]:
    """The modules that a new interpreter has after this statement."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_application_its_settings_and_what_tools_are_made_of_are_all_that_is_public() -> None:
    made_of = {"Agent", "Deny", "DependencyGroup", "ProposedCall", "ToolContext", "UserRequest", "tool"}
    raised = {"ToolAsks", "ToolFailed", "ToolRetry"}
    assert set(segue.__all__) == {"Settings", "create_app", *made_of, *raised}
    assert all(getattr(segue, name) for name in segue.__all__)
    assert isinstance(segue.create_app(segue.Settings(_env_file=None)), FastAPI)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        segue.nothing  # noqa: B018 (the look-up is what is tested)


def test_the_package_itself_imports_nothing_heavy() -> None:
    assert not HEAVY & imported_by("import segue")


@pytest.mark.sweep
def test_a_doctor_without_a_model_and_servers_imports_neither_and_no_agent() -> None:
    imported = imported_by("import segue.around.check_commands")
    assert not {*PROVIDERS, "mcp", "mcp_types", "langgraph", "langchain_core", "fastapi"} & imported
    assert {name for name in imported if name.startswith("segue.agent.")} <= {"segue.agent.agent_settings"}


def test_a_service_imports_only_what_its_settings_need() -> None:
    """With URLs, for example, not what starts the embedded servers."""
    imported = imported_by("import segue.around.service_process")
    assert "segue.main" in imported
    assert not NOT_TO_START & imported


def test_routes_are_made_whole_when_they_are_first_asked() -> None:
    """Before that they are only matched with requests: what each takes and gives is a fifth of a start."""
    whole = "[each.path for each in sessions.router.routes if 'dependant' in vars(each)]"
    program = f"from segue.main import sessions\nprint({whole}, sessions.router.routes[1].dependant.path, {whole})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] /sessions ['/sessions']\n"


async def test_a_built_in_tool_that_is_switched_off_is_not_offered(settings: Settings) -> None:
    async with running(settings.model_copy(update={"disabled_tools": ("web_fetch",)})) as client:
        names = {tool["name"] for tool in (await client.get("/tools"))["items"]}
    remembering = {"remember", "forget", "search_memory", "search_conversation"}
    assert names == {"current_time", "end_mandates", "get_tool_result", "promise", "propose_mandate", *remembering}
