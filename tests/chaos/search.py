"""A search for an order of events that explains what was seen: Wing and Gong's, with Lowe's memory of what was tried.

Knows nothing of sessions. A state is hashable; a step returns the state after its event, None if it cannot happen then.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

AT_MOST = 20_000  # states that one search may come to
WIDTH = 48  # of a picture, in characters

Step = Callable[[Any], Hashable | None]


class Undecided(Exception):
    """The search has come to AT_MOST states."""


@dataclass(frozen=True, slots=True)
class Event:
    """Happens at one moment between `invoked` and `returned`. One that is not `certain` may not have happened, and one
    that `looks` leaves the state as it is.
    """

    what: str
    step: Step
    invoked: float = -inf
    returned: float = inf
    certain: bool = True
    looks: bool = False

    def __str__(self) -> str:
        invoked, returned = (f"{at:.2f}" if abs(at) < inf else "" for at in (self.invoked, self.returned))
        return f"[{invoked:>7} {returned:>7}]  {self.what}"


def explain(events: Sequence[Event], start: Hashable) -> bool:
    """Returns whether there is an order of all certain events and some of the others, in which none comes behind one
    that was invoked after it had returned. Raises Undecided.
    """
    events = sorted(events, key=lambda event: -event.returned)  # what returned first is tried first
    certain = sum(1 << at for at, event in enumerate(events) if event.certain)
    first: tuple[int, Hashable] = (0, start)
    found, todo = {first}, [first]
    while todo:
        done, state = todo.pop()
        if not certain & ~done:
            return True
        new = [then for then in _next(events, done, state) if then not in found]
        found.update(new)
        todo += new
        if len(found) > AT_MOST:
            raise Undecided
    return False


def _next(events: Sequence[Event], done: int, state: Hashable) -> Iterator[tuple[int, Hashable]]:
    left = [(1 << at, event) for at, event in enumerate(events) if not done >> at & 1]
    deadline = min(event.returned for _, event in left if event.certain)
    may = [(done | bit, event.step(state), event) for bit, event in left if event.invoked <= deadline]
    seen = [then for then, after, event in may if event.looks and event.certain and after is not None]
    if seen:  # what can be seen now need not be seen later
        yield seen[0], state
        return
    for then, after, event in may:
        if after is not None and (event.certain or after != state):
            yield then, after


def unexplained(events: Sequence[Event], start: Hashable) -> list[Event]:
    """Returns nothing if there is such an order; else certain events that no order explains together, though one would
    explain all but any one of them. Raises Undecided.
    """
    if explain(events, start):
        return []
    events = list(events)
    for at, event in reversed(list(enumerate(events))):
        if event.certain:
            without = [*events[:at], replace(event, certain=False, returned=inf), *events[at + 1 :]]
            events = events if explain(without, start) else without
    return [event for event in events if event.certain]


def drawn(events: Sequence[Event], *, marked: Sequence[Event] = ()) -> list[str]:
    """Returns a line for each event, in the order given: `x` if it is marked, a bar from when it was asked for to when
    its answer was heard, with `<` and `>` for what is not known, and what it was.
    """
    known = [at for event in events for at in (event.invoked, event.returned) if abs(at) < inf]
    first, last = min(known, default=0.0), max(known, default=0.0)

    def column(at: float) -> int:
        return round((min(max(at, first), last) - first) / ((last - first) or 1) * WIDTH)

    lines = []
    for event in events:
        begin, end = column(event.invoked), column(event.returned)
        left, right = "|<"[event.invoked == -inf], "|>"[event.returned == inf]
        bar = f"{' ' * begin}{left}{'-' * (end - begin)}{right}"
        lines.append(f"{' x'[event in marked]} {bar:{WIDTH + 2}} {event.what}")
    return lines
