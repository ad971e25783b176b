"""Every page of the navigation, in every language: axe finds nothing serious, and nothing is wider than a phone."""

import pytest

from tests.support.browsing import PHONE, Browsing

LANGUAGES = ("en", "it", "zh", "ar")

pytestmark = pytest.mark.sweep


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious_on_any_page_in_any_language(
    browsing: Browsing, mailbox_service: str, addresses: list[str], scheme: str
) -> None:
    found = {}
    for language in LANGUAGES:
        window = await browsing.open(mailbox_service, locale=language, color_scheme=scheme)
        for address in addresses:
            await window.go(address)
            await window.settled()
            if faults := await window.axe():
                found[language, address] = faults
    assert found == {}


async def test_no_page_is_wider_than_a_phone(browsing: Browsing, mailbox_service: str, addresses: list[str]) -> None:
    found = {}
    for language in LANGUAGES:
        window = await browsing.open(mailbox_service, locale=language, viewport=PHONE)
        for address in addresses:
            await window.go(address)
            await window.settled()
            width = await window.page.evaluate("() => document.documentElement.scrollWidth")
            if width > PHONE["width"]:
                found[language, address] = width
    assert found == {}
