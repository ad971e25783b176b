"""Configures structlog: event names and fields, never message content. Removes secrets from every event."""

import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from segue.domain.redaction import without_secrets

_TRACES = ("exception", "stack")  # Python writes them, in several lines

_secrets: set[str] = set()

log = structlog.get_logger()  # of every module: an event says what happened, not where


def configure_logging(*, level: str, log_format: Literal["console", "json"]) -> None:
    """Of libraries, only warnings and errors are logged: below that, they log what they send and receive."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    lowest = max(logging.getLevelName(level.upper()), logging.WARNING)
    console = _Console(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    renderer = structlog.processors.JSONRenderer() if log_format == "json" else console
    written: list[Processor] = [structlog.processors.format_exc_info, redact, renderer]
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    of_libraries = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[without_meta, *written])
    of_libraries.setFormatter(formatter)
    logging.basicConfig(handlers=[of_libraries], level=lowest, force=True)
    logging.getLogger("uvicorn").setLevel(level.upper())
    structlog.configure(
        processors=[*shared, *written],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )


class _Unfailing:
    """Drops what cannot be written: a closed pipe or a full disk must not stop the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def never_log(secrets: Iterable[str]) -> None:
    """Removes these texts from every event of this process from now on."""
    _secrets.update(secrets)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    cleaned: EventDict = without_secrets(event, _secrets)
    return cleaned


class _Console(structlog.dev.ConsoleRenderer):
    """Escapes what callers wrote, such as a path: control characters must not reach the terminal."""

    def __call__(self, logger: WrappedLogger, name: str, event_dict: EventDict) -> str:
        shown = {key: value if key in _TRACES else _printable(value) for key, value in event_dict.items()}
        return super().__call__(logger, name, shown)


def _printable(value: Any) -> Any:
    """Escapes a string. Other values are shown by their repr, which escapes already."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in value)
