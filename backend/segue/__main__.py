"""`python -m segue`: the command line."""

from segue.commands.cli import app

app()
