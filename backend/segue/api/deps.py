"""What routes are declared with: a router, the services of this process, the caller, ids in the path, strict JSON."""

import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, Protocol, TypedDict, cast

import orjson
from fastapi import APIRouter, Depends, Header, Path, Request, Security, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import AfterValidator, Field
from starlette.responses import Response
from starlette.routing import compile_path
from structlog.contextvars import bind_contextvars

from segue.api.api_settings import ApiSettings
from segue.api.metrics import Metrics
from segue.api.problems import PROBLEMS
from segue.db.engine import Asked, Connection, Loaded, Statements
from segue.domain.errors import NotFound, app_error
from segue.domain.identity import Identity, Operator
from segue.domain.ids import Prefix, is_id
from segue.events.user_feed import UserFeeds
from segue.history.operator_figures import OperatorFigures
from segue.mcp.mcp_servers import McpServers
from segue.memory.session_store import check_session
from segue.tools.attachment_store import Attachments
from segue.tools.normalize import clean
from segue.turns.chat_request import Origin
from segue.turns.triggers import Triggers
from segue.turns.turn_deps import TurnDeps
from segue.turns.turn_service import TurnService
from segue.users.api_keys import ApprovalLinks, Authenticator
from segue.users.audit import record_act
from segue.users.limits import LimitsInForce

MAX_DEPTH = 64
_NOT_IN_QUERY = (params.Path, params.Header, params.Cookie)
MAX_NUMBER = 2**63  # orjson makes floats of larger integers
MAX_VALUES = 300_000  # of a body: each is looked at on the event loop


class Examine(Protocol):
    """What `segue doctor --json` says of the service, or of a session. Raises NotFound."""

    async def __call__(self, session_id: str | None, *, words: bool) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Services(TurnDeps):
    """The parts of the service. `gateway`, None without a secret, tells whom a gateway's token names."""

    settings: ApiSettings
    authenticator: Authenticator
    gateway: Authenticator | None
    limits: LimitsInForce
    feeds: UserFeeds
    turns: TurnService
    attachments: Attachments
    triggers: Triggers
    approval_links: ApprovalLinks
    mcp: McpServers
    examine: Examine
    metrics: Metrics
    figures: OperatorFigures
    words: Awaitable[None]  # reads the word lists

    def groups_of(self, identity: Identity) -> tuple[str, ...]:
        """Returns the caller's groups that something here is for: an identity provider may send hundreds."""
        if not identity.groups:
            return ()
        named = self.agents.groups() | self.tools.groups() | self.books.groups.keys() | {*self.settings.schedule_groups}
        return tuple(sorted(identity.groups & named))

    async def read(self, load: Statements[Asked, Loaded], *args: Asked.args, **named: Asked.kwargs) -> Loaded:
        return await self.database.read(load, *args, **named)

    async def read_in(
        self, caller: str, session_id: str, load: Statements[Asked, Loaded], *args: Asked.args, **named: Asked.kwargs
    ) -> Loaded:
        """The same in a session that has to be the caller's. Raises NotFound."""
        async with self.database.read_only() as connection:
            await check_session(connection, caller, session_id)
            return await load(connection, *args, **named)


class State(TypedDict):
    """What the lifespan yields: `request.state.services`."""

    services: Services


async def _services(request: Request) -> Services:
    return cast(Services, request.state.services)


Parts = Annotated[Services, Depends(_services)]


async def _credentials(
    _bearer: Annotated[object, Security(HTTPBearer(scheme_name="bearer", auto_error=False))],
    _api_key: Annotated[object, Security(APIKeyHeader(name="X-API-Key", scheme_name="api_key", auto_error=False))],
) -> None:
    """Only for openapi.json: the gate reads the credentials."""


Described = Annotated[None, Depends(_credentials)]


async def _identity(request: Request, _: Described) -> Identity:
    """Set by the gate."""
    return cast(Identity, request.state.identity)


IdentityDep = Annotated[Identity, Depends(_identity)]


async def _caller(request: Request, _: Described) -> str:
    user: str = request.state.identity.user  # a dependency of a dependency costs as much as the rest of it
    return user


def require_ops(identity: Identity) -> None:
    """Raises AppError `forbidden` for a caller who may not see other users' data."""
    if "ops" not in identity.scopes:
        raise app_error("forbidden")


def require_content(identity: Identity) -> None:
    """Raises AppError `forbidden` for a caller who may not see what other users said."""
    if "ops:content" not in identity.scopes:
        raise app_error("content_forbidden")


async def record_reading(
    connection: Connection, identity: Identity, origin: Origin, session_id: str, *, words: bool = True
) -> None:
    """Audits that an operator reads another user's session. Raises AppError `forbidden` for its `words`."""
    if words:
        require_content(identity)
    operator = Operator(**asdict(identity), request_id=origin.request_id)
    await record_act(connection, operator, "read_session", session_id=session_id)


async def _ops(request: Request, identity: IdentityDep) -> Operator:
    """Raises AppError `forbidden`."""
    require_ops(identity)
    return Operator(**asdict(identity), request_id=request.scope["request_id"])


async def may_read_metrics(request: Request, services: Parts, _: Described) -> None:
    """With METRICS_PUBLIC every client, otherwise callers with the scope `ops`. Raises AppError `forbidden`."""
    if not services.settings.metrics_public:
        require_ops(request.state.identity)


async def _origin(request: Request) -> Origin:
    scope, state = request.scope, request.state
    return Origin(scope["request_id"], scope["traceparent"], state.services.groups_of(state.identity))


