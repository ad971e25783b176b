"""What every command does the same way: settings and flags become one, a refusal is a sentence.

Knows no command. `cli.py` and the modules beside this one are built on it.
"""

from typing import Any

import typer
from pydantic import ValidationError

from segue.config import Settings
from segue.log import configure_logging, never_log


def settings_with(**flags: Any) -> Settings:
    """Flags that are given win over the environment. Raises typer.Exit that names each setting that cannot be."""
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise refusal("\n".join(_sentence(fault) for fault in error.errors())) from None
    never_log(settings.secrets)
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    return settings


def refusal(text: str) -> typer.Exit:
    typer.secho(text, err=True, fg=typer.colors.RED)
    return typer.Exit(code=2)


def _sentence(fault: Any) -> str:
    """A fault of the settings, without pydantic's "Value error" before a sentence of ours."""
    text = str(fault["ctx"]["error"]) if fault["type"] == "value_error" else fault["msg"]
    return f"{'.'.join(map(str, fault['loc'])).upper()} {text}".strip()
