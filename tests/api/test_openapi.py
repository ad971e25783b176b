"""The description of the API that the API itself gives. That it equals `docs/openapi.json` is `make check`'s to see."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

from segue.api.event_streams import CUSTOM_EVENTS, EVENT_TYPES, tables
from segue.api.problems import WHAT_TO_DO
from segue.config import Settings
from segue.db import outages
from segue.main import create_app
from tests.support.commands import ROOT
from tests.support.pages import needs_pages
from tests.support.service import Client

NOT_OVER_HTTP = {  # a process that cannot start, or a command that cannot go on
    "backup_too_new",
    "backup_unreadable",
    "copy_failed",
    "data_dir_busy",
    "data_dir_empty",
    "data_dir_unusable",
    "data_dir_unwritable",
    "database_too_new",
    "database_too_old",
    "database_unreachable",
    "embedded_failed",
    "embedded_unavailable",
    "jwt_key_unusable",
    "language_invalid",
    "mcp_config_invalid",
    "mcp_token_key_missing",
    "mcp_name_collision",
    "migrating",
    "no_store",
    "port_taken",
    "restoring",
    "store_in_use",
    "store_not_empty",
    "store_too_new",
    "tool_dependencies_invalid",
    "tool_invalid",
    "tool_verify_invalid",
    "turn_steered",  # the event log goes on with another turn's
}


@cache
def description() -> dict[str, Any]:
    """What `/openapi.json` answers, made once: it takes a third of a second."""
    return create_app(Settings(_env_file=None)).openapi()


def operations() -> dict[str, dict[str, Any]]:
    paths = description()["paths"]
    return {f"{method.upper()} {path}": operation for path, item in paths.items() for method, operation in item.items()}


def schemas() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = description()["components"]["schemas"]
    return found


@needs_pages
async def test_the_docs_page_shows_the_description(client: Client) -> None:
    page = await client.http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")


def test_every_operation_describes_what_it_answers() -> None:
    described = operations()
    assert "POST /sessions/{session_id}/chat" in described
    for name, operation in described.items():
        answers = {"200", "201", "202", "204"} & set(operation["responses"])
        assert answers, name
        for status in answers - {"204"}:
            assert "content" in operation["responses"][status], f"{name}: say in `responses` what a {status} holds"
            for content in operation["responses"][status]["content"].values():
                assert {"$ref", "type", "anyOf"} & content.get("itemSchema", content["schema"]).keys(), name
        assert operation["tags"], name


def test_nothing_lacks_a_description() -> None:
    lacking = list[str]()
    for name, operation in operations().items():
        parameters = operation.get("parameters", ())
        lacking += [f"{name} {each['name']}" for each in parameters if not each.get("description")]
    for name, schema in schemas().items():
        lacking += [] if schema.get("description") else [name]
        described = schema.get("properties", {})
        lacking += [f"{name}.{each}" for each, value in described.items() if not value.get("description")]
    assert lacking == []


def test_every_operation_has_a_short_id_and_a_sentence() -> None:
    described = operations().values()
    ids = [operation["operationId"] for operation in described]
    assert {"chat", "list_sessions"} < set(ids)
    assert len(ids) == len(set(ids))
    sentences = [operation["summary"] for operation in described]
    # without a docstring FastAPI makes a title of the name
    assert [said for said in sentences if len(said.split()) < 3 or said == said.title()] == []
    assert len(sentences) == len(set(sentences))


def test_titles_of_schemas_are_unique_and_a_problem_is_described_once() -> None:
    described = schemas()
    titles = [schema["title"] for schema in described.values()]
    assert len(titles) == len(set(titles))
    assert {"SessionPage", "MessagePage", "Problem"} <= described.keys()
    assert {"type", "title", "status", "detail", "code", "request_id"} <= set(described["Problem"]["required"])


def test_every_operation_says_which_problems_it_has_and_what_to_do() -> None:
    declared = set[str]()
    for name, operation in operations().items():
        assert "422" not in operation["responses"], name
        problem = operation["responses"]["default"]
        shape = ("application/json", "OpenAIError") if " /v1/" in name else ("application/problem+json", "Problem")
        assert problem["content"] == {shape[0]: {"schema": {"$ref": f"#/components/schemas/{shape[1]}"}}}, name
        for code in problem["x-problem-codes"]:
            status, what_to_do = WHAT_TO_DO[code]
            is_storage = code.startswith("storage_")
            assert ("| storage_… | 503 |" in problem["description"]) >= is_storage, name
            listed = schemas()["Problem"] if is_storage else problem
            assert f"| {code} | {status} | {what_to_do} |" in listed["description"], name
        declared |= set(problem["x-problem-codes"])
    assert declared == WHAT_TO_DO.keys()
    assert set(raised()) - NOT_OVER_HTTP == WHAT_TO_DO.keys()


def test_the_events_of_a_turn_are_described_wherever_they_are_sent() -> None:
    described = operations()
    for name in ("POST /sessions/{session_id}/chat", "POST /sessions/{session_id}/plan/decision"):
        assert set(described[name]["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    events = described["GET /sessions/{session_id}/turns/{turn_id}/events"]
    [content] = events["responses"]["200"]["content"].values()
    assert content["schema"]["description"].endswith(tables())
    assert {"after", "last-event-id"} <= {parameter["name"] for parameter in events["parameters"]}


def test_every_event_is_described_and_the_page_says_the_same() -> None:
    written = (ROOT / "backend/segue/events/agui_encoding.py").read_text("utf-8")
    assert set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+|CUSTOM)"', written)) == EVENT_TYPES.keys()
    assert set(re.findall(r'custom\("(\w+)"', written)) == CUSTOM_EVENTS.keys()
    assert tables() in (ROOT / "docs/events.md").read_text("utf-8")


def raised() -> Iterator[str]:
    """The codes of the errors that the package makes, read off its source."""
    for path in (ROOT / "backend/segue").rglob("*.py"):
        source = path.read_text("utf-8")
        named = dict(re.findall(r'^([A-Z_]+) = "(\w+)"$', source, re.MULTILINE))
        codes = re.findall(r'(?<!replace)\(\s*(?:"(\w+)"|([A-Z_]+)),\s*status=', source)
        yield from (code or named[name] for code, name in codes)
        yield from (f"{thing}_not_found" for thing in re.findall(r'(?:NotFound|existing)\(\s*"(\w+)"', source))
    yield from (cause.code for cause in outages.POSTGRES.values())
    rows = tomllib.loads((ROOT / "backend/segue/domain/errors.toml").read_text("utf-8"))
    yield from (row.get("code", name) for name, row in rows.items())
