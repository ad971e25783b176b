"""`segue receipts verify`: whether receipts in a file are what the service wrote, without the service or its stores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from segue.around.terminal import printable, refusal
from segue.domain.receipt import ChainHead, Receipt, faults_in

receipts = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class _Page:
    items: tuple[Receipt, ...]
    head: ChainHead | None


@receipts.callback()
def about() -> None:
    """Receipts of what calls changed."""


@receipts.command("verify")
def verify(
    files: Annotated[list[Path], typer.Argument(help="All pages of GET /sessions/{id}/receipts, in their order.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="The public key that has to have signed them; any of several.")
    ] = None,
) -> None:
    """Finds every change, gap and reordering, and a cut at the end. Exits with 1 if it finds one, with 2 if a file is not
    one of receipts.
    """
    read = TypeAdapter(_Page).validate_json
    try:
        pages = [read(file.read_bytes()) for file in files]
    except (OSError, ValidationError) as fault:
        raise refusal(f"This is no page of receipts: {fault}") from fault
    found, head = [each for page in pages for each in page.items], pages[-1].head
    if faults := faults_in(found, head, keys=key or ()):
        typer.echo("\n".join(printable(fault) for fault in faults))
        raise typer.Exit(code=1)
    erased = sum(each.content is None for each in found)
    signers = sorted({each.signed_by for each in found if each.signed_by})
    typer.echo(f"{len(found)} receipts, unbroken; {erased} without their words, which were erased.")
    typer.echo(f"Signed by {', '.join(signers)}." if signers else "Not signed: RECEIPT_KEY was not set.")
    if signers and not key:
        typer.echo("Compare that with the operator's key, or give it with --key.")
