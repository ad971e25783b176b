"""Turns every error into problem+json (RFC 9457); below /v1 into the only shape that OpenAI's clients show.

WHAT_TO_DO says what each code means to a client (problems.toml), and `codes_of` which routes can answer with it.
tests/api/test_openapi.py compares the codes with those that the package raises.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, cast

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from segue import __version__
from segue.domain.errors import AppError, InvalidRequest, app_error
from segue.domain.field_types import doc
from segue.language.lexicon import load_toml
from segue.log import log

_DESCRIBED: Final = load_toml("problems.toml", package="segue.api")
WHAT_TO_DO: Final[Mapping[str, Sequence[Any]]] = _DESCRIBED["what_to_do"]
OF_EVERY_ROUTE: Final = {"host_not_allowed", "internal_error"}
OF_STORAGE: Final = {code for code in WHAT_TO_DO if code.startswith("storage_")}
ANY_OF_STORAGE: Final = "storage_…"  # nearly all routes have them: only the schema Problem lists each
_ROWS: Final = {**WHAT_TO_DO, ANY_OF_STORAGE: _DESCRIBED["any_of_storage"]}
OF_OTHER_PLACES: Final = {"cursor", "idempotency-key"}  # than the path
MAY_STREAM: Final = {"application/json", "text/event-stream"}  # an answer, or the events that lead to it
_TOGETHER: Final[Mapping[str, Sequence[str]]] = _DESCRIBED["together"]
OF_TURNS: Final = {*_TOGETHER["turns"]}
OF_FILES: Final = tuple(_TOGETHER["files"])
OF_DOORS: Final = (*OF_FILES, *_TOGETHER["doors"])
OF_OPENAI: Final = (*OF_DOORS, *_TOGETHER["openai"])
OF_DECISIONS: Final = tuple(_TOGETHER["decisions"])
OPENAI_PATHS: Final = "/v1/"
RETRIED: Final = frozenset({408, 409, 429})  # by OpenAI's libraries, twice, as are those from 500 on
LONGEST_WAIT_S: Final = 60
REQUEST_ID_HEADER = "X-Request-Id"
VERSION_HEADER = "X-Segue-Version"
# Of every answer that has none of its own: no cache knows that X-API-Key is a credential.
PRIVATE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
PROBLEM_TYPE = "application/problem+json"
MAX_SHOWN_CHARS = 200
MAX_SHOWN_FAULTS = 20
_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 400: "invalid_request"}
_DETAILS = {
    404: "There is nothing at this path. /docs lists what there is.",
    405: "This path does not take this method. /docs lists what it takes.",
}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """For `responses` of a route: what it can answer with beside what its parameters, body and caller bring along."""
    return {"default": {"x-problem-codes": codes}}


def codes_of(method: str, operation: Mapping[str, Any]) -> list[str]:
    """Returns what an operation of the OpenAPI document can answer with, in the order of WHAT_TO_DO."""
    codes = OF_EVERY_ROUTE | set(operation["responses"].get("default", {}).get("x-problem-codes", ()))
    for each in operation.get("parameters", ()):
        if each["in"] == "path" or each["name"] in OF_OTHER_PLACES:
            codes |= {_DESCRIBED["of_parameters"].get(each["name"], f"{each['name'].removesuffix('_id')}_not_found")}
    if operation["responses"].get("200", {}).get("content", {}).keys() >= MAY_STREAM:
        codes |= OF_TURNS
    if operation.get("security"):
        codes |= OF_STORAGE | {"unauthorized", "identity_unavailable", "rate_limited", "invalid_request"}
    if "requestBody" in operation:
        codes |= {"body_too_large"}
    if method != "get":
        codes |= {"origin_not_allowed"}
    return [code for code in WHAT_TO_DO if code in codes]


def table(codes: Iterable[str]) -> str:
    """Returns what to do about each code, in Markdown. `ANY_OF_STORAGE` stands for all that begin so."""
    rows = (f"| {code} | {_ROWS[code][0]} | {_ROWS[code][1]} |" for code in codes)
    return "\n".join(["| code | status | what to do |", "|---|---|---|", *rows])


class OpenAIErrorBody(BaseModel):
    """An error, as OpenAI describes it."""

    message: Annotated[str, doc("What went wrong, and what to do about it.")]
    type: Annotated[str, doc("The kind of error: `invalid_request_error`, `server_error`, …")]
    code: Annotated[str, doc("A stable code for programs. `unknown_agent` is `model_not_found` here.")]
    param: Annotated[str | None, doc("The part of the request that is wrong; null if none is.")] = None


class OpenAIError(BaseModel):
    """The answer of an OpenAI-compatible route to a request that failed."""

    error: Annotated[OpenAIErrorBody, doc("The error.")]


def error_body(error: AppError, faults: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """`faults` are what validation found; the first is what the error is about."""
    kind = "server_error" if error.status >= 500 else _OPENAI_TYPES.get(error.status, "invalid_request_error")  # noqa: PLR2004
    code, param = error.code, error.extra.get("param")
    code, param = ("model_not_found", "model") if code == "unknown_agent" else (code, param)
    if faults and len(faults[0]["loc"]) > 1:
        param = ".".join(faults[0]["loc"][1:])
    return {"error": {"message": error.detail, "type": kind, "code": code, "param": param}}


def error_headers(error: AppError) -> dict[str, str]:
    """Keeps a library from asking again if that cannot help, and names the turn that the error is of."""
    headers = {}
    wait_s = error.extra.get("retry_after_s", 0)
    helps = error.retryable and isinstance(wait_s, int) and wait_s <= LONGEST_WAIT_S
    if not helps and (error.status in RETRIED or error.status >= 500):  # noqa: PLR2004
        headers["x-should-retry"] = "false"
    named = {"X-Session-Id": error.extra.get("session_id"), "X-Turn-Id": error.extra.get("turn_id")}
    return headers | {name: str(value) for name, value in named.items() if value is not None}


class Problem(BaseModel):
    """An error (RFC 9457). Some codes add members of their own, such as `turn_id`, or `retry_after_s` in seconds."""

    type: Annotated[str, doc("The type of the problem: `urn:segue:problem:` and its code.")]
    title: Annotated[str, doc("What went wrong, in a few words.")]
    status: Annotated[int, doc("The HTTP status of the answer.")]
    detail: Annotated[str, doc("What went wrong, and what to do about it.")]
    code: Annotated[str, doc("A stable code for programs to decide by.")]
    request_id: Annotated[str, doc("The id of the request, which finds it in the log.")]
    errors: Annotated[list[dict[str, Any]] | None, doc("Faults found by validation: `loc`, `msg`, `type`.")] = None


PROBLEMS = problems()  # of a router: pages.py adds what its routes answer with


def add_problem_handlers(app: FastAPI) -> None:
    app.exception_handler(AppError)(app_problem)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(http_problem)
    app.exception_handler(ClientDisconnect)(_left)
    app.exception_handler(Exception)(_unexpected)


async def app_problem(request: Request, error: AppError) -> Response:
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request_failed", code=error.code, status=error.status)
    return _problem(request, error, **({"errors": error.errors} if error.errors else {}))


def invalid_part(error: ValidationError, place: str) -> RequestValidationError:
    """Returns the refusal of a part of a body that is validated by itself."""
    return RequestValidationError([{**each, "loc": (place, *each["loc"])} for each in error.errors()])


def _problem(request: Request, error: AppError, **more: Any) -> Response:
    request_id = request.scope.get("request_id", "")
    headers = {REQUEST_ID_HEADER: request_id, VERSION_HEADER: __version__}
    if "retry_after_s" in error.extra:
        headers["Retry-After"] = str(error.extra["retry_after_s"])
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="segue"'
    if request.scope["route_path"].startswith(OPENAI_PATHS):
        headers |= error_headers(error)
        body = error_body(error, more.get("errors", ()))
        return Response(orjson.dumps(body), error.status, headers, media_type="application/json")
    content = orjson.dumps({**error.problem, "request_id": request_id, **more})
    return Response(content, error.status, headers, media_type=PROBLEM_TYPE)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    errors = [_fault(fault) for fault in error.errors()[:MAX_SHOWN_FAULTS]]
    detail = "; ".join(f"{'.'.join(fault['loc'])}: {fault['msg']}" for fault in errors[:3])
    has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    has_body &= any(fault["loc"][0] == "body" for fault in errors)  # else it is not what is wrong
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().endswith("json")
    if has_body and "content-encoding" in request.headers:
        detail = f"Send the body without Content-Encoding: it is not unpacked. ({detail})"
    elif has_body and not is_json:
        detail = f"Send the body with Content-Type: application/json. ({detail})"
    return _problem(request, InvalidRequest(detail), errors=errors)


async def http_problem(request: Request, error: HTTPException) -> Response:
    problem = _of_status(error.status_code, error.detail)
    if problem.detail == problem.title:  # Starlette's own
        problem.detail = _DETAILS.get(problem.status, problem.title)
    response = _problem(request, problem)
    response.headers.update(error.headers or {})
    if error.status_code == 405:  # noqa: PLR2004 (Starlette names the methods of one route)
        others = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
        taken = set().union(*(route.methods or () for route in others))
        response.headers["Allow"] = ", ".join(sorted(taken | ({"HEAD"} if "GET" in taken else set())))
    return response


def _of_status(status: int, detail: str, *, retry_after_s: int | None = None) -> AppError:
    phrase = HTTPStatus(status).phrase
    code = _CODES.get(status, phrase.lower().replace(" ", "_"))
    return AppError(code, status=status, title=phrase, detail=detail, retry_after_s=retry_after_s)


def refusal(scope: Scope, status: int, detail: str, *, retry_after_s: int | None = None) -> bytes:
    """Returns, as it is sent, the response to a request that the application does not see whole, and logs it."""
    scope = {"route_path": "", "request_id": secrets.token_hex(8), **scope, "type": "http"}
    log.info("request_refused", request_id=scope["request_id"], status=status)
    error = _of_status(status, detail, retry_after_s=retry_after_s)
    response = _problem(Request(scope), error)
    response.headers.update({**PRIVATE, "Connection": "close"})
    head = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, error.title.encode(), head, bytes(response.body))


async def _left(request: Request, _: Exception) -> Response:
    return await http_problem(request, HTTPException(400, "The client left before the body had come whole."))


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("request_raised", path=request.scope["logged_path"], error=type(error).__name__, exc_info=error)
    return _beyond_middleware(request, _problem(request, app_error("request_failed")))


def cut_off(request: Request) -> Response:
    """Returns what a request gets that the end of its process cuts off."""
    error = app_error("turn_interrupted")
    error.detail = "This process is stopping. Repeat the request, with the same Idempotency-Key if it had one."
    return _beyond_middleware(request, _problem(request, error))


def _beyond_middleware(request: Request, problem: Response) -> Response:
    """Returns it so that a page of another origin may read it, and no cache keeps it."""
    problem.headers.update(PRIVATE)
    cors = next((each.kwargs for each in request.app.user_middleware if each.cls is CORSMiddleware), None)
    return problem if cors is None else cast("Response", CORSMiddleware(problem, **cors))


def _fault(fault: dict[str, Any]) -> dict[str, Any]:
    """Returns one of pydantic's errors without the client's input, which can be long or a secret."""
    loc, message = [str(part)[:MAX_SHOWN_CHARS] for part in fault["loc"]], str(fault["msg"])
    if fault["type"] == "json_invalid":
        loc, message = loc[:1], f"This is not JSON: {fault['ctx']['error']}"  # FastAPI counts on a place in the text
    message = message.removeprefix("Value error, ")  # pydantic's, before a sentence of ours
    return {"loc": loc, "msg": message[:MAX_SHOWN_CHARS], "type": fault["type"]}
