"""`segue approvals`: what waits for the caller's yes at a running service, and how the caller decides on it."""

import sys
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from segue.around.service_client import Api
from segue.around.terminal import ServiceKey, ServiceUrl, asking, one_line, printable, refusal
from segue.language.shown_call import CallView

SHOWN: Final = CallView("en", None)

PlanArgument = Annotated[str, typer.Argument(help="The id of a plan that `segue approvals` shows.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask once more.")]

approvals = typer.Typer()


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
    until = datetime.fromisoformat(found["expires_at"]).astimezone()
    typer.echo(printable(f"{found['plan_id']}  {found['asker']} asks, until {until:%Y-%m-%d %H:%M}"))
    for step in found["steps"]:
        typer.echo(printable(f"  {step['tool']}"))
        for line in SHOWN.lines(step["args"] or {}):
            typer.echo(printable(f"    {line}"))
