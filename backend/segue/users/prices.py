"""Prices of models, from the file that PRICES_FILE names."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from segue.domain.agent import provider_and_id
from segue.domain.identity import NOTHING, Charge

_TOKENS: Final = re.compile("[1-9][0-9]{0,8}")
ANSWER_TOKENS: Final = 16_384  # of an answer that no setting bounds
MOST: Final = Decimal(1_000_000)  # dollars per million tokens
CACHE_WRITE: Final = Decimal("1.25")  # times the input, as providers bill it that count what they write to a cache


class BrokenPrices(ValueError):
    """The file has no valid prices; the message names it and what to correct."""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens. `above` has the prices of calls with more input than that, the highest first."""

    input: Decimal
    cached_input: Decimal
    cache_write: Decimal
    output: Decimal
    above: "tuple[tuple[int, Price], ...]" = ()

    def cost(self, input_tokens: int, cached_tokens: int, written_tokens: int, output_tokens: int) -> Decimal:
        """Returns exact dollars of a call. Tokens read from a cache, and those written to it, are part of the input."""
        for tokens, price in self.above:
            if input_tokens > tokens:
                return price.cost(input_tokens, cached_tokens, written_tokens, output_tokens)
        cached = min(cached_tokens, input_tokens)
        written = min(written_tokens, input_tokens - cached)
        plain = input_tokens - cached - written
        dollars = plain * self.input + cached * self.cached_input + written * self.cache_write
        return (dollars + output_tokens * self.output) / 1_000_000


FREE: Final = Price(NOTHING, NOTHING, NOTHING, NOTHING)


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
    """The charges for calls of a model. `answer_tokens` is the most that an answer takes."""

    model: str
    price: Price | None = None
    answer_tokens: int = ANSWER_TOKENS

    def priced(self, took: Charge, written_tokens: int = 0) -> Charge:
        """Returns a call's charge with its cost. `written_tokens` are those of its input that went into a cache."""
        tokens = took.input_tokens, took.cached_tokens, written_tokens, took.output_tokens
        return took if self.price is None else replace(took, cost=self.price.cost(*tokens))

    def at_most(self, input_tokens: int) -> Charge:
        """Returns the highest charge for a call with this input: the longest answer, and the dearest kind of input."""
        took = Charge(self.model, input_tokens=input_tokens, output_tokens=self.answer_tokens)
        return max((self.priced(took, written) for written in (0, input_tokens)), key=lambda each: each.cost or NOTHING)


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


def _price(where: str, table: Any) -> Price:
    if not isinstance(table, dict):
        raise BrokenPrices(f"{where} has to be a table with input, output and perhaps cached_input and cache_write.")
    tiers = table.pop("above", {})
    if unknown := next((key for key in table if key not in ("input", "output", "cached_input", "cache_write")), None):
        known = "input, cached_input, cache_write, output and above"
        raise BrokenPrices(f"{where}.{unknown} is unknown; there are {known}.")
    if missing := next((key for key in ("input", "output") if key not in table), None):
        raise BrokenPrices(f"{where}.{missing} is missing.")
    dollars = {key: _dollars(f"{where}.{key}", value) for key, value in table.items()}
    plain = dollars["input"]
    read, written = dollars.get("cached_input", plain), dollars.get("cache_write", plain * CACHE_WRITE)
    if not isinstance(tiers, dict) or not all(_TOKENS.fullmatch(tokens) for tokens in tiers):
        raise BrokenPrices(f"{where}.above has to be a table of prices by tokens of input, as above.200000.")
    above = ((int(tokens), _price(f"{where}.above.{tokens}", price)) for tokens, price in tiers.items())
    return Price(plain, read, written, dollars["output"], tuple(sorted(above, key=lambda tier: -tier[0])))


def _dollars(where: str, value: Any) -> Decimal:
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not is_number or not Decimal(value).is_finite() or not 0 <= value <= MOST:
        raise BrokenPrices(f"{where} has to be a number of dollars for a million tokens, from 0 to {MOST}.")
    return Decimal(value)
