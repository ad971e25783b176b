"""Brings a database to the newest revision, one process at a time."""

from pathlib import Path

from alembic.config import Config

from alembic import command

ROOT = Path(__file__).resolve().parents[2]


def upgrade(database_url: str) -> None:
    """Blocks; runs its own event loop, so call it from a thread where one is running already."""
    command.upgrade(config(database_url), "head")


def config(database_url: str) -> Config:
    made = Config(toml_file=str(ROOT / "pyproject.toml"))
    made.attributes["database_url"] = database_url
    return made
