"""The targets: functions of bytes that raise if a promise does not hold, and what to begin with. No fuzzer is known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.fuzz import readers, replies, results, slow


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds` are inputs to begin with; `longest` is how many bytes an input may have."""

    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    longest: int = 600


def _texts(texts: Sequence[str], first: int) -> tuple[bytes, ...]:
    """Inputs that are read as these texts, after `first` numbers that are zero."""
    return tuple(bytes(first) + text.encode() for text in texts)


def _after(count: int, inputs: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(bytes(count) + each for each in inputs)


TARGETS: Final[Mapping[str, Target]] = {
    "acknowledgement": Target(replies.acknowledgement, _texts(replies.REPLIES, 3)),
    "cues": Target(replies.cues, _texts(replies.REQUESTS, 1), 2_500),
    "event_stream": Target(readers.event_stream, _after(3, readers.STREAMS)),
    "thinking": Target(readers.thinking, (b"", b"\1\5\0\0\2\0\1\0")),
    "providers": Target(
        readers.providers, _after(2, (*readers.CHUNKS, b"[" + b",".join(readers.CHUNKS) + b"]")), 1_500
    ),
    "mcp": Target(readers.mcp, _after(1, readers.ANSWERS), 1_500),
    "tokens": Target(readers.tokens, _after(3, readers.TOKENS)),
    "plans": Target(results.plans, _after(2, results.PLANS), 1_500),
    "stored": Target(results.stored, _after(2, results.RESULTS), 1_500),
    "paging": Target(results.paging, _after(6, results.RESULTS)),
    "slow": Target(slow.slow, (b"", b"\1\2\3\4\5\6\7")),
}
