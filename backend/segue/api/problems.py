"""Turns every error into a problem+json response (RFC 9457): AppError, validation, routing, and unexpected ones. Below
/v1 into the shape that OpenAI's clients read, because they show nothing of a problem+json.

WHAT_TO_DO says what each code means to a client, and `codes_of` which routes can answer with it: in openapi.json
tests/api/test_openapi.py compares the codes with those that the package raises.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from segue.domain.errors import AppError, InvalidRequest
from segue.domain.field_types import doc
from segue.version import VERSION

WHAT_TO_DO: Final[Mapping[str, tuple[int, str]]] = {
    "unauthorized": (401, "Send a valid key or token: `Authorization: Bearer …` or `X-API-Key: …`."),
    "forbidden": (403, "Use a key or token with the scope `ops`."),
    "beyond_own_scopes": (403, "Use a key that has the scopes of the new one, and `ops:content` for other users."),
    "may_not_speak_for": (403, "Use a key with the scope `act_as`, or let the frontend not name its users."),
    "host_not_allowed": (403, "Without AUTH: call the service as 127.0.0.1, or add the name to ALLOWED_HOSTS."),
    "origin_not_allowed": (403, "Without AUTH: add the page's origin to CORS_ORIGINS."),
    "session_not_found": (404, "The caller has no session of this id: `GET /sessions` lists them."),
    "turn_not_found": (404, "The session has no turn of this id: its `turns` lists them."),
    "message_not_found": (404, "The session has no message of this id: its `messages` lists them."),
    "branch_not_found": (404, "The session has no branch of this id: its `branches` lists them."),
    "mandate_not_found": (404, "The caller has no mandate of this id: `GET /mandates` lists them."),
    "memory_not_found": (404, "The caller has no fact of this id: `GET /memories` lists them."),
    "user_not_found": (404, "No row is of this user: `GET /ops/users` lists those there are."),
    "key_not_found": (404, "No key of this id works: `GET /ops/keys` lists them."),
    "tool_result_not_found": (404, "The session has no call of this id: its `tool-results` lists them."),
    "receipt_not_found": (404, "The call is not the caller's, or changed nothing and has none."),
    "tool_result_part_not_found": (404, "The result has no image or file of this number: it names those it has."),
    "mcp_server_not_found": (404, "This process has no MCP server of this name: `GET /mcp/servers` lists them."),
    "mcp_login_unavailable": (502, "`detail` says what the MCP server or its authorization server lacks."),
    "mcp_prompt_not_found": (404, "The server offers no such prompt: `GET /mcp/prompts` lists those there are."),
    "unknown_tool": (404, "`GET /tools` lists those there are."),
    "unknown_agent": (404, "`GET /agents` lists those there are. In a body it is a 422."),
    "schedule_not_found": (404, "The caller has no such schedule: `GET /schedules` lists them."),
    "trigger_not_found": (404, "There is no such trigger, or it is paused: `GET /triggers` lists the caller's."),
    "no_open_plan": (404, "Nothing waits in this session: go on without."),
    "no_grant": (404, "Nothing is remembered for this tool in this session: its `grants` lists what is."),
    "plan_changed": (409, "Read the plan again, show it, and decide on the version that it has now."),
    "approval_not_found": (404, "Nothing of this id waits for the caller: `GET /approvals` lists what does."),
    "waits_for_others": (403, "Others have to decide, as `detail` says. The user may only take it back."),
    "not_yours_to_decide": (403, "Another person has to decide, as `detail` says."),
    "plan_expired": (409, "Nothing was run. Ask for it anew."),
    "turn_in_progress": (409, "Nothing was accepted. Wait for the turn `turn_id`, or send it with another `on_busy`."),
    "not_in_history": (409, "The message is in a branch, to be read only. Read the history anew."),
    "in_conversation": (
        409,
        "Nothing was deleted. Delete the conversation that `detail` names, if all of it is to go.",
    ),
    "cannot_retry": (409, "Only the last turn, if it failed or was cancelled. Regenerate an answer instead."),
    "turn_cancelled": (
        409,
        "The message is kept. `approved_step` says whether a step that waited for a yes ran. Send another.",
    ),
    "unreadable": (409, "What is stored is damaged, or of a newer release. Send another message to go on."),
    "session_exists": (
        409,
        "Go on with the one that there is: with `if_exists: do_nothing`, or the same Idempotency-Key.",
    ),
    "memory_exists": (409, "Another fact says the same: delete one of the two."),
    "too_many_unattended": (409, "Nothing was made. Delete a schedule or a trigger, as `detail` says."),
    "no_api_keys": (409, "Callers have no API keys here: AUTH is not `api_key`."),
    "nothing_to_export": (409, "Send a message first, or wait for the turn that runs."),
    "attachment_not_found": (404, "The session has no file of this id: its `attachments` lists them."),
    "tool_result_expired": (410, "It is no longer kept. Let the tool run again."),
    "body_too_large": (413, "Send less than MAX_BODY_BYTES; a file of ATTACHMENT_MAX_BYTES at most."),
    "attachment_quota_exceeded": (413, "Delete files or sessions: all files of a user have ATTACHMENT_USER_BYTES."),
    "unsupported_attachment": (415, "Attach a file of a kind that `detail` names, or install the extra it names."),
    "unreadable_attachment": (422, "The file is empty, damaged, encrypted or too much to read, as `detail` says."),
    "unknown_attachment": (422, "Nothing was accepted. Upload the file to this session first."),
    "invalid_request": (422, "Correct what `errors` and `detail` name. 400 if the body cannot be read at all."),
    "price_missing": (422, "Nothing was set. Add the price to the file PRICES_FILE, and restart."),
    "invalid_answer": (422, "Send an `answer` that fits `asks.schema` of the waiting step, or none if it has none."),
    "invalid_args": (422, "Send arguments that the tool of the waiting step takes: `GET /tools` has their schema."),
    "invalid_cursor": (422, "Use `next_cursor` of the page before as it is, or none."),
    "trigger_key_missing": (409, "Nothing was made. Operators set MCP_TOKEN_KEY, which seals secrets."),
    "signature_invalid": (401, "Nothing was begun. Sign the event with the trigger's secret, within five minutes."),
    "not_confirmed": (422, "Name the user in `confirm` whose rows are to go: `GET /me` tells the caller's."),
    "idempotency_key_reused": (422, "Use a new key for a new message."),
    "client_tools": (422, "Offer fewer or smaller tools of the page, or others, as `detail` says."),
    "not_supported": (422, "Leave out what `detail` names: LangGraph's server has it, and Segue has nothing for it."),
    "parts_unsupported": (422, "Send text, and files in the message as `data:` URLs: nothing is fetched."),
    "not_the_users": (422, "Edit a message of the user's, or regenerate the answer."),
    "cannot_edit_steer": (422, "Edit the message that opened its turn."),
    "not_an_answer": (422, "Rate a message of the assistant."),
    "query_in_session": (422, "Ask for the facts of a session or for those that a query finds, not for both."),
    "invalid_path": (422, "Correct the JMESPath, or ask for less."),
    "conversation_too_long": (422, "List its messages and results by page."),
    "option_not_allowed": (400, "Nothing was accepted. Leave out `param`, which the agent does not allow."),
    "unsupported_parameter": (400, "Nothing was accepted. Leave out `param`: it would change the answer, and cannot."),
    "output_invalid": (502, "The message is kept. Ask with a simpler schema: `detail` says what does not fit."),
    "agents_invalid": (422, "Correct the file as `detail` says. The agents of before stay."),
    "rate_limited": (429, "Wait `retry_after_s`. `limit` says which limit it is."),
    "service_limit_reached": (429, "All users together have used up today's limit. Wait `retry_after_s`."),
    "too_many_queued": (429, "Nothing was accepted. Send it when one of those that wait is done."),
    "internal_error": (500, "Ours. `request_id` finds it in the log."),
    "turn_gave_up": (500, "Every process that ran it died. The message is kept; send another to go on."),
    "model_unavailable": (502, "The message is kept. Send it again later, or see to the provider as `detail` says."),
    "mcp_server_failed": (502, "The server did not do it, as `detail` says. Repeat it later, or go on without."),
    "turn_budget_spent": (502, "The message is kept. Ask for less at a time."),
    "storage_unavailable": (503, "Repeat it after `retry_after_s`; with an Idempotency-Key nothing is done twice."),
    "storage_access_denied": (503, "The service may not use its database: tell its operators. Nothing was accepted."),
    "storage_too_many_connections": (503, "Its database takes no more connections. Repeat it after `retry_after_s`."),
    "storage_slow": (503, "Its database is too slow at the moment. Repeat it after `retry_after_s`."),
    "storage_locked": (503, "Another connection locks what it needs. Repeat it after `retry_after_s`."),
    "storage_full": (503, "The disk of its database is full. Repeat it after `retry_after_s`."),
    "storage_read_only": (503, "Its database only reads. Repeat it after `retry_after_s`; what reads works."),
    "storage_pooler": (503, "A pooler refuses what the service needs: tell its operators. Nothing was accepted."),
    "identity_unavailable": (503, "Repeat it after `retry_after_s`."),
    "turn_interrupted": (503, "The turn goes on. Read it, or repeat the request with its Idempotency-Key."),
    "model_timeout": (504, "The message is kept. Send it again."),
    "turn_timeout": (504, "The message is kept. Ask for less at a time."),
}
OF_EVERY_ROUTE: Final = {"host_not_allowed", "internal_error"}
OF_STORAGE: Final = {code for code in WHAT_TO_DO if code.startswith("storage_")}
OF_CALLERS: Final = OF_STORAGE | {"unauthorized", "identity_unavailable", "rate_limited", "invalid_request"}
OF_PARAMETERS: Final[Mapping[str, str]] = {  # of others as `session_id` it is `session_not_found`
    "chat_id": "session_not_found",
    "thread_id": "session_not_found",
    "run_id": "turn_not_found",
    "assistant_id": "unknown_agent",
    "tool_call_id": "tool_result_not_found",
    "agent_id": "unknown_agent",
    "tool": "unknown_tool",
    "user": "invalid_request",
    "response_id": "turn_not_found",
    "conversation_id": "session_not_found",
    "cursor": "invalid_cursor",
    "idempotency-key": "idempotency_key_reused",
}
OF_OTHER_PLACES: Final = {"cursor", "idempotency-key"}  # than the path
MAY_STREAM: Final = {"application/json", "text/event-stream"}  # an answer, or the events that lead to it
OF_TURNS: Final = {
    "service_limit_reached", "plan_changed", "turn_cancelled", "turn_interrupted", "turn_gave_up", "turn_timeout",
    "turn_budget_spent", "model_unavailable", "model_timeout", "output_invalid", "unreadable",
}  # fmt: skip
OF_FILES: Final = ("attachment_quota_exceeded", "unsupported_attachment", "unreadable_attachment")
OF_DOORS: Final = (
    *OF_FILES, "may_not_speak_for", "session_not_found", "turn_not_found", "unknown_agent", "turn_in_progress",
    "not_in_history", "idempotency_key_reused", "parts_unsupported", "too_many_queued",
    "option_not_allowed",
)  # fmt: skip
OF_DECISIONS: Final = (
    "invalid_answer", "invalid_args", "no_open_plan", "plan_changed", "plan_expired", "unknown_tool", "unreadable",
    "waits_for_others",
)  # fmt: skip

OPENAI_PATHS: Final = "/v1/"
RETRIED: Final = frozenset({408, 409, 429})  # by OpenAI's libraries, twice, as are those from 500 on
LONGEST_WAIT_S: Final = 60
REQUEST_ID_HEADER = "X-Request-Id"
VERSION_HEADER = "X-Segue-Version"
PROBLEM_TYPE = "application/problem+json"
MAX_SHOWN_CHARS = 200
MAX_SHOWN_FAULTS = 20
_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 400: "invalid_request"}
_DETAILS = {
    404: "There is nothing at this path. /docs lists what there is.",
    405: "This path does not take this method. /docs lists what it takes.",
}

log = structlog.get_logger()


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """For `responses` of a route: what it can answer with beside what its parameters, body and caller bring along."""
    return {"default": {"x-problem-codes": codes}}


def codes_of(method: str, operation: Mapping[str, Any]) -> list[str]:
    """Returns what an operation of the OpenAPI document can answer with, in the order of WHAT_TO_DO."""
    codes = OF_EVERY_ROUTE | set(operation["responses"].get("default", {}).get("x-problem-codes", ()))
    for each in operation.get("parameters", ()):
        if each["in"] == "path" or each["name"] in OF_OTHER_PLACES:
            codes |= {OF_PARAMETERS.get(each["name"], f"{each['name'].removesuffix('_id')}_not_found")}
    if operation["responses"].get("200", {}).get("content", {}).keys() >= MAY_STREAM:
        codes |= OF_TURNS
    if operation.get("security"):
        codes |= OF_CALLERS
    if "requestBody" in operation:
        codes |= {"body_too_large"}
    if method != "get":
        codes |= {"origin_not_allowed"}
    return [code for code in WHAT_TO_DO if code in codes]


def table(codes: list[str]) -> str:
    rows = (f"| {code} | {WHAT_TO_DO[code][0]} | {WHAT_TO_DO[code][1]} |" for code in codes)
    return "\n".join(["| code | status | what to do |", "|---|---|---|", *rows])


class OpenAIErrorBody(BaseModel):
    """What went wrong, as OpenAI says it."""

    message: Annotated[str, doc("What went wrong, and what to do.")]
    type: Annotated[str, doc("What kind of error it is: `invalid_request_error`, `server_error`, …")]
    code: Annotated[str, doc("For programs: does not change. `model_not_found` is our `unknown_agent`.")]
    param: Annotated[str | None, doc("What in the request it is about.")] = None


class OpenAIError(BaseModel):
    """An error of the OpenAI-compatible routes."""

    error: Annotated[OpenAIErrorBody, doc("The error.")]


def error_body(error: AppError, faults: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """`faults` are what validation found; the first is what the error is about."""
    kind = "server_error" if error.status >= 500 else _OPENAI_TYPES.get(error.status, "invalid_request_error")  # noqa: PLR2004
    code, param = (
        ("model_not_found", "model") if error.code == "unknown_agent" else (error.code, error.extra.get("param"))
    )
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
    """RFC 9457. Some codes add members of their own, as `turn_id` or `retry_after_s`."""

    type: Annotated[str, doc("`urn:segue:problem:` and the code.")]
    title: Annotated[str, doc("What went wrong, in a few words.")]
    status: Annotated[int, doc("The HTTP status.")]
    detail: Annotated[str, doc("What went wrong, and what to do.")]
    code: Annotated[str, doc("For programs: does not change.")]
    request_id: Annotated[str, doc("Finds the request in the log.")]
    errors: Annotated[list[dict[str, Any]] | None, doc("What validation found: `loc`, `msg`, `type`.")] = None


PROBLEMS = problems()  # of a router: pages.py adds what its routes answer with


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
    if route_path(request.scope).startswith(OPENAI_PATHS):
        headers |= error_headers(error)
        body = error_body(error, more.get("errors", ()))
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
    return _problem(request, InvalidRequest(detail), errors=errors)


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
    """Returns one of pydantic's errors without the client's input, which can be long or a secret."""
    loc, message = [str(part)[:MAX_SHOWN_CHARS] for part in fault["loc"]], str(fault["msg"])
    if fault["type"] == "json_invalid":
        loc, message = loc[:1], f"This is not JSON: {fault['ctx']['error']}"  # FastAPI counts on a place in the text
    message = message.removeprefix("Value error, ")  # pydantic's, before a sentence of ours
    return {"loc": loc, "msg": message[:MAX_SHOWN_CHARS], "type": fault["type"]}
