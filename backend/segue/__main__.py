"""`python -m segue`: the command line."""

from segue.around.cli import app

app()
