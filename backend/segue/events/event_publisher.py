"""Publishes the events of one run of a turn: gives them positions, joins tokens, appends them to the turn's buffer.

Does not know where the buffer is saved: `on_append` tells the event log that it has grown.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from segue.db.redis import Streams
from segue.domain.events import Event, ReasoningAdded, TextAdded
from segue.events import agui
from segue.events.event_buffer import ATTEMPT, EventBuffer

TEXT_INTERVAL_S = 0.03
TEXTS_PER_SLOWDOWN = 256  # after as many the interval grows by TEXT_INTERVAL_S, so that no answer fills a log
UNKNOWN_S = 0.05  # after its claim only the client that sent the message can know of a turn

log = structlog.get_logger()


class EventPublisher:
    """`emit` never waits and never raises."""

    def __init__(
        self,
        buffer: EventBuffer,
        streams: Streams,
        *,
        epoch: int,
        stream_tokens: bool,
        on_append: Callable[[EventBuffer], None],
    ) -> None:
        self.buffer = buffer
        self.epoch = epoch
        self._streams = streams
        self._position = (epoch - 1) * ATTEMPT
        self._stream_tokens = stream_tokens
        self._on_append = on_append
        self._encoder = agui.EventEncoder(buffer.turn)
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._held: list[TextAdded | ReasoningAdded] = []
        self._texts = 0
        self._next_text_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def emit(self, event: Event) -> None:
        if self._closed:
            return
        if not isinstance(event, (TextAdded, ReasoningAdded)):
            self._flush_text()
            self._encode(event)
            return
        self._held.append(event)
        wait = self._next_text_at - self._loop.time()
        if wait <= 0:
            self._flush_text()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait, self._flush_text)

    async def wants_tokens(self) -> bool:
        """Whether a client, of this process or another, reads the answer token by token.

        If none does, the model is asked for the whole answer, which is cheaper.
        """
        if self._stream_tokens or self.buffer.token_followers:
            return True
        if self.buffer.followers and self._loop.time() < self._opened_at + UNKNOWN_S:
            return False
        self._stream_tokens = await self._streams.is_watched(self.buffer.turn)
        return self._stream_tokens

    def append(self, event: bytes) -> None:
        self._position += 1
        self.buffer.append(self._position, event)
        self._on_append(self.buffer)

    def end(self, event: bytes) -> None:
        self._flush_text()
        self.buffer.append(self.buffer.end, event)
        self._on_append(self.buffer)

    def close(self) -> None:
        self._flush_text()
        self._closed = True
        self.buffer.published_here = False

    def _encode(self, event: Event) -> None:
        try:
            encoded = self._encoder.encode(event)
        except (TypeError, ValueError) as error:  # JSON cannot hold it
            log.warning("event_dropped", kind=type(event).__name__, error=type(error).__name__)
            return
        for each in encoded:
            self.append(each)

    def _flush_text(self) -> None:
        """Publishes the text held since the last text event, as one event. It is all of one message."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._held:
            return
        held, self._held = self._held, []
        self._texts += 1
        self._next_text_at = self._loop.time() + TEXT_INTERVAL_S * (1 + self._texts // TEXTS_PER_SLOWDOWN)
        self._encode(replace(held[0], text="".join(each.text for each in held)))
