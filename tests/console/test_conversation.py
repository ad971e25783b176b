"""The console by clicks: a conversation with the offline model and the example mailbox, which CI takes too."""

import re

from tests.support.browsing import ASK, Browsing, Window

FIRST = {  # of the examples: as the page has it, and in the answer
    "en-GB": ("Find the mails from Rossi, then open the first one", "I found 8 emails"),
    "it": ("Cerca le mail di Rossi, poi apri la prima", "Ho trovato 8 email"),
    "zh": ("查找来自 Rossi 的邮件，然后打开第一封", "找到了 8 封邮件"),
    "ar": ("ابحث عن رسائل Rossi، ثم افتح الأولى", "وجدت 8 رسائل"),
}


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


async def test_a_newcomer_begins_with_an_example_which_the_offline_model_can_answer_in_the_language_of_the_page(
    browsing: Browsing, mailbox_service: str
) -> None:
    for locale, (example, answer) in FIRST.items():
        window = await browsing.open(mailbox_service, locale=locale)
        await window.button(example).wait_for()
        examples = window.page.locator(".examples").get_by_role("button")
        assert await examples.count() == 4
        assert not await window.axe()
        await examples.first.focus()
        await window.page.keyboard.press("Enter")
        await window.sees(answer)
        await window.sees("Gentile dottoressa Conti")
