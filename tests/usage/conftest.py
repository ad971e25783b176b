"""Models with prices, and answers that take a number of tokens."""

from pathlib import Path

import pytest

from segue.config import Settings
from tests.support.prices import PRICES


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """The same, with a file of prices."""
    (tmp_path / "prices.toml").write_text(PRICES)
    update = {"prices_file": tmp_path / "prices.toml", "planning": "never"}
    return settings.model_copy(update=update)
