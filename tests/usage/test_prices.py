"""The file of prices: which price a model has, and what is refused at start."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from segue.config import Settings
from segue.domain.identity import Charge
from segue.users.prices import Tariff, read_prices
from tests.support.commands import segue

TOML = """
[gpt-5-mini]
input = 0.25
cached_input = 0.025
output = 2

["gpt-5*"]
input = 1.25
output = 10
"""


@pytest.mark.parametrize(
    ("model", "cost"),
    [("gpt-5-mini", Decimal("0.000002475")), ("gpt-5.6", Decimal("0.0000225")), ("gpt-4", None)],
)
def test_a_name_counts_before_a_pattern_and_cost_is_exact(tmp_path: Path, model: str, cost: Decimal | None) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(TOML)
    price = read_prices(file).of(model)
    assert (price and price.cost(10, 9, 0, 1)) == cost


# Dollars for ten tokens of input, of which two are read from a cache and four written to it, and what is reserved.
WRITES = {
    "as providers bill it": ("", 24, 30),
    "dearer": ("cache_write = 4", 28, 40),
    "free": ("cache_write = 0", 12, 24),
}


@pytest.mark.parametrize(("line", "dollars", "most"), WRITES.values(), ids=list(WRITES))
def test_what_is_written_to_a_cache_has_a_price_and_the_dearest_is_reserved(
    tmp_path: Path, line: str, dollars: int, most: int
) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(f"[m]\ninput = 2.4\ncached_input = 1.2\noutput = 1\n{line}")
    tariff = Tariff("m", read_prices(file).of("m"), answer_tokens=0)
    charge = tariff.priced(Charge("m", input_tokens=10, cached_tokens=2), 4)
    assert (charge.cost, tariff.at_most(10).cost) == (Decimal(dollars) / 10**6, Decimal(most) / 10**6)


TIERS = """
[m]
input = 1
output = 10
[m.above.200000]
input = 2
output = 15
[m.above.500000]
input = 4
cached_input = 1
output = 20
"""


@pytest.mark.parametrize(("tokens", "dollars"), [(200_000, 200_010), (200_001, 400_017), (600_000, 2_370_020)])
def test_a_call_with_much_input_has_the_price_of_its_tier_and_is_reserved_at_it(
    tmp_path: Path, tokens: int, dollars: int
) -> None:
    (tmp_path / "prices.toml").write_text(TIERS)
    tariff = Tariff("m", read_prices(tmp_path / "prices.toml").of("m"), answer_tokens=1)
    cached = 10_000 if tokens > 500_000 else 0
    charge = tariff.priced(Charge("m", input_tokens=tokens, cached_tokens=cached, output_tokens=1))
    assert charge.cost == Decimal(dollars) / 10**6
    assert (tariff.at_most(tokens).cost or 0) >= charge.cost


WRONG = {
    "prices.toml: m.above has to be a table": ("prices.toml", "[m]\ninput = 1\noutput = 1\nabove = 200000"),
    "prices.json: m.above has to be": ("prices.json", '{"m": {"input": 1, "output": 2, "above": {"200k": {}}}}'),
    "prices.toml: m.above.9.output is missing": ("prices.toml", "[m]\ninput = 1\noutput = 1\n[m.above.9]\ninput = 2"),
    "prices.toml: m.price is unknown": ("prices.toml", "[m]\ninput = 1\noutput = 1\nprice = 1"),
    "prices.toml: m.output is missing": ("prices.toml", "[m]\ninput = 1"),
    "prices.toml: m.input has to be a number": ("prices.toml", "[m]\ninput = -0.5\noutput = 1"),
    "prices.toml: m.output has to be a number": ("prices.toml", "[m]\ninput = 1\noutput = nan"),
    "prices.json: m.output has to be a number": ("prices.json", '{"m": {"input": 1, "output": "2"}}'),
    "prices.json: m.input has to be a number": ("prices.json", '{"m": {"input": true, "output": 2}}'),
    "prices.json: m has to be a table": ("prices.json", '{"m": 3}'),
    "prices.json is not JSON": ("prices.json", "{"),
    "prices.toml is not TOML": ("prices.toml", "m = "),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_wrong_is_refused_in_a_sentence_that_names_the_key(tmp_path: Path, what: str) -> None:
    name, text = WRONG[what]
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=what.replace(".", r"\.")):
        read_prices(tmp_path / name)


def test_a_cap_of_cost_needs_a_price_of_the_model_that_embeds(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text("[scripted]\ninput = 1\noutput = 1")
    named: dict[str, Any] = {
        "llm_model": "scripted",
        "openai_base_url": "http://127.0.0.1:1/v1",
        "embedding_model": "embedder",
    }
    with pytest.raises(ValueError, match="LIMIT_COST_PER_DAY needs a price of embedder"):
        Settings(_env_file=None, prices_file=tmp_path / "prices.toml", limit_cost_per_day=Decimal(5), **named)


@pytest.mark.parametrize("text", ["[m]\ninput = 1\nout = 1", None, "[m]\ninput = 1\noutput = 1"])
def test_a_service_does_not_start_with_prices_that_it_cannot_count_with(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "prices.toml"
    if text is not None:
        file.write_text(text)
    model = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "LLM_MODEL": "qwen3", "LIMIT_COST_PER_DAY": "5"}
    code, said = segue("serve", "--port", "0", PRICES_FILE=str(file), **model)
    reason = "m.out is unknown" if text and "out = " in text and "output" not in text else "cannot be read"
    if text and "output" in text:
        reason = "LIMIT_COST_PER_DAY needs a price of qwen3"
    assert (code, len(said.strip().splitlines())) == (2, 1), said
    assert reason in said
