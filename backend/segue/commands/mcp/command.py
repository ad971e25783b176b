"""`segue mcp`: Segue and the Model Context Protocol."""

import signal
from typing import Annotated

import anyio
import httpx2
import typer

from segue.commands.chat.api import client_options, key_header
from segue.commands.mcp.calls import McpContext
from segue.commands.mcp.logins import login, logout
from segue.commands.mcp.server import server_for
from segue.commands.mcp.service import Service
from segue.commands.terminal import ServiceKey, ServiceUrl, service_url
from segue.embedded.service_process import HOST

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
            own = Service(http, key_header(api_key))
            if port is None:
                await server_for(lambda _: own, may_decide=decide).run_stdio_async()
            else:
                by_caller = server_for(lambda ctx: Service(http, key_of_caller(ctx)), may_decide=decide)
                await by_caller.run_streamable_http_async(host=HOST, port=port)

    anyio.run(run)


def key_of_caller(ctx: McpContext) -> dict[str, str]:
    """Over HTTP each caller needs a key of their own: the server's would let in every program that reaches its port."""
    given = ctx.headers or {}
    return {name: given[name] for name in ("authorization", "x-api-key") if name in given}
