"""What `make fuzz` does in an hour, in a moment: every target takes what it begins with, and the beginnings of that."""

import pytest

from tests.fuzz.slow import READERS, seconds
from tests.fuzz.targets import TARGETS
from tests.support.loop_lag import HELD_S, TOLERANCE

SLOW_TO_TRY = frozenset({"slow", "acknowledgement", "cues"})


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_what_it_begins_with(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        target.check(seed)


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in SLOW_TO_TRY])
def test_a_target_holds_for_what_is_cut_short(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        for length in range(0, len(seed), 1 + len(seed) // 20):
            target.check(seed[:length])


# Pieces that once took from a tenth of a second to minutes.
@pytest.mark.parametrize(
    ("name", "piece"),
    [("search_web", "-"), ("offline", "/"), ("offline", "a"), ("several_steps", "①"), ("plan", "}{"), ("plan", "[")]
    + [("said", piece) for piece in ("<source ", "</source>", "-", "\n", "1 wrote:\n", "10:", "<document>")],
)
def test_a_text_as_long_as_it_may_be_is_read_at_once(name: str, piece: str) -> None:
    read, longest = READERS[name]
    text = piece * (longest // len(piece))
    assert min(seconds(read, text) for _ in range(2)) <= HELD_S * TOLERANCE
