"""`segue mcp login` and `logout`: a user's login at an MCP server, asked of a running service."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from segue.commands.chat.api import Api, Refused
from segue.commands.terminal import ServiceKey, ServiceUrl, printable, refusal, service_url

LOOK_EVERY_S: Final = 1.0

ServerName = Annotated[str, typer.Argument(help="A server of mcp.json with `oauth`.")]


def login(name: ServerName, *, url: ServiceUrl = None, api_key: ServiceKey = None) -> None:
    """Print a link at which to log in at an MCP server, and wait until that is done."""
    with _asking(url, api_key) as api:
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
    with _asking(url, api_key) as api:
        api.delete(_path(name))
    typer.echo(f"You are logged out at {name}.")


@contextmanager
def _asking(url: str | None, api_key: str | None) -> Iterator[Api]:
    api = Api(service_url(url), api_key)
    try:
        yield api
    except Refused as error:
        raise refusal(str(error), code=1) from None
    finally:
        api.close()


def _login(api: Api, name: str) -> dict[str, Any] | None:
    logins: list[dict[str, Any]] = api.get("/mcp/logins")["items"]
    return next((each for each in logins if each["server"] == name), None)


def _path(name: str) -> str:
    return f"/mcp/servers/{quote(name, safe='')}/login"
