"""Every page of the navigation, in every language: axe finds nothing serious, and nothing is wider than the window."""

from typing import Any

import pytest

from tests.support.browsing import PHONE, Browsing

LANGUAGES = ("en", "it", "zh", "ar")
LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark on a phone": {"color_scheme": "dark", "viewport": PHONE}}


@pytest.mark.sweep
@pytest.mark.parametrize("look", LOOKS)
async def test_axe_finds_nothing_serious_and_nothing_is_too_wide_on_any_page_in_any_language(
    browsing: Browsing, mailbox_service: str, addresses: list[str], look: str
) -> None:
    found: dict[tuple[str, str], Any] = {}
    for language in LANGUAGES:
        window = await browsing.open(mailbox_service, locale=language, **LOOKS[look])
        for address in addresses:
            await window.go(address)
            await window.settled()
            if faults := await window.axe():
                found[language, address] = faults
            if await window.page.evaluate("() => document.documentElement.scrollWidth > innerWidth"):
                found[language, address] = "too wide"
    assert found == {}
