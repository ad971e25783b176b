"""Errors on the wire: RFC 9457 with a code and a sentence, an id to find them by, and nothing of our insides."""

import gzip
from collections.abc import AsyncIterator

import httpx2
from structlog.testing import capture_logs

from segue import __version__
from segue.config import Settings
from tests.support.service import Client, running
from tests.support.stores import Stores

JSON = {"content-type": "application/json"}
MISSING = "ses_" + "0" * 26


def assert_problem(response: httpx2.Response, status: int, code: str) -> str:
    """A problem of this status and code; gives its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem == {
        **problem,
        "type": f"urn:segue:problem:{code}",
        "status": status,
        "code": code,
        "request_id": response.headers["x-request-id"],
    }
    assert problem["title"]
    detail: str = problem["detail"]
    assert detail
    return detail


async def in_chunks(body: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def test_an_unknown_path_is_a_problem_that_points_to_the_docs(client: Client) -> None:
    assert "/docs" in assert_problem(await client.http.get("/nowhere"), 404, "not_found")


async def test_no_cache_keeps_an_answer_of_the_api_and_no_browser_guesses_what_it_is(client: Client) -> None:
    session = await client.new_session()
    for path in ("/me", f"/sessions/{session}/messages", f"/sessions/{MISSING}", "/metrics", "/nowhere", "/assets/x"):
        headers = (await client.http.get(path)).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff"), path
        assert headers["referrer-policy"] == "no-referrer"


async def test_an_unknown_session_is_named_as_what_is_missing(client: Client) -> None:
    assert_problem(await client.http.get(f"/sessions/{MISSING}"), 404, "session_not_found")


async def test_a_method_a_path_does_not_take_is_a_problem_with_allow(client: Client) -> None:
    response = await client.http.put("/sessions", json={})
    assert "/docs" in assert_problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, HEAD, POST"


async def test_an_invalid_field_is_named_with_what_is_wrong_and_without_what_was_sent(client: Client) -> None:
    response = await client.http.post("/sessions", json={"title": ["s3cret"], "metadata": "s3cret"})
    detail = assert_problem(response, 422, "invalid_request")
    assert detail.startswith("body.title: ")
    errors = response.json()["errors"]
    assert [error["loc"] for error in errors] == [["body", "title"], ["body", "metadata"]]
    assert [set(error) for error in errors] == [{"loc", "msg", "type"}] * 2
    assert "s3cret" not in response.text


async def test_an_unknown_field_is_refused_by_name(client: Client) -> None:
    response = await client.http.post("/sessions", json={"titel": "x"})
    assert "body.titel" in assert_problem(response, 422, "invalid_request")
    assert response.json()["errors"][0]["type"] == "extra_forbidden"


async def test_a_body_full_of_faults_gets_a_short_answer(client: Client) -> None:
    response = await client.http.post("/sessions", json={f"{number:0>1000}": number for number in range(500)})
    assert_problem(response, 422, "invalid_request")
    assert len(response.content) < 10_000


async def test_json_that_does_not_parse_is_told_why(client: Client) -> None:
    response = await client.http.post("/sessions", content=b'{"title": "a\\u0000"}', headers=JSON)
    assert "NUL" in assert_problem(response, 422, "invalid_request")
    response = await client.http.post("/sessions", content=b'{"title": ', headers=JSON)
    detail = assert_problem(response, 422, "invalid_request")
    assert detail == "body: This is not JSON: unexpected end of data"


async def test_a_body_without_its_content_type_is_told_to_bring_it(client: Client) -> None:
    for content in (b"{}", in_chunks(b"{}")):
        response = await client.http.post("/sessions", content=content)
        assert "Content-Type: application/json" in assert_problem(response, 422, "invalid_request")
    response = await client.http.post("/sessions?x=1", content=b"{}")  # which is not what is wrong here
    assert assert_problem(response, 422, "invalid_request").startswith("query.x: ")


async def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_read(settings: Settings) -> None:
    limit = 300_000
    fits = b'{"title":"Long"}'.ljust(limit)
    async with running(settings.model_copy(update={"max_body_bytes": limit})) as client:
        for content in (fits, in_chunks(fits)):
            assert (await client.http.post("/sessions", content=content, headers=JSON)).status_code == 201
        for content in (fits + b" ", in_chunks(fits + b" ")):
            response = await client.http.post("/sessions", content=content, headers=JSON)
            assert str(limit) in assert_problem(response, 413, "body_too_large")
        assert len((await client.get("/sessions"))["items"]) == 2


async def test_a_compressed_body_is_refused_and_told_why(client: Client) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    response = await client.http.post("/sessions", content=gzip.compress(b"{}"), headers=headers)
    assert "without Content-Encoding" in assert_problem(response, 422, "invalid_request")


async def test_an_unexpected_error_says_nothing_of_our_insides_to_anyone(client: Client, stores: Stores) -> None:
    session = await client.new_session()
    async with stores.hidden("messages"):
        with capture_logs() as logs:
            response = await client.send(session, "my pin is 0451")
    assert_problem(response, 500, "internal_error")
    for inside in ("messages", "content", "INSERT", "sqlalchemy", "asyncpg", "0451"):
        assert inside not in response.text
    [raised] = [entry for entry in logs if entry["event"] == "request_raised"]
    assert raised["error"] == "ProgrammingError"
    assert "0451" not in str(raised["exc_info"])
    assert [entry["status"] for entry in logs if entry["event"] == "request"] == [500]


async def test_every_response_carries_the_callers_request_id_and_the_release(client: Client) -> None:
    answers = {
        ("GET", "/sessions"): 200,
        ("GET", "/health/live"): 200,
        ("GET", "/docs"): 200,
        ("GET", "/openapi.json"): 200,
        ("POST", "/sessions"): 201,
        ("PUT", "/sessions"): 405,
        ("GET", f"/sessions/{MISSING}"): 404,
        ("GET", "/nowhere"): 404,
        ("GET", "/sessions?cursor=x"): 422,
        ("GET", "/tools?limit=200"): 200,
        ("GET", "/tools?limit=201"): 422,
        ("GET", "/tools?source=mcp"): 422,
        ("GET", "/agents?limit=1"): 200,
        ("GET", "/agents?name=segue"): 422,
        ("GET", "/agents/segue?words=true"): 422,
    }
    for (method, path), status in answers.items():
        response = await client.http.request(method, path, headers={"X-Request-Id": "my-id_1.2"})
        assert response.status_code == status, path
        assert response.headers.get_list("x-request-id") == ["my-id_1.2"], path
        assert response.headers.get_list("x-segue-version") == [__version__], path


async def test_an_unexpected_error_carries_the_request_id_and_the_release_too(client: Client, stores: Stores) -> None:
    async with stores.hidden("sessions"):
        with capture_logs():
            response = await client.http.get("/sessions", headers={"X-Request-Id": "lost"})
    assert_problem(response, 500, "internal_error")
    assert response.headers.get_list("x-request-id") == ["lost"]
    assert response.headers.get_list("x-segue-version") == [__version__]
    assert (response.headers["cache-control"], response.headers["x-content-type-options"]) == ("no-store", "nosniff")


async def test_a_request_id_that_is_not_a_plain_word_is_replaced(client: Client) -> None:
    for given in ("", "a b", "a" * 65, "é", "<script>", "a;b", "../x", 'a"b', "a\tb"):
        response = await client.http.get("/health/live", headers={b"X-Request-Id": given.encode()})
        [replaced] = response.headers.get_list("x-request-id")
        assert len(replaced) == 16, given
        assert replaced.isalnum(), given


async def test_requests_without_an_id_get_one_each(client: Client) -> None:
    ids = {(await client.http.get("/health/live")).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
