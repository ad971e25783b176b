"""Answers that claim an effect or promise one, and others that report, offer or describe."""

import json
import time
from pathlib import Path

import pytest

from segue.agent.false_claims import claimed_effect, says_promise

ROWS = [json.loads(line) for line in Path(__file__).with_name("claims.jsonl").read_text().splitlines()]

PROMISING = [
    "I'll remind you tomorrow at nine.", "Done. I will check again on Monday and let you know.",
    "Nessuna risposta finora. Te lo ricorderò domani alle 9.", "Ti avviserò appena risponde.",
    "Te recordaré mañana que llames a Rossi.", "Je te le rappellerai demain à 9 heures.",
    "Ich erinnere dich morgen um 9 Uhr daran.", "Morgen um 9 Uhr erinnere ich dich daran.",
    "Vou te lembrar amanhã de manhã.", "Ik herinner je er morgen aan.", "Przypomnę ci jutro o 9.",
    "Хорошо, я напомню вам завтра в 9.", "Yarın saat 9'da sana hatırlatacağım.", "سأذكرك غدًا الساعة التاسعة.",
    "好的，我会提醒您明天上午九点给罗西打电话。", "明日の9時にお知らせします。", "내일 9시에 알려 드리겠습니다.",
    "मैं कल सुबह आपको याद दिलाऊँगा।", "I'll keep checking and let you know on Friday.",
    "I'll set a reminder for tomorrow at 9.",
    "Domani alle 9 ti ricordo la riunione.", "价格一降我就通知您，每天都会检查。", "سأراجع الأمر غدا وأعود إليك.",
]  # fmt: skip
PROMISING_NOTHING = [
    "Shall I remind you tomorrow at nine?", "I can remind you tomorrow at nine.", "I reminded you yesterday at nine.",
    "If you tell me the time, I'll remind you tomorrow.", "I won't remind you tomorrow.", "I'll remind you.",
    "I'll remind you tomorrow at nine. Is that right?", "⏰ 2026-11-30 09:00: I'll remind you tomorrow.",
    "I'll remind you that the meeting is tomorrow at 9.", "Rossi wrote: “I'll let you know tomorrow.”",
    "Dear Rossi,\nI'll let you know tomorrow at nine.\nKind regards", "Here is it:\n\nI'll let you know on Monday.",
    "> I'll let you know on Monday", "Vuoi che te lo ricordi domani?", "Se vuoi, te lo ricorderò domani.",
    "Posso ricordartelo domani alle 9.", "Te l'ho ricordato ieri alle 9.", "Non te lo ricorderò domani.",
    "Ti ricordo che domani hai una riunione alle 9.", "¿Quieres que te lo recuerde mañana?",
    "Si quieres, te recordaré mañana la cita.", "Si tu veux, je te le rappellerai demain.",
    "Wenn du möchtest, erinnere ich dich morgen.", "Se quiser, vou te lembrar amanhã.",
    "Als je wilt, herinner ik je morgen.", "Jeśli chcesz, przypomnę ci jutro.", "Если хотите, я напомню вам завтра.",
    "İsterseniz yarın size hatırlatacağım.", "إذا أردت، سأذكرك غدًا.", "هل أذكرك غدا؟",
    "如果您愿意，我会提醒您明天开会。", "要我明天提醒您吗？", "よろしければ、明日お知らせします。",
    "원하시면 내일 알려 드리겠습니다.",
    "अगर आप चाहें, मैं कल याद दिलाऊँगा।",
]  # fmt: skip


def test_no_answer_that_reports_offers_or_describes_claims_an_effect() -> None:
    assert [row["text"] for row in ROWS if not row["claims"] and claimed_effect(row["text"])] == []


def test_of_the_answers_that_claim_an_effect_at_least_nineteen_in_twenty_are_found() -> None:
    claiming = [row["text"] for row in ROWS if row["claims"]]
    missed = [text for text in claiming if claimed_effect(text) is None]
    assert len(missed) <= len(claiming) / 20, missed


@pytest.mark.parametrize(
    "text", ["Done.", "Fatto!", "完成了。", "I have updated your address.", "The order was cancelled."]
)
def test_what_may_be_said_of_something_else_is_not_sure(text: str) -> None:
    found = claimed_effect(text)
    assert found is not None
    assert not found.is_sure


def test_of_a_long_answer_only_both_ends_are_read() -> None:
    filler = "The weather is fine in the mountains today. " * 20_000
    began = time.process_time()
    assert claimed_effect(f"{filler}I have sent the email to Anna.") is not None
    assert claimed_effect(f"{filler}I have sent the email to Anna. {filler}") is None
    assert time.process_time() - began < 1


@pytest.mark.parametrize("answer", PROMISING)
def test_an_answer_promises_what_it_says_will_be_done_later(answer: str) -> None:
    assert says_promise(answer)


@pytest.mark.parametrize("answer", PROMISING_NOTHING)
def test_offers_questions_conditions_the_past_and_words_for_another_are_no_promise(answer: str) -> None:
    assert not says_promise(answer)
