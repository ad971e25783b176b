"""What a user of a running service does at the command line: `segue approvals`, `segue mcp serve`, `mcp login`."""

import signal
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import anyio
import httpx2
import typer

from segue.around.process_supervisor import bound_to
from segue.around.service_client import HOST, MCP_ADVICE, Api, AsyncApi, client_options, key_header
from segue.around.terminal import ServiceKey, ServiceUrl, asking, local_time, one_line, printable, refusal, service_url
from segue.language.shown_call import CallView

if TYPE_CHECKING:
    from segue.around.mcp_server import McpContext

LOOK_EVERY_S: Final = 1.0
SHOWN: Final = CallView("en", None)

PlanArgument = Annotated[str, typer.Argument(help="The id of a plan that `segue approvals` shows.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask once more.")]
ServerName = Annotated[str, typer.Argument(help="A server of mcp.json with `oauth`.")]

approvals = typer.Typer(add_completion=False)
mcp = typer.Typer(no_args_is_help=True, add_completion=False)


@approvals.callback(invoke_without_command=True)
def _main(context: typer.Context, *, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    if context.invoked_subcommand is None:
        show(url=url, api_key=api_key)


@approvals.command("list")
def show(*, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    """List what waits for your yes, with the exact arguments."""
    with asking(url, api_key) as api:
        waiting = api.all_items("/approvals")
    for each in waiting:
        _print(each)
    if not waiting:
        typer.echo("Nothing waits for your yes.", err=True)


@approvals.command("approve")
def approve(plan_id: PlanArgument, *, yes: Yes = False, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    """Let what is shown run, once. Asks first; without a terminal give --yes."""
    with asking(url, api_key) as api:
        _decide(api, plan_id, "confirm", None, yes=yes)


@approvals.command("reject")
def reject(
    plan_id: PlanArgument,
    *,
    reason: Annotated[str | None, typer.Option(help="Why: the user and the model read it.")] = None,
    yes: Yes = False,
    url: ServiceUrl = None,
    api_key: ServiceKey = None,
) -> None:
    """End a plan that waits."""
    with asking(url, api_key) as api:
        _decide(api, plan_id, "reject", reason, yes=yes)


def _decide(api: Api, plan_id: str, decision: str, reason: str | None, *, yes: bool) -> None:
    """Decides on the version that it prints: if the plan has changed since, the service refuses."""
    found = next((each for each in api.all_items("/approvals") if each["plan_id"] == plan_id), None)
    if found is None:
        raise refusal(f"{one_line(plan_id)} does not wait for your yes.", code=1)
    _print(found)
    if not yes and not sys.stdin.isatty():
        raise refusal("Nothing was decided. There is no terminal to ask on: give --yes.")
    if not yes and not typer.confirm("Let it run?" if decision == "confirm" else "Reject it?"):
        typer.echo("Nothing was decided.", err=True)
        raise typer.Exit(code=1)
    body = {"decision": decision, "version": found["version"], "reason": reason, "channel": "terminal"}
    api.post(f"/approvals/{quote(plan_id, safe='')}/decision", body)
    typer.echo(f"{plan_id} is {'approved' if decision == 'confirm' else 'rejected'}.")


def _print(found: dict[str, Any]) -> None:
    typer.echo(printable(f"{found['plan_id']}  {found['asker']} asks, until {local_time(found['expires_at'])}"))
    for step in found["steps"]:
        typer.echo(printable(f"  {step['tool']}"))
        for line in SHOWN.lines(step["args"] or {}):
            typer.echo(printable(f"    {line}"))


# --- mcp ---


@mcp.command("login")
def login(name: ServerName, *, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    """Print a link at which to log in at an MCP server, and wait until that is done."""
    with asking(url, api_key) as api:
        if (before := _login_at(api, name)) is None:
            raise refusal(f"{one_line(name)} is no server of mcp.json at which you can log in.", code=1)
        begun = api.post(_login_path(name))
        typer.echo(printable(f"Open this in a browser: {begun['url']}"))
        until = datetime.fromisoformat(begun["expires_at"])
        while (now := _login_at(api, name)) == before:
            if datetime.now(until.tzinfo) > until:
                raise refusal("No login came, and the link is too old now. Ask for a new one.", code=1)
            time.sleep(LOOK_EVERY_S)
        if now is None or now["state"] != "logged_in":
            raise refusal(f"The login at {name} has ended. Ask for a new link.", code=1)
    typer.echo(f"You are logged in at {name}.")


@mcp.command("logout")
def logout(name: ServerName, *, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    """End a login at an MCP server, there too if it can be told."""
    with asking(url, api_key) as api:
        api.delete(_login_path(name))
    typer.echo(f"You are logged out at {name}.")


def _login_at(api: Api, name: str) -> dict[str, Any] | None:
    logins: list[dict[str, Any]] = api.get("/mcp/logins")["items"]
    return next((each for each in logins if each["server"] == name), None)


def _login_path(name: str) -> str:
    return f"/mcp/servers/{quote(name, safe='')}/login"


@mcp.command("serve")
def serve(
    *,
    url: ServiceUrl = None,
    api_key: ServiceKey = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Listen here on 127.0.0.1, not on stdin. Callers send keys.")
    ] = None,
    decide: Annotated[
        bool, typer.Option("--decide", help="Let the calling model decide on plans if its client cannot ask a person.")
    ] = False,
) -> None:
    """Offer the agents of a running service as an MCP server on stdin and stdout, for editors and other agents."""
    base_url = service_url(url)
    if port:
        bound_to(HOST, port, "--port").close()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a read from stdin would keep the process

    from segue.around.mcp_server import server_for  # noqa: PLC0415 (mcp takes a second)

    async def run() -> None:
        async with httpx2.AsyncClient(**client_options(base_url)) as http:
            own = None if port else key_header(api_key)

            def api_of(ctx: "McpContext") -> AsyncApi:
                return AsyncApi(http, key_of_caller(ctx) if own is None else own, MCP_ADVICE)

            server = server_for(api_of, may_decide=decide)
            await (server.run_streamable_http_async(host=HOST, port=port) if port else server.run_stdio_async())

    anyio.run(run)


def key_of_caller(ctx: "McpContext") -> dict[str, str]:
    """Over HTTP each caller needs a key of their own: the server's would let in every program that reaches its port."""
    given = ctx.headers or {}
    return {name: given[name] for name in ("authorization", "x-api-key") if name in given}
