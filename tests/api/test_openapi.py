"""The description of the API that the API itself gives. That it equals `docs/openapi.json` is `make check`'s to see."""

from typing import Any

from tests.support.service import Client


async def operations(client: Client) -> dict[str, dict[str, Any]]:
    paths = (await client.get("/openapi.json"))["paths"]
    return {f"{method.upper()} {path}": operation for path, item in paths.items() for method, operation in item.items()}


async def test_the_docs_page_shows_the_description(client: Client) -> None:
    page = await client.http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text


async def test_every_operation_describes_what_it_answers(client: Client) -> None:
    described = await operations(client)
    assert "POST /sessions/{session_id}/chat" in described
    for name, operation in described.items():
        answers = {"200", "201", "202", "204"} & set(operation["responses"])
        assert answers, name
        for status in answers - {"204"}:
            for content in operation["responses"][status]["content"].values():
                assert {"$ref", "type", "anyOf"} & content["schema"].keys(), name
        assert operation["tags"], name


async def test_every_operation_describes_its_errors_as_problems(client: Client) -> None:
    for name, operation in (await operations(client)).items():
        assert "422" not in operation["responses"], name
        problem = operation["responses"]["default"]["content"]["application/problem+json"]["schema"]
        assert {"type", "title", "status", "detail", "code", "request_id"} <= set(problem["required"]), name


async def test_the_events_of_a_turn_are_described_wherever_they_are_sent(client: Client) -> None:
    described = await operations(client)
    for name in ("POST /sessions/{session_id}/chat", "POST /sessions/{session_id}/plan/decision"):
        assert set(described[name]["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    events = described["GET /sessions/{session_id}/turns/{turn_id}/events"]
    assert set(events["responses"]["200"]["content"]) == {"text/event-stream"}
    assert {"after", "last-event-id"} <= {parameter["name"] for parameter in events["parameters"]}


async def test_ids_of_operations_are_unique(client: Client) -> None:
    ids = [operation["operationId"] for operation in (await operations(client)).values()]
    assert len(ids) == len(set(ids))
