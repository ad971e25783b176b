"""What others ask for, by clicks: in the inbox of the console, and on the page behind a link on a phone."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from segue import tool
from segue.config import Settings
from tests.support.browsing import PHONE, Browsing, Window
from tests.support.identity import new_key, speaking
from tests.support.provider import Provider, calls, says
from tests.support.receiver import SECRET, Receiver, receiving
from tests.support.results import use_toolbox
from tests.support.service import Client, running

pytestmark = pytest.mark.usefixtures("long_leases")

RULE = """
[[agents.segue.approvals]]
tool = "refund"
who = "other"
group = "finance"
"""
ASK = "Please refund 800 euros of order A-17: the frame came broken"
OVER_ITS_CELL = """() => [...document.querySelectorAll('td')].filter(cell => cell.scrollWidth > cell.clientWidth)
    .map(cell => cell.innerText)"""
INVOICE = {"order": "A-17", "amount": 800, "reason": "The frame came broken, and there is no other one"}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as served:
        yield served


@pytest.fixture
async def guarded(settings: Settings, receiver: Receiver, tmp_path: Path) -> Settings:
    path = tmp_path / "agents.toml"
    path.write_text(RULE)
    hook = {"webhook_url": SecretStr(receiver.url), "webhook_secret": SecretStr(SECRET), "turn_lease_s": 1}
    return settings.model_copy(update={**hook, "agents_config": path, "auth": "api_key"})


@pytest.fixture
def refunds() -> list[float]:
    return []


@pytest.fixture
async def carl(guarded: Settings, refunds: list[float]) -> AsyncIterator[Client]:
    """A clerk of the service."""

    @tool(effect="destructive")
    async def refund(order: str, amount: float, reason: str) -> str:
        """Refunds an order."""
        del reason
        refunds.append(amount)
        return f"refunded {order}"

    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(guarded, tools=[refund]))
        yield await stack.enter_async_context(speaking(service, await new_key(guarded, "carl")))


async def asks(carl: Client, provider: Provider) -> dict[str, Any]:
    provider.will(calls(("refund", INVOICE)))
    return await carl.chat(await carl.new_session(), ASK)


async def signed_in(browsing: Browsing, carl: Client, key: str, path: str = "") -> Window:
    window = await browsing.open(str(carl.http.base_url).rstrip("/"), path)
    field = window.page.get_by_role("textbox", name="API key")
    await field.fill(key)
    await field.press("Enter")
    return window


@pytest.mark.sweep  # test_conversation.py approves in a browser in CI
async def test_what_another_asks_for_is_counted_in_the_tab_and_approved_in_the_inbox(
    browsing: Browsing, guarded: Settings, carl: Client, provider: Provider, refunds: list[float]
) -> None:
    asked = await asks(carl, provider)
    window = await signed_in(browsing, carl, await new_key(guarded, "sara", groups=["finance"]), "#/inbox")
    await window.page.get_by_role("link", name="Inbox (1)").wait_for()
    await window.page.wait_for_function("() => document.title.startsWith('(1) ')")
    question = window.page.get_by_role("article", name="carl asks for a yes")
    await question.get_by_text("The frame came broken, and there is no other one").first.wait_for()
    step = await question.locator("section p").first.inner_text()
    assert await question.get_attribute("aria-label") == f"carl asks for a yes: {step}"
    provider.will(says("Refunded."))
    await question.get_by_role("button", name="Approve").click()
    await window.sees("Nothing waits for a yes")
    await window.page.wait_for_function("() => !document.title.startsWith('(')")
    await carl.ended(asked["session_id"], 2)
    assert refunds == [800]
    operator = await signed_in(browsing, carl, await new_key(guarded, "olga", ["ops"]), "#/ops/audit")
    await operator.page.get_by_role("cell", name="Decided on an approval for others").wait_for()
    assert await operator.page.evaluate(OVER_ITS_CELL) == []
    await browsing.close()


@pytest.mark.sweep
async def test_who_asked_sees_in_the_chat_and_the_list_that_others_decide(
    browsing: Browsing, guarded: Settings, carl: Client, provider: Provider
) -> None:
    asked = await asks(carl, provider)
    window = await signed_in(browsing, carl, await new_key(guarded, "carl"), f"#/sessions/{asked['session_id']}")
    question = window.page.get_by_role("region", name="Waits for finance")
    await question.get_by_text("Waits for finance: a yes of yours does nothing to it.").wait_for()
    await window.page.get_by_role("img", name="Waits for finance").wait_for()
    assert await window.page.get_by_text("waits for you").count() == 0
    await browsing.close()


@pytest.mark.sweep
async def test_a_foreign_value_is_marked_whatever_its_argument_is_called_and_its_blank_letters_are_written_out(
    browsing: Browsing, guarded: Settings, provider: Provider
) -> None:
    assert guarded.agents_config is not None
    guarded.agents_config.write_text(RULE.replace("refund", "echo"))
    use_toolbox(guarded)
    provider.will(calls(("echo", {"pay-to": "DE00\u3164 9999", "amount": 8000})))
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(running(guarded))
        carl = await stack.enter_async_context(speaking(service, await new_key(guarded, "carl")))
        await carl.chat(await carl.new_session(), "Pay this invoice, an amount of 8000 euros")
        window = await signed_in(browsing, carl, await new_key(guarded, "sara", groups=["finance"]), "#/inbox")
        question = window.page.get_by_role("article", name="carl asks for a yes")
        await question.locator("dd").get_by_text("DE00‹U+3164› 9999").wait_for()
        marked = question.locator("dt").filter(has_text="not from carl: made by the model")
        assert await marked.locator("code").all_inner_texts() == ["pay-to"]
        await browsing.close()


@pytest.mark.sweep
async def test_a_question_keeps_its_place_so_that_a_second_click_decides_nothing_else(
    browsing: Browsing, guarded: Settings, carl: Client, provider: Provider, refunds: list[float]
) -> None:
    for _ in range(2):
        await asks(carl, provider)
    window = await signed_in(browsing, carl, await new_key(guarded, "sara", groups=["finance"]), "#/inbox")
    approve = window.button("Approve")
    place = await approve.first.bounding_box()
    assert place is not None
    await asks(carl, provider)
    provider.will(says("Refunded."))
    await window.page.mouse.click(place["x"] + 9, place["y"] + 9)
    more = window.button("Show 1 more that wait")
    await more.wait_for()
    assert await window.page.evaluate("() => document.activeElement.textContent") == "Approved: it runs now"
    await window.page.mouse.click(place["x"] + 9, place["y"] + 9)
    assert await approve.count() == 1
    await more.click()
    await approve.nth(1).wait_for()
    assert refunds == [800]
    await browsing.close()


@pytest.mark.sweep
async def test_the_inbox_shows_all_that_was_said_and_whose_words_they_are_and_that_another_decided(
    browsing: Browsing, guarded: Settings, carl: Client, provider: Provider
) -> None:
    asked = [await asks(carl, provider) for _ in range(2)]
    window = await signed_in(browsing, carl, await new_key(guarded, "sara", groups=["finance"]), "#/inbox")
    await window.sees("from carl", exact=True)
    await window.sees("not from carl: made by the model")
    assert await window.page.get_by_text("from you", exact=True).count() == 0
    await window.page.get_by_text("What carl was told").first.click()
    whole = "nodes => nodes.every(node => node.scrollHeight <= node.clientHeight && node.clientWidth > 500)"
    assert await window.page.locator(".asks .said:visible").evaluate_all(whole)
    path = f"/sessions/{asked[1]['session_id']}/plan/decision"
    rejected = await carl.http.post(path, json={"decision": "reject", "version": asked[1]["plan"]["version"]})
    assert rejected.status_code == 200, rejected.text
    await window.button("Approve").first.click()
    await window.sees("Waits no more: decided elsewhere, taken back or expired")
    assert await window.button("Approve").count() == 1
    await browsing.close()


@pytest.mark.sweep
async def test_axe_finds_nothing_serious_on_the_page_behind_a_link_which_works_on_a_phone_without_scripts(
    browsing: Browsing, guarded: Settings, carl: Client, provider: Provider, receiver: Receiver, refunds: list[float]
) -> None:
    await new_key(guarded, "sara", groups=["finance"])
    asked = await asks(carl, provider)
    posts = await receiver.until(lambda posts: any(post.type == "approval.requested" for post in posts))
    [post] = [post for post in posts if post.type == "approval.requested"]
    path = urlsplit(post.data["links"][0]["url"]).path.lstrip("/")
    looks = {"viewport": PHONE, "device_scale_factor": 1.75}
    window = await browsing.open(str(carl.http.base_url).rstrip("/"), path, **looks, java_script_enabled=False)
    await window.sees("carl asks for a yes")
    if "PICTURES" in os.environ:
        await window.picture(Path(os.environ["PICTURES"]) / "approve-phone.png")
    await window.press("Approve")
    await window.sees("Shall I go ahead?")
    assert refunds == []
    provider.will(says("Refunded."))
    await window.press("Approve")
    await window.sees("Approved. It runs now.")
    await carl.ended(asked["session_id"], 2)
    await window.page.reload()
    assert refunds == [800]
    await browsing.close()
