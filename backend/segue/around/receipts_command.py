"""`segue receipts verify`: whether receipts in a file are what the service wrote, without the service or its stores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from segue.around.terminal import printable, refusal
from segue.domain.receipt import ChainHead, Receipt, faults_in

receipts = typer.Typer(no_args_is_help=True)
receipts.callback()(lambda: None)  # without it `verify` would have no name of its own


@dataclass(frozen=True, slots=True)
class _Page:
    items: tuple[Receipt, ...]
    head: ChainHead | None


@receipts.command("verify")
def verify(
    files: Annotated[list[Path], typer.Argument(help="All pages of GET /sessions/{id}/receipts, in their order.")],
    key: Annotated[list[str] | None, typer.Option("--key", help="A public key that may have signed them.")] = None,
) -> None:
    """Finds every change, gap and reordering, and a cut at the end. Exits with 1 if it finds one, and with 2 if a file
    is none of receipts.
    """
    try:
        pages = [TypeAdapter(_Page).validate_json(file.read_bytes()) for file in files]
    except (OSError, ValidationError) as fault:
        raise refusal(f"This is no page of receipts: {fault}") from fault
    found = [each for page in pages for each in page.items]
    if faults := faults_in(found, pages[-1].head, keys=key or ()):
        typer.echo("\n".join(map(printable, faults)))
        raise typer.Exit(code=1)
    erased = sum(each.content is None for each in found)
    typer.echo(f"{len(found)} receipts, unbroken; of {erased} the words were erased.")
    signers = sorted({each.signed_by for each in found if each.signed_by})
    typer.echo(f"Signed by {', '.join(signers)}: compare it." if signers else "Not signed: RECEIPT_KEY was not set.")
