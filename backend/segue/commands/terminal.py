"""What all commands share: settings from flags and environment, and refusals. Knows no command."""

from typing import Any

import typer
from pydantic import ValidationError

from segue.config import Settings
from segue.log import configure_logging, never_log


def settings_with(**flags: Any) -> Settings:
    """Returns the settings; a flag wins over the environment. Configures the log.

    Raises typer.Exit if a setting is invalid, and names each one.
    """
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise refusal("\n".join(_sentence(one) for one in error.errors())) from None
    never_log(settings.secrets)
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    return settings


def refusal(text: str, *, code: int = 2) -> typer.Exit:
    """Prints what is wrong and what to do, and returns the exit for the caller to raise."""
    typer.secho(text, err=True, fg=typer.colors.RED)
    return typer.Exit(code=code)


def _sentence(error: Any) -> str:
    """Returns a validation error without pydantic's "Value error" before a sentence of ours."""
    text = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    return f"{'.'.join(map(str, error['loc'])).upper()} {text}".strip()
