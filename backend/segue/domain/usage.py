"""What calls of a model take, in tokens and dollars. Money is a Decimal: sums of floats would not add up."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

NOTHING = Decimal(0)


@dataclass(frozen=True, slots=True)
class Charge:
    """What calls of a model took. `cached_tokens` are part of the input, `reasoning_tokens` of the output.

    `cost` is in dollars, None if the model has no price.
    """

    model: str
    calls: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cost: Decimal | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def total(charges: Iterable[Charge], model: str = "") -> Charge:
    """Returns the sum. It has no cost if one of the charges has none, and is estimated if one of them is."""
    given = tuple(charges)
    costs = [charge.cost for charge in given if charge.cost is not None]
    return Charge(
        model,
        calls=sum(charge.calls for charge in given),
        input_tokens=sum(charge.input_tokens for charge in given),
        cached_tokens=sum(charge.cached_tokens for charge in given),
        output_tokens=sum(charge.output_tokens for charge in given),
        reasoning_tokens=sum(charge.reasoning_tokens for charge in given),
        estimated=any(charge.estimated for charge in given),
        cost=sum(costs, NOTHING) if len(costs) == len(given) else None,
    )
