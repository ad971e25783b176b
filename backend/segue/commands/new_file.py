"""A file that a command writes: for this account only, and under its name only once all of it is on the disk."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EAGAIN, EEXIST
from pathlib import Path
from typing import IO

from segue.commands.terminal import refusal


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Raises typer.Exit if it is there already, or cannot be written.

    Until the block ends it is called `….part`; the next command to write this file takes over what a `kill -9` leaves.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                file.truncate(0)
                os.fchmod(file.fileno(), 0o600)
                _refuse_existing(path)
                yield file
                file.flush()
                os.fsync(file.fileno())
                part.rename(path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise refusal(f"{path} cannot be written: {_why(error)}. Give the name of a new file.") from None


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise FileExistsError(EEXIST, os.strerror(EEXIST))


def _why(error: OSError) -> str:
    return "another command is writing it" if error.errno == EAGAIN else error.strerror or type(error).__name__
