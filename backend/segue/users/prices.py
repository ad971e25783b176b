"""Prices of models, from the file that PRICES_FILE names."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from segue.domain.agent import provider_and_id
from segue.domain.identity import NOTHING, Charge

MILLION: Final = Decimal(1_000_000)
ANSWER_TOKENS: Final = 16_384  # of an answer that no setting bounds
MOST: Final = Decimal(1_000_000)  # dollars per million tokens


class BrokenPrices(ValueError):
    """The file has no valid prices; the message names it and what to correct."""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens."""

    input: Decimal
    cached_input: Decimal
    output: Decimal

    def cost(self, input_tokens: int, cached_tokens: int, output_tokens: int) -> Decimal:
        """Returns exact dollars. Cached tokens are part of the input."""
        cached = min(cached_tokens, input_tokens)
        dollars = (input_tokens - cached) * self.input + cached * self.cached_input + output_tokens * self.output
        return dollars / MILLION


FREE: Final = Price(NOTHING, NOTHING, NOTHING)


@dataclass(frozen=True, slots=True)
class Prices:
    """`by_model` has names, and patterns with `*`: a name counts before patterns, those in the order of the file."""

    by_model: Mapping[str, Price] = field(default_factory=dict)

    def of(self, model: str) -> Price | None:
        """Returns the price of a model by its name, with its provider's prefix or without."""
        names = (model, provider_and_id(model)[1])
        if (exact := next((self.by_model[name] for name in names if name in self.by_model), None)) is not None:
            return exact
        fitting = (key for key in self.by_model if any(fnmatchcase(name, key) for name in names))
        return self.by_model.get(next(fitting, ""))


@dataclass(frozen=True, slots=True)
class Tariff:
    """What calls of a model are charged. `answer_tokens` are what an answer takes at most."""

    model: str
    price: Price | None = None
    answer_tokens: int = ANSWER_TOKENS

    def priced(self, took: Charge) -> Charge:
        """Returns what a call took with its cost."""
        tokens = took.input_tokens, took.cached_tokens, took.output_tokens
        return took if self.price is None else replace(took, cost=self.price.cost(*tokens))

    def at_most(self, input_tokens: int) -> Charge:
        """Returns what a call with this input takes if its answer is as long as can be."""
        return self.priced(Charge(self.model, input_tokens=input_tokens, output_tokens=self.answer_tokens))


def read_prices(path: Path | None) -> Prices:
    """Returns no prices without a path. Raises BrokenPrices."""
    if path is None:
        return Prices()
    kind, parse = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        raw = parse(path.read_text("utf-8-sig"), parse_float=Decimal)
    except OSError as error:
        raise BrokenPrices(f"PRICES_FILE={path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise BrokenPrices(f"PRICES_FILE={path} is not {kind}: {error}.") from None
    if not isinstance(raw, dict):
        raise BrokenPrices(f"PRICES_FILE={path} has to hold models and their prices.")
    return Prices({model: _price(f"PRICES_FILE={path}: {model}", given) for model, given in raw.items()})


def _price(where: str, given: Any) -> Price:
    if not isinstance(given, dict):
        raise BrokenPrices(f"{where} has to be a table with input, output and perhaps cached_input.")
    if unknown := next((key for key in given if key not in ("input", "output", "cached_input")), None):
        raise BrokenPrices(f"{where}.{unknown} is unknown; there are input, cached_input and output.")
    if missing := next((key for key in ("input", "output") if key not in given), None):
        raise BrokenPrices(f"{where}.{missing} is missing.")
    dollars = {key: _dollars(f"{where}.{key}", value) for key, value in given.items()}
    return Price(dollars["input"], dollars.get("cached_input", dollars["input"]), dollars["output"])


def _dollars(where: str, value: Any) -> Decimal:
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not is_number or not Decimal(value).is_finite() or not 0 <= value <= MOST:
        raise BrokenPrices(f"{where} has to be a number of dollars for a million tokens, from 0 to {MOST}.")
    return Decimal(value)
