"""What the Dockerfile says, and whether the command line takes a command."""

import re

import typer

from segue.around.cli import app
from tests.support.commands import ROOT


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile and their arguments."""
    text = (ROOT / "backend" / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)]


def image_environment(dockerfile: list[tuple[str, str]]) -> dict[str, str]:
    """Of the last stage, without what is for Python and the shell."""
    last = max(index for index, (word, _) in enumerate(dockerfile) if word == "FROM")
    pairs = [pair for word, rest in dockerfile[last:] if word == "ENV" for pair in rest.split()]
    return {
        name: value
        for name, _, value in (pair.partition("=") for pair in pairs)
        if name != "PATH" and not name.startswith("PYTHON")
    }


def parses(command: list[str]) -> None:
    """Fails where the command line knows no such command or option."""
    group = typer.main.get_command(app)
    with group.make_context("segue", [command[0], "--help"], resilient_parsing=True) as context:
        _, chosen, _ = group.resolve_command(context, [command[0]])  # type: ignore[attr-defined]
        assert chosen is not None, command
        with chosen.make_context(command[0], command[1:], parent=context):
            pass
