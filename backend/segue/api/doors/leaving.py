"""A client whose leaving is a stop: it says so with its request, and then the turn that it reads is cancelled."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from segue.api.chat import Asking
from segue.domain.errors import AppError
from segue.domain.session import TurnKey

ON_DISCONNECT_HEADER: Final = "x-on-disconnect"


def cancelling(asking: Asking, turn: TurnKey) -> Callable[[object], Awaitable[None]]:
    """Returns what a stream does when its client has left."""

    async def left(_: object) -> None:
        with suppress(AppError):  # its session is gone, or Postgres is away: the client has left and hears no error
            await asking.services.turns.cancel(asking.caller, turn.session_id, turn.turn_id)

    return left


def on_disconnect(asking: Asking, turn: TurnKey) -> dict[str, Any]:
    """Returns the options of a stream whose client may have asked in a header to `cancel` the turn when it leaves."""
    if asking.http.headers.get(ON_DISCONNECT_HEADER) != "cancel":
        return {}
    return {"client_close_handler_callable": cancelling(asking, turn)}
