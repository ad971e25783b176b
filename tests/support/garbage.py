"""Importing this stops the garbage collector: what modules make stays, and a quarter of their time went into it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

gc.disable()


def keep() -> None:
    """What there is now, for the processes that are forked from this one, which go on without the collector."""
    gc.disable()
    gc.freeze()


def collect_again() -> None:
    """Starts it again, for what is made from now on."""
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)  # about as a service does: a look costs what it costs however little was made
    gc.enable()


@contextmanager
def left_alone() -> Iterator[None]:
    """Stops it for a while. Python 3.11 parses source to format a traceback, and has one count of depth for all that is
    parsed (python/cpython#95185): a finalizer that does so makes what is parsed around it fail with a SystemError.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
