"""Routes to the MCP servers of this process, the caller's logins at them, and their prompts. The page to which a login
sends the browser back is open: its `state` is the proof, and works once. It has no script and no secret. It asks before
it finishes a login: a link may have been sent to another person, whose account its user would get.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field
from starlette.responses import HTMLResponse, JSONResponse, Response

from segue.api.approve import page
from segue.api.deps import Caller, Ops, OriginDep, Parts, Services, router_of
from segue.api.problems import problems
from segue.api.schemas import AnyLimit, Body, Page
from segue.domain.errors import AppError, existing
from segue.domain.field_types import doc
from segue.domain.visible import visible
from segue.mcp import status
from segue.mcp.status import BegunLogin, FilledPrompt, LoginRefused, McpLogin, McpPrompt, McpServerStatus
from segue.tools.catalog import definition_changes
from segue.users.audit import record_act

router = router_of("ops", "/mcp/servers")
logins_router = router_of("mcp", "/mcp")
browser_router = APIRouter(include_in_schema=False)
prompts_router = router_of("tools", "/mcp/prompts")

ConfiguredServer = Annotated[str, Path(max_length=64, description="The name of an enabled server of mcp.json.")]
LoginServer = Annotated[str, Path(max_length=64, description="The name of a server of mcp.json with `oauth`.")]

_MAX_CHARS = 8192  # of what a server sends a browser back with
# It sends the address of its page again, which only the browser that has logged in knows.
_YES = '<form method="post"><button class="yes">Yes, log in</button></form>'


@dataclass(frozen=True, slots=True)
class McpServerList:
    """The MCP servers of a process, all on one page, and how it read mcp.json."""

    items: Annotated[list[McpServerStatus], doc("The servers, in the order of mcp.json.")]
    next_cursor: Annotated[None, doc("Always null: there is only one page.")]
    refused: Annotated[str | None, doc("Why the present mcp.json was refused; null if it is in use.")]
    ignored: Annotated[list[str], doc("Keys of mcp.json that have no effect, each with the reason.")]


@router.get("", responses=problems("forbidden"))
async def list_mcp_servers(services: Parts, _: Ops, _limit: AnyLimit = 50) -> McpServerList:
    """Lists the MCP servers as this process sees them: each process has its own connections. Needs the scope `ops`."""
    mcp = services.mcp
    return McpServerList(await _statuses(services), None, refused=mcp.refused, ignored=list(mcp.config.ignored))


@router.post("/{mcp_server:path}/reconnect", status_code=202, responses=problems("forbidden"))
async def reconnect_mcp_server(mcp_server: ConfiguredServer, services: Parts, operator: Ops) -> McpServerStatus:
    """Reconnects this process to an MCP server. New calls wait for the new connection, which opens at once; the old one
    closes once its calls have ended. A second request meanwhile changes nothing. Needs the scope `ops`.
    """
    await _status(services, mcp_server)
    await services.database.transact(record_act, operator, "reconnect_mcp_server", details={"server": mcp_server})
    services.mcp.reconnect(mcp_server)
    return await _status(services, mcp_server)


async def _statuses(services: Services) -> list[McpServerStatus]:
    changed = await definition_changes(services.database, services.tools.specs().values())
    return [replace(each, changes=[*filter(None, map(changed.get, each.tools))]) for each in services.mcp.statuses()]


async def _status(services: Services, name: str) -> McpServerStatus:
    return existing("mcp_server", next((each for each in await _statuses(services) if each.name == name), None))


@logins_router.get("/logins")
async def list_mcp_logins(services: Parts, caller: Caller, origin: OriginDep, _: AnyLimit = 50) -> Page[McpLogin]:
    """Lists the MCP servers at which the caller can log in, and the state of each login."""
    logins, servers = services.mcp.logins, services.mcp.login_servers(caller, origin.groups)
    listed = await logins.of(caller) if logins else []
    return Page([each for each in listed if each.server in servers or each.state == "logged_in"], None)


@logins_router.post("/servers/{mcp_server:path}/login", status_code=201, responses=problems("mcp_login_unavailable"))
async def begin_mcp_login(mcp_server: LoginServer, services: Parts, caller: Caller, origin: OriginDep) -> BegunLogin:
    """Begins a login of the caller at an MCP server. An earlier login stays until the new one is finished."""
    existing("mcp_server", mcp_server in services.mcp.login_servers(caller, origin.groups) or None)
    return await existing("mcp_server", services.mcp.logins).begin(caller, mcp_server)


@logins_router.delete("/servers/{mcp_server:path}/login", status_code=204)
async def end_mcp_login(mcp_server: LoginServer, services: Parts, caller: Caller) -> None:
    """Ends the caller's login at an MCP server, if there is one. Also at its authorization server, if possible."""
    await existing("mcp_server", services.mcp.logins).end(caller, mcp_server)


