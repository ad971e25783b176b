"""The console by clicks: a conversation with the offline model and the example mailbox, which CI takes too."""

import re

from tests.support.browsing import ASK, Window


async def test_mails_are_found_and_one_is_sent_once_its_text_was_approved(page: Window) -> None:
    await page.say(ASK)
    question = page.page.get_by_role("region", name="Waits for you")
    await question.get_by_text("marco.rossi@rossi-ottica.example").wait_for()
    assert await question.get_by_text("not from you: made by the model").count() == 2
    await page.page.get_by_role("button", name=re.compile("mcp_get_email")).click()
    await page.press("Show the result · 1.2 kB")
    await page.sees("Gentile dottoressa Conti")
    assert not await page.axe()
    await question.get_by_role("button", name="Approve").click()
    await page.page.get_by_role("button", name=re.compile("^mcp_send_email .* Done$")).wait_for()
    await page.page.get_by_role("button", name=re.compile("Plan .* Completed$")).wait_for()
    assert await question.count() == 0
    await page.page.reload()
    await page.page.get_by_role("link", name=re.compile("^Cerca le mail di Rossi")).wait_for()
    sent = page.page.get_by_role("button", name=re.compile("^mcp_send_email"))
    await sent.wait_for()
    assert await sent.count() == 1
