"""A number with its target, and what is worked out of many numbers. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Measure:
    """`at_most` and `at_least` are targets; `aim` says in words what would be better still."""

    name: str
    value: float
    unit: str = ""
    digits: int = 1
    at_most: float | None = None
    at_least: float | None = None
    aim: str = ""

    @property
    def met(self) -> bool | None:
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least


@dataclass(frozen=True, slots=True)
class Left:
    """What was not measured, and why."""

    name: str
    why: str


def p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first quarter and of the last."""
    size = max(len(values) // 4, 1)
    return median(values[:size]), median(values[-size:])