@browser_router.api_route(status.CALLBACK_PATH, methods=["GET", "POST"])
async def finish_mcp_login(request: Request) -> Response:
    services: Services = request.state.services
    given = {name: _only(request, name) for name in ("state", "code", "iss", "error")}
    state = given.pop("state")
    if services.mcp.logins is None or not state:
        return _page("This is no login", "It names no login that was begun here.", 400)
    try:
        if request.method == "GET" and given["code"] and not given["error"]:
            login = await services.mcp.logins.begun(state)
            text = f"What {login.owner} does here will reach your account there. Close this page if that is not you."
            return _page(f"Log {login.owner} in at {login.server}?", text, 200, _YES)
        finished = await services.mcp.logins.finish(state, **given)
    except LoginRefused as refused:
        return _page("You are not logged in", str(refused), 400)
    await services.mcp.welcome(finished.owner, finished.server)
    with suppress(AppError):  # such as a limit: the login stands, and the user goes on in words
        await services.turns.done_elsewhere(finished.owner, finished.key)
    text = f"{finished.owner} is logged in at {finished.server}. You can close this page."
    return _page("You are logged in", text, 200)


@browser_router.get(status.DOCUMENT_PATH)
async def describe_client(request: Request) -> Response:
    return JSONResponse(existing("mcp_server", request.state.services.mcp.logins).document())


def _only(request: Request, name: str) -> str | None:
    """Returns a parameter that is there once and is not too long; sent twice, it means nothing."""
    values = request.query_params.getlist(name)
    return values[0] if len(values) == 1 and 0 < len(values[0]) <= _MAX_CHARS else None


def _page(title: str, text: str, code: int, *parts: str) -> HTMLResponse:
    shown = page("en", title, f"<p>{escape(visible(text))}</p>", *parts, status=code)
    shown.headers["Referrer-Policy"] = "same-origin"  # else the request of a button says that it is of no page
    return shown


class WantedPrompt(Body):
    """A prompt to fill, and its arguments."""

    name: Annotated[str, Field(max_length=200, description="The name of a prompt of the server.")]
    arguments: Annotated[dict[str, str], Field(default_factory=dict, max_length=20, description="Arguments by name.")]


@prompts_router.get("")
async def list_prompts(services: Parts, caller: Caller, origin: OriginDep, _: AnyLimit = 50) -> Page[McpPrompt]:
    """Lists the prompts that the MCP servers offer, in their own words. A server that is away offers none."""
    return Page(await services.mcp.prompts(caller, origin.groups), None)


@prompts_router.post("/{mcp_server:path}", responses=problems("mcp_prompt_not_found", "mcp_server_failed"))
async def fill_prompt(
    mcp_server: ConfiguredServer, body: WantedPrompt, services: Parts, caller: Caller, origin: OriginDep
) -> FilledPrompt:
    """Fills a prompt with its arguments. Sends nothing to a session: the user chooses what to say."""
    return await services.mcp.fill_prompt(caller, origin.groups, mcp_server, body.name, body.arguments)
