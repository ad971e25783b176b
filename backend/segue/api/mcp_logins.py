"""The caller's logins at MCP servers, and where an authorization server sends a browser back. HTTP only.

The callback is open: its `state` is the proof, and works once. Its page has no script and says nothing secret.
"""

from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from segue.api.deps import Caller, Services, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import Page
from segue.domain.errors import AppError, NotFound
from segue.mcp.oauth.status import CALLBACK_PATH, DOCUMENT_PATH, BegunLogin, LoginRefused, McpLogin

if TYPE_CHECKING:
    from segue.mcp.oauth.logins import Logins

router = router_of("mcp", "/mcp")
browser_router = APIRouter(include_in_schema=False)

LoginServer = Annotated[str, Path(max_length=64, description="A server of mcp.json with `oauth`.")]

_MAX_CHARS = 8192  # of what a server sends a browser back with
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@router.get("/logins")
async def list_mcp_logins(services: ServicesDep, caller: Caller) -> Page[McpLogin]:
    """Lists the MCP servers at which users log in, and how the caller stands there."""
    return Page(await services.mcp_logins.of(caller) if services.mcp_logins else [], None)


@router.post("/servers/{mcp_server}/login", status_code=201, responses=problems("mcp_login_unavailable"))
async def begin_mcp_login(mcp_server: LoginServer, services: ServicesDep, caller: Caller) -> BegunLogin:
    """Begins a login of the caller's at an MCP server. One that there is stays until the new one is finished."""
    return await _logins(services).begin(caller, mcp_server)


@router.delete("/servers/{mcp_server}/login", status_code=204)
async def end_mcp_login(mcp_server: LoginServer, services: ServicesDep, caller: Caller) -> None:
    """Ends the caller's login, also at the authorization server if that can be told. Nothing happens without one."""
    await _logins(services).end(caller, mcp_server)


@browser_router.get(CALLBACK_PATH)
async def finish_mcp_login(request: Request) -> Response:
    services: Services = request.state.services
    given = {name: _only(request, name) for name in ("state", "code", "iss", "error")}
    state = given.pop("state")
    if services.mcp_logins is None or not state:
        return _page("This is no login", "It names no login that was begun here.", 400)
    try:
        finished = await services.mcp_logins.finish(state, **given)
    except LoginRefused as refused:
        return _page("You are not logged in", str(refused), 400)
    if services.mcp is not None:
        await services.mcp.welcome(finished.owner, finished.server)
    with suppress(AppError):  # such as a limit: the login stands, and the user goes on in words
        await services.turns.done_elsewhere(finished.owner, finished.key)
    return _page(
        "You are logged in", f"{finished.owner} is logged in at {finished.server}. You can close this page.", 200
    )


@browser_router.get(DOCUMENT_PATH)
async def describe_client(request: Request) -> Response:
    services: Services = request.state.services
    if services.mcp_logins is None:
        raise NotFound("mcp_server")
    return JSONResponse(services.mcp_logins.document())


def _logins(services: Services) -> "Logins":
    if services.mcp_logins is None:
        raise NotFound("mcp_server")
    return services.mcp_logins


def _only(request: Request, name: str) -> str | None:
    """A parameter that is there once and is not too long; sent twice, it means nothing."""
    values = request.query_params.getlist(name)
    return values[0] if len(values) == 1 and 0 < len(values[0]) <= _MAX_CHARS else None


def _page(title: str, text: str, status: int) -> HTMLResponse:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    return HTMLResponse(f"{head}<h1>{escape(title)}</h1><p>{escape(text)}</p>", status, _HEADERS)
