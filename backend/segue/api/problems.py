"""Turns every error into a problem+json response (RFC 9457): AppError, validation, routing, and unexpected ones. Below
/v1 into the shape that OpenAI's clients read.
"""

from http import HTTPStatus
from typing import Annotated, Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from segue.api.doors import openai_errors
from segue.api.problem_codes import problems
from segue.domain.doc import doc
from segue.domain.errors import AppError, InvalidRequest
from segue.version import VERSION

REQUEST_ID_HEADER = "X-Request-Id"
VERSION_HEADER = "X-Segue-Version"
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 400: "invalid_request"}
_DETAILS = {
    404: "There is nothing at this path. /docs lists what there is.",
    405: "This path does not take this method. /docs lists what it takes.",
}
PROBLEM_TYPE = "application/problem+json"
MAX_SHOWN_CHARS = 200
MAX_SHOWN_FAULTS = 20


class Problem(BaseModel):
    """RFC 9457. Some codes add members of their own, as `turn_id` or `retry_after_s`."""

    type: Annotated[str, doc("`urn:segue:problem:` and the code.")]
    title: Annotated[str, doc("What went wrong, in a few words.")]
    status: Annotated[int, doc("The HTTP status.")]
    detail: Annotated[str, doc("What went wrong, and what to do.")]
    code: Annotated[str, doc("For programs: does not change.")]
    request_id: Annotated[str, doc("Finds the request in the log.")]
    errors: Annotated[list[dict[str, Any]] | None, doc("What validation found: `loc`, `msg`, `type`.")] = None


PROBLEMS = problems()  # of a router: openapi.py adds what its routes answer with

log = structlog.get_logger()


def route_path(scope: Scope) -> str:
    """Returns the path below the one that the application is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def add_problem_handlers(app: FastAPI) -> None:
    app.add_exception_handler(AppError, _app_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, http_problem)
    app.add_exception_handler(Exception, _unexpected)


def app_problem(request: Request, error: AppError) -> Response:
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request_failed", code=error.code, status=error.status)
    return _problem(request, error, **({"errors": error.errors} if error.errors else {}))


def _problem(request: Request, error: AppError, **more: Any) -> Response:
    request_id = request.scope.get("request_id", "")
    headers = {REQUEST_ID_HEADER: request_id, VERSION_HEADER: VERSION}
    if "retry_after_s" in error.extra:
        headers["Retry-After"] = str(error.extra["retry_after_s"])
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="segue"'
    if route_path(request.scope).startswith(openai_errors.PATHS):
        headers |= openai_errors.error_headers(error)
        body = openai_errors.error_body(error, more.get("errors", ()))
        return Response(orjson.dumps(body), error.status, headers, media_type="application/json")
    body = {
        "type": f"urn:segue:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "request_id": request_id,
        **error.extra,
        **more,
    }
    return Response(orjson.dumps(body), error.status, headers, media_type=PROBLEM_TYPE)


async def _app_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AppError)  # noqa: S101 (what this handler is registered for)
    return app_problem(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 (the same)
    errors = [_fault(fault) for fault in error.errors()[:MAX_SHOWN_FAULTS]]
    detail = "; ".join(f"{'.'.join(fault['loc'])}: {fault['msg']}" for fault in errors[:3])
    has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().endswith("json")
    if has_body and "content-encoding" in request.headers:
        detail = f"Send the body without Content-Encoding: it is not unpacked. ({detail})"
    elif has_body and not is_json:
        detail = f"Send the body with Content-Type: application/json. ({detail})"
    invalid = InvalidRequest(detail)
    return _problem(request, invalid, errors=errors)


async def http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (the same)
    phrase = HTTPStatus(error.status_code).phrase
    code = _CODES.get(error.status_code, phrase.lower().replace(" ", "_"))
    detail = error.detail if error.detail != phrase else _DETAILS.get(error.status_code, phrase)
    response = _problem(request, AppError(code, status=error.status_code, title=phrase, detail=detail))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("request_raised", path=request.url.path[:MAX_SHOWN_CHARS], error=type(error).__name__, exc_info=error)
    detail = "Something went wrong on our side. The request id finds it in the log."
    return _problem(request, AppError("internal_error", status=500, title="Internal error", detail=detail))


def _fault(fault: dict[str, Any]) -> dict[str, Any]:
    """One of pydantic's errors without the client's input, which can be long or a secret."""
    loc, message = [str(part)[:MAX_SHOWN_CHARS] for part in fault["loc"]], str(fault["msg"])
    if fault["type"] == "json_invalid":
        loc, message = loc[:1], f"This is not JSON: {fault['ctx']['error']}"  # FastAPI counts on a place in the text
    message = message.removeprefix("Value error, ")  # pydantic's, before a sentence of ours
    return {"loc": loc, "msg": message[:MAX_SHOWN_CHARS], "type": fault["type"]}
