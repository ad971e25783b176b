"""What the package offers to a program that embeds it, and how it is put together from its settings."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

import segue
from segue import create_app
from segue.config import Settings
from segue.plans.acknowledgement import LEXICON
from tests.support.commands import ROOT
from tests.support.logs import until
from tests.support.server import serving
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


# In one process: to import the service takes seconds of processor time.
STARTED = """
import json, sys
import segue.around.service_process
imported = list(sys.modules)
from segue.main import sessions
def whole():
    return [each.path for each in sessions.router.routes if 'dependant' in vars(each)]
print(json.dumps([imported, whole(), sessions.router.routes[1].dependant.path, whole()]))
"""


@cache
def started() -> tuple[list[str], list[str], str, list[str]]:
    """The modules that a start imports, the routes of sessions that are whole then, one that is asked, and the same."""
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=ROOT, capture_output=True, text=True, check=True)
    imported, before, asked, after = json.loads(done.stdout)
    return imported, before, asked, after


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


@pytest.mark.sweep
def test_a_service_imports_only_what_its_settings_need() -> None:
    """With URLs, for example, not what starts the embedded servers."""
    imported = started()[0]
    assert "segue.main" in imported
    assert not NOT_TO_START.intersection(imported)


def test_routes_are_made_whole_when_they_are_first_asked() -> None:
    """Before that they are only matched with requests: what each takes and gives is a fifth of a start."""
    assert started()[1:] == ([], "/sessions", ["/sessions"])


def test_the_settings_of_a_process_stay_as_they_were_read(settings: Settings) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings.confirm = "never"  # type: ignore[misc]


async def test_a_built_in_tool_that_is_switched_off_is_not_offered(settings: Settings) -> None:
    async with running(settings.model_copy(update={"disabled_tools": ("web_fetch",)})) as client:
        names = {tool["name"] for tool in (await client.get("/tools"))["items"]}
    remembering = {"remember", "forget", "search_memory", "search_conversation"}
    assert names == {"current_time", "end_mandates", "get_tool_result", "promise", "propose_mandate", *remembering}


# --- as a server other than `segue serve` runs it ---


@asynccontextmanager
async def served_with(settings: Settings, **told: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """The application under a server that tells it this of each request, and no header of HTTP/1.1's chunks."""
    app = create_app(settings)

    async def telling(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [header for header in scope["headers"] if header[0] != b"transfer-encoding"]
            scope = {**scope, **told, "headers": headers}
        await app(scope, receive, send)

    async with serving(telling) as url, httpx2.AsyncClient(base_url=url) as http:
        yield http


async def test_a_service_reads_its_word_lists_before_its_first_turn(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def are_read() -> bool:
        return "shipped" in vars(LEXICON)

    _ = LEXICON.now
    monkeypatch.delitem(vars(LEXICON), "shipped")
    async with running(settings):
        await until(are_read)


async def test_without_identity_it_answers_at_addresses_of_this_machine_only(settings: Settings) -> None:
    for server, status in ((("192.0.2.7", 8000), 403), (("::1", 8000), 200), (("/run/segue.sock", None), 200)):
        async with served_with(settings, server=server) as http:
            for host in ("localhost", "127.0.0.1"):  # any client may say so
                answer = await http.get("/sessions", headers={"Host": host})
                assert (answer.status_code, "192.0.2.7" in answer.text) == (status, status == 403)


async def test_a_body_of_unknown_length_has_its_limit_since_http_2_too(settings: Settings) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 100_000

    for version in ("2", "3"):
        async with served_with(settings.model_copy(update={"max_body_bytes": 300_000}), http_version=version) as http:
            answer = await http.post("/sessions", content=body(), headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
            assert (await http.get("/sessions")).status_code == 200


async def test_a_link_to_approve_opens_and_is_not_logged_whatever_the_prefix_is_called(settings: Settings) -> None:
    with capture_logs() as logs:
        async with served_with(settings.model_copy(update={"auth": "api_key"}), root_path="/app") as http:
            assert (await http.get("/approve/a-token")).status_code == 404
            assert (await http.get("/app/approve/a-token")).status_code == 404
    assert [line["path"] for line in logs if line["event"] == "request"] == ["/approve/…", "/approve/…"]
