"""`segue mcp`: `serve` offers a service's agents over MCP; `login` and `logout` are a user's at MCP servers of it."""

import signal
import time
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import anyio
import httpx2
import typer

from segue.around.mcp_server import McpContext, server_for
from segue.around.own_service import HOST
from segue.around.service_client import Api, AsyncApi, client_options, key_header
from segue.around.terminal import ServiceKey, ServiceUrl, asking, printable, refusal, service_url

LOOK_EVERY_S: Final = 1.0

ServerName = Annotated[str, typer.Argument(help="A server of mcp.json with `oauth`.")]


def login(name: ServerName, *, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    """Print a link at which to log in at an MCP server, and wait until that is done."""
    with asking(url, api_key) as api:
        before = _login(api, name)
        begun = api.post(_path(name))
        typer.echo(printable(f"Open this in a browser: {begun['url']}"))
        until = datetime.fromisoformat(begun["expires_at"])
        while (now := _login(api, name)) == before:
            if datetime.now(until.tzinfo) > until:
                raise refusal("No login came, and the link is too old now. Ask for a new one.", code=1)
            time.sleep(LOOK_EVERY_S)
        if now is None or now["state"] != "logged_in":
            raise refusal(f"The login at {name} has ended. Ask for a new link.", code=1)
    typer.echo(f"You are logged in at {name}.")


def logout(name: ServerName, *, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    """End a login at an MCP server, there too if it can be told."""
    with asking(url, api_key) as api:
        api.delete(_path(name))
    typer.echo(f"You are logged out at {name}.")


def _login(api: Api, name: str) -> dict[str, Any] | None:
    logins: list[dict[str, Any]] = api.get("/mcp/logins")["items"]
    return next((each for each in logins if each["server"] == name), None)


def _path(name: str) -> str:
    return f"/mcp/servers/{quote(name, safe='')}/login"


mcp = typer.Typer(no_args_is_help=True)
mcp.command("login")(login)
mcp.command("logout")(logout)


@mcp.command("serve")
def serve(
    *,
    url: ServiceUrl = None,
    api_key: ServiceKey = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Listen on this port of 127.0.0.1, instead of stdin. Callers send keys."),
    ] = None,
    decide: Annotated[
        bool,
        typer.Option("--decide", help="Let the calling model decide on plans, where its client cannot ask a person."),
    ] = False,
) -> None:
    """Offer the agents of a running service as an MCP server on stdin and stdout, for editors and other agents."""
    base_url = service_url(url)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a read from stdin would keep the process

    async def run() -> None:
        async with httpx2.AsyncClient(**client_options(base_url)) as http:
            own = AsyncApi(http, key_header(api_key))
            if port is None:
                await server_for(lambda _: own, may_decide=decide).run_stdio_async()
            else:
                by_caller = server_for(lambda ctx: AsyncApi(http, key_of_caller(ctx)), may_decide=decide)
                await by_caller.run_streamable_http_async(host=HOST, port=port)

    anyio.run(run)


def key_of_caller(ctx: McpContext) -> dict[str, str]:
    """Over HTTP each caller needs a key of their own: the server's would let in every program that reaches its port."""
    given = ctx.headers or {}
    return {name: given[name] for name in ("authorization", "x-api-key") if name in given}