def _id(prefix: Prefix, thing: str) -> AfterValidator:
    """Raises NotFound for a text that is no id of this kind, without asking a store."""

    def check(value: str) -> str:
        if not is_id(prefix, value):
            raise NotFound(thing)
        if thing in ("session", "turn"):
            bind_contextvars(**{f"{thing}_id": value})
        return value

    return AfterValidator(check)


Caller = Annotated[str, Depends(_caller)]
Ops = Annotated[Operator, Depends(_ops)]
OriginDep = Annotated[Origin, Depends(_origin)]
AnySession = Annotated[str, Field(max_length=200), _id("ses", "session")]
SessionId = Annotated[str, Path(description="The id of one of the caller's sessions."), _id("ses", "session")]
TurnId = Annotated[str, Path(description="The id of a turn of the session."), _id("turn", "turn")]
ToolCallId = Annotated[str, Path(description="The id of a tool call."), _id("call", "tool_result")]
MessageId = Annotated[str, Path(description="The id of a message of the session."), _id("msg", "message")]
FileId = Annotated[str, Path(description="The id of a file of the session."), _id("att", "attachment")]
BranchId = Annotated[str, _id("br", "branch")]
KeyId = Annotated[str, Path(description="The id of an API key, of any user."), _id("key", "key")]
MandateId = Annotated[str, Path(description="The id of one of the caller's mandates."), _id("man", "mandate")]
PlanId = Annotated[str, Path(description="The id of a plan that `GET /approvals` lists."), _id("plan", "approval")]
ScheduleId = Annotated[str, Path(description="The id of one of the caller's schedules."), _id("sch", "schedule")]
TriggerId = Annotated[str, Path(description="The id of a trigger."), _id("trg", "trigger")]
MemoryId = Annotated[str, Path(description="The id of one of the caller's facts."), _id("mem", "memory")]
_KEY_IS = "Made by the client. A request sent again with the same key and body is the same: nothing is done twice."
_KEY_HEADER = Header(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$", description=_KEY_IS)
IdempotencyKey = Annotated[str | None, _KEY_HEADER]


def strict_json(text: bytes | str) -> Any:
    """Returns JSON that Postgres returns unchanged: no NaN, infinity, lone surrogate, NUL or number beyond 64 bits. It
    may be nested up to MAX_DEPTH levels. Raises JSONDecodeError, which is a ValueError.
    """
    value = orjson.loads(text)
    if (fault := _json_fault(value)) is not None:
        raise orjson.JSONDecodeError(fault, "", 0)
    return value


class StrictJsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if body.count(b",") > MAX_VALUES:
            raise orjson.JSONDecodeError(f"more than {MAX_VALUES} values", "", 0)
        return self._read(body)

    def _read(self, body: bytes) -> Any:
        return strict_json(body)


class CleanedJsonRequest(StrictJsonRequest):
    """Of a client that sends its whole history each time: what is not strict in it would close the session for good."""

    def _read(self, body: bytes) -> Any:
        try:
            return super()._read(body)
        except ValueError:
            with suppress(ValueError, RecursionError):
                return clean(json.loads(body, strict=False), max_chars=len(body))
            raise


class StrictJsonRoute(APIRoute):
    """Refuses unknown parameters of the query if it is in the document, as bodies do unknown fields, and JSON that is
    not strict. `takes` says which setting bounds its body: that of JSON, a file, or a conversation that is sent whole.
    """

    takes: Literal["json", "file", "history"] = "json"
    request: type[StrictJsonRequest] = StrictJsonRequest

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        """Sets what a request is matched with. The rest, which is a fifth of a start, is made when it is asked for."""
        self.path, self.endpoint, self.methods = path, endpoint, {*declared["methods"]}
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._declared = declared

    def __getattr__(self, name: str) -> Any:
        if "_declared" in vars(self):
            super().__init__(self.path, self.endpoint, **vars(self).pop("_declared"))
        return self.__getattribute__(name)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.status_code == HTTPStatus.NO_CONTENT:
            self.response_class = Response  # which says nothing of a type
        handle = super().get_route_handler()
        taken = (field for field in get_flat_params(self.dependant) if not isinstance(field.field_info, _NOT_IN_QUERY))
        known = {field.alias for field in taken}

        async def handle_strictly(request: Request) -> Response:
            if self.include_in_schema and (unknown := [name for name in request.query_params if name not in known]):
                fault = {"type": "extra_forbidden", "msg": f"This takes {', '.join(sorted(known)) or 'no parameters'}"}
                raise RequestValidationError([{**fault, "loc": ("query", name)} for name in unknown])
            return await handle(self.request(request.scope, request.receive))

        return handle_strictly


class UploadRoute(StrictJsonRoute):
    takes = "file"


class DoorRoute(StrictJsonRoute):
    takes = "history"
    request = CleanedJsonRequest


def router_of(tag: str, prefix: str = "", route_class: type[StrictJsonRoute] = StrictJsonRoute) -> APIRouter:
    """Returns a resource's router: its routes are strict, and documented with the problems that all may answer with."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=route_class, responses=PROBLEMS)


def _json_fault(value: Any) -> str | None:
    """Looks at one level after the other: a body of a door may have millions of values."""
    level, depth = [value], 0
    while level:
        if depth == MAX_DEPTH and any(isinstance(part, dict | list) for part in level):
            return f"nested deeper than {MAX_DEPTH} levels"
        below: list[Any] = []
        for part in level:
            if isinstance(part, str):
                if "\x00" in part:
                    return "NUL is not text"
            elif isinstance(part, list):
                below += part
            elif isinstance(part, dict):
                below += part
                below += part.values()
            elif isinstance(part, float) and abs(part) >= MAX_NUMBER:
                return "a number beyond 64 bits"
        level, depth = below, depth + 1
    return None
