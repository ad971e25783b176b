"""One turn followed to its end: the events of its stream, which is taken up again where it was cut.

Knows no terminal. Whoever stops reading, for a Ctrl-C say, may read on with another call of `events`.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from segue.commands.chat.api import Api, Refused, unreachable

PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
ENDS = ("RUN_FINISHED", "RUN_ERROR")

Event = dict[str, Any]


@dataclass(slots=True)
class Following:
    """A turn that a request to `path` with `body` begins, or one that is there already, by its `turn_id`."""

    api: Api
    session_id: str
    path: str = ""
    body: dict[str, Any] | None = None
    turn_id: str | None = None
    lost: Callable[[], None] = lambda: None
    _position: int = 0
    _key: str = field(default_factory=lambda: str(uuid4()))

    def events(self) -> Iterator[Event]:
        """Ends with the terminal event. Raises Refused, also where the service is gone for too long."""
        failures = 0
        while True:
            try:
                for event in self._fresh():
                    failures = 0
                    yield event
                    if event["type"] in ENDS:
                        return
                error = Refused("The stream ended before the turn did.", status=503)
            except httpx.TransportError as cut:
                error = unreachable(self.api.url, cut)
            except Refused as refusal:
                if not refusal.may_pass:
                    raise
                error = refusal
            if failures == len(PAUSES_S):
                raise error
            if failures == 1:
                self.lost()
            time.sleep(PAUSES_S[failures])
            failures += 1

    def cancel(self) -> None:
        if self.turn_id is not None:
            self.api.post(f"/sessions/{self.session_id}/turns/{self.turn_id}/cancel")

    def _fresh(self) -> Iterator[Event]:
        """What comes after the last event that was seen. The same key makes a request that is sent again the same."""
        headers = {"Accept": "text/event-stream"}
        if self.turn_id is None:
            request = self.api.stream(
                "POST", self.path, json=self.body, headers={**headers, "Idempotency-Key": self._key}
            )
        else:
            path = f"/sessions/{self.session_id}/turns/{self.turn_id}/events"
            request = self.api.stream("GET", path, headers={**headers, "Last-Event-ID": str(self._position)})
        with request as response:
            for position, event in _events(response.iter_lines()):
                if position <= self._position:
                    continue
                self._position = position
                self.turn_id = event.get("runId", self.turn_id)
                yield event


def _events(lines: Iterator[str]) -> Iterator[tuple[int, Event]]:
    """Server-Sent Events as Segue frames them: an `id:`, one `data:`, an empty line; comments are heartbeats."""
    position = 0
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            position = int(value)
        elif name == "data":
            yield position, json.loads(value)
