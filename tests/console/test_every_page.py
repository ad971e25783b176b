"""Every page of the navigation, in every language: axe finds nothing serious, and nothing is wider than the window."""

import gzip
import re
from typing import Any

import pytest

from segue.api.pages import FOLDER
from tests.support.browsing import DESK, PHONE, Browsing

LANGUAGES = ("en", "it", "zh", "ar")
# By how many pixels something is wider than the window.
TOO_WIDE = """() => Math.max(...[...document.querySelectorAll('.page, html')]
    .map(each => each.scrollWidth - each.clientWidth))"""


@pytest.mark.skipif(not (FOLDER / "index.html.gz").exists(), reason="the console is not built: python console/build.py")
def test_the_first_page_loads_130_kb_at_most() -> None:
    """Gzipped, with the modules that its script imports; formulas, colours and languages come when they are met."""
    to_read, read = ["index.html"], set[str]()
    while to_read:
        name = to_read.pop()
        read.add(name)
        text = gzip.decompress((FOLDER / f"{name}.gz").read_bytes()).decode()
        named = re.findall(r'(?:href|src)="assets/([^"]+)"|(?:from|import) ?"\./([^"]+)"', text)
        to_read += {one or other for one, other in named} - read
    assert sum((FOLDER / f"{name}.gz").stat().st_size for name in read) < 130_000
    assert not any(name.startswith(("maths", "colours", "it-", "zh-", "ar-")) for name in read)
    assert len(list(FOLDER.glob("maths-*.js.gz"))) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
async def test_axe_finds_nothing_serious_and_nothing_is_too_wide_on_any_page_in_any_language(
    browsing: Browsing, mailbox_service: str, addresses: list[str], scheme: str, viewport: Any
) -> None:
    found: dict[tuple[str, str], Any] = {}
    for language in LANGUAGES:
        window = await browsing.open(mailbox_service, locale=language, color_scheme=scheme, viewport=viewport)
        for address in addresses:
            await window.go(address)
            await window.settled()
            if faults := await window.axe():
                found[language, address] = faults
            if await window.page.evaluate(TOO_WIDE) > 0:
                found[language, address] = "too wide"
    assert found == {}
