"""How long a test waits for what has to happen: what is slow on a busy machine is no failure, what never comes is.

The services of tests wait longer for their stores too. A process that gets no processor for some seconds would take
them to be lost, and answer that or go on without: rightly, but no test is about that which does not say so.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from segue.db.engine import SESSION_SETTINGS

PATIENCE_S = 60
STORES_S = 20.0
WAITS = (
    "segue.db.engine.CONNECT_TIMEOUT_S",
    "segue.db.engine.POOL_TIMEOUT_S",
    "segue.db.engine.STATEMENT_TIMEOUT_S",
    "segue.db.redis_connection.OPERATION_TIMEOUT_S",
    "segue.turns.queue.OPERATION_TIMEOUT_S",
)


@contextmanager
def patient_with_stores() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in WAITS:
            patch.setattr(name, STORES_S)
        for name in ("lock_timeout", "statement_timeout"):
            patch.setitem(SESSION_SETTINGS, name, f"{STORES_S * 1000:.0f}")
        yield
