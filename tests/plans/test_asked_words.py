import pytest

from segue.plans.acknowledgement import classify
from segue.plans.asked_words import (
    is_about,
    is_agreed,
    last_question,
    names_action,
    names_same,
    offer_in,
    question_in,
    question_of,
)

OFFERS = [
    "Please confirm if you would like to proceed with this booking.",
    "Please confirm if everything looks correct, and I'll proceed with the update.",
    "Once you confirm, I'll proceed with the cancellation.",
    "Which payment method would you like to use? Please confirm and I will proceed with the booking.",
    "Would you like to proceed with booking LX14, or is there anything else I can assist you with?",
    "If you'd like, I can cancel it for you.", "Delete it?", "Shall I send it?", "OK to send?",
    "Vuoi che elimini la mail?",
    "Procedo?", "La elimino?", "Elimino la mail di Rossi?", "Confermi?", "要我删除这封邮件吗？",
    "需要我预订吗？", "是否继续？",
    "هل تريد أن أحذف الرسالة؟", "هل أتابع؟", "هل أمضي في الحجز؟",
    "¿Quieres que lo borre?", "Voulez-vous que je supprime le message ?",
    "Soll ich die Mail löschen?", "Quer que eu apague a mensagem?", "Zal ik het bericht verwijderen?",
    "Czy mam usunąć wiadomość?", "Удалить письмо?", "Maili sileyim mi?", "メールを削除しますか？", "메일을 삭제할까요?",
    "क्या मैं मेल हटा दूँ?", "Are you sure you want me to delete m-1?", "Sei sicuro di voler cancellare la mail?",
    "¿Está seguro de que desea borrar el mensaje?", "Êtes-vous sûr de vouloir supprimer le message ?",
    "Sind Sie sicher, dass ich die Mail löschen soll?", "Weet u zeker dat ik het bericht moet verwijderen?",
    "क्या आप वाकई बुकिंग रद्द करना चाहते हैं?",
]  # fmt: skip
NO_OFFERS = [
    "Rome is the capital.", "I sent the note.", "any allergies?", "Is there anything else I can help you with?",
    "Which one do you want?", "What is your user id?", "How are you?", "How would you like to proceed?",
    "What would you like me to do?", "You will receive your confirmation by email.", "Do you have a booking?",
    "Unfortunately I cannot proceed with the cancellation.", "Shall I keep the mail or delete it?", "",
    "Vuoi che non cancelli la mail?", "Ti serve altro?", "Cosa vuoi che faccia?", "还需要我做什么吗？",
    "كيف يمكنني مساعدتك؟", "¿Qué quieres que haga?", "Wie kann ich Ihnen helfen?",
    "どのメールを削除しますか？", "무엇을 도와드릴까요?", "Do you like it?",
    "Shall I send it? I sent one yesterday. It was long. It was to Anna.",
]  # fmt: skip


@pytest.mark.parametrize("answer", OFFERS)
def test_an_answer_that_ends_in_an_offer_to_act_has_one(answer: str) -> None:
    assert offer_in(f"Here is what I found.\n\n{answer}")


@pytest.mark.parametrize("answer", NO_OFFERS)
def test_what_tells_or_asks_for_something_else_is_no_offer(answer: str) -> None:
    assert offer_in(answer) is None
    assert question_in(answer) is None


def test_an_offer_begins_with_the_first_of_the_last_sentences_that_offers() -> None:
    answer = "PB77 stays. Would you like to proceed with QX41? The refund takes a week. Please confirm."
    assert offer_in(answer) == "Would you like to proceed with QX41? The refund takes a week. Please confirm."


@pytest.mark.parametrize(
    ("text", "tool", "about"),
    [
        ("Would you like to proceed with upgrading?", "update_reservation_flights", True),
        ("I'll add 3 checked bags.", "update_reservation_baggages", True),
        ("Shall I issue a certificate?", "send_certificate", True),
        ("Please confirm this booking.", "book_reservation", True),
        ("Would you like to cancel this booking?", "book_reservation", False),
        ("Shall I proceed with this cancellation and the new booking?", "book_reservation", True),
        ("Procedo con l'annullamento?", "cancel_reservation", True),
        ("Elimino la mail?", "mcp_delete_email", True),
        ("Annullo la mail?", "mcp_delete_email", False),
        ("要删除邮件吗？", "mcp_delete_email", True),
        ("هل أحذف الرسالة؟", "mcp_delete_email", True),
        ("Shall I ask for the weather forecast?", "mcp_weather_forecast", True),
        ("Shall I ask for the weather?", "mcp_weather_forecast", True),
        ("Shall I water the plants?", "mcp_weather_forecast", False),
    ],
)
def test_an_offer_is_about_a_tool_whose_action_it_names(text: str, tool: str, *, about: bool) -> None:
    assert is_about(text, tool) is about


@pytest.mark.parametrize(
    ("reply", "offer", "same"),
    [
        ("Yes, send the note.", "Shall I delete it and send the note?", True),
        ("Sì, manda la nota", "Shall I delete it and send the note?", True),
        # the French word for a booking, which the English reply and offer have as a thing
        ("Yes, go on with this reservation.", "Shall I go on with changing your reservation?", False),
    ],
)
def test_a_reply_names_what_is_offered_in_the_language_of_either(reply: str, offer: str, *, same: bool) -> None:
    assert names_same(reply, offer) is same


def test_a_value_shown_before_an_offer_that_names_one_is_not_in_question() -> None:
    for before in ("A mail from Marco came.", "Here are the details:\n- to: Marco"):
        question = question_in(f"{before}\nWould you like me to reply to Anna?")
        assert question is not None
        assert "anna" in question.words
        assert "marco" not in question.words


@pytest.mark.parametrize(
    "answer",
    [
        "BK-101을 취소하겠습니다. 진행할까요?",
        "BK-101をキャンセルします。続けますか？",
        "我将取消 BK-101。我可以继续吗？",
    ],
)
def test_a_short_offer_in_a_script_without_spaces_is_of_what_was_said_before(answer: str) -> None:
    question = question_in(answer)
    assert question is not None
    assert question.actions == {"cancel"}


@pytest.mark.parametrize("offer", ["Do you want me to proceed?", "Would you like me to go ahead?", "Shall I proceed?"])
def test_an_offer_to_go_on_is_of_what_the_sentence_before_it_names(offer: str) -> None:
    question = question_in(f"The parcel of Marco is here. The report goes to Anna. {offer}")
    assert question is not None
    assert {"anna", "marco"} & question.words == {"anna"}


def test_a_choice_is_not_taken_for_the_details_of_an_offer() -> None:
    question = question_in("Details of payment:\n- which card?\n- Visa 4410\n- Visa 7238\nPlease confirm to proceed.")
    assert question is not None
    assert "4410" not in question.words


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("It is 3.5 km. Shall I go? Fine.", "Shall I go?"), ("Done; shall I go?", "shall I go?"),
        ("Hm… shall I go?", "shall I go?"), ("यह हो गया।क्या मैं हटा दूँ?", "क्या मैं हटा दूँ?"),
        ("完成了。继续吗？", "继续吗？"), ("تم الأمر؛هل أتابع؟", "هل أتابع؟"), ("Done.", None), (None, None),
    ],
)  # fmt: skip
def test_the_last_question_is_that_sentence_alone_in_any_language(text: str | None, question: str | None) -> None:
    assert last_question(text) == question


PAY = {"invoice": "INV-204", "amount": 120, "currency": "EUR"}
WON = {"amount": 1_234_567, "currency": "KRW"}
TABLE = {"guests": 20, "price": 30, "date": "2026-12-04", "time": "20:00"}


@pytest.mark.parametrize(
    ("args", "reply"),
    [
        (PAY, "Yes, 120 euros is right, go ahead"), (PAY, "Sì, 120 euro vanno bene, procedi"), (PAY, "sì, 120 €"),
        (PAY, "是的，120欧元没错，付吧"), (PAY, "确认支付120欧元"), (PAY, "نعم، 120 يورو صحيح، تابع"),
        (PAY, "نعم ١٢٠ يورو، تفضل"), (PAY, "Confermo il pagamento di 120 euro"), (PAY, "Yes, €120"),
        ({"amount": 120}, "Yes, 120 euros"), ({"amount": 1200.5}, "Yes, $1,200.50 is fine"),
        ({"amount": 1200.5}, "Sì, 1200,50 dollari"), (TABLE, "ok le 30 euro vanno bene"),
        (TABLE, "yes, 4 December at 8 pm"), (TABLE, "sì, il 4 dicembre alle 20:00"),
        (TABLE, "好的，晚上8点"), (TABLE, "是的，12月4日20点"), (TABLE, "نعم، 4 ديسمبر"),
        (TABLE, "sì, 4 dicembre"), (TABLE, "好，12月4日"), (TABLE, "可以，2026年12月4日"), (WON, "네, 1,234,567원"),
        (PAY, "好的，120欧"),
    ],
)  # fmt: skip
def test_a_yes_may_say_what_is_asked_as_people_write_dates_and_prices(args: dict[str, object], reply: str) -> None:
    read = classify(reply, question=question_of("pay_invoice", "pay invoice", args))
    assert (read.verdict, read.strength) == ("confirm", "strong")


@pytest.mark.parametrize(
    ("args", "reply"),
    [
        (PAY, "Yes, 120 dollars"), (PAY, "sì, $120"), (PAY, "Yes, ¥120"), (PAY, "好的，120美元"),
        (PAY, "نعم 120 دولار"), (PAY, "Yes, 210 euros"), (PAY, "yes, 204 euros"), (PAY, "yes, 120 euros each"),
        (PAY, "sì, altri 120 euro"),
        (PAY, "再付120欧元"), (PAY, "yes, up to 120 euros"), (PAY, "Yes, my invoice is 120 euros"),
        ({"amount": 1200.5}, "yes, 1,200 dollars"), (TABLE, "yes, 20 euros"), (TABLE, "Yes, 5 December"),
        (TABLE, "Yes, Saturday"), (TABLE, "yes, next Friday"), (TABLE, "Sì, venerdì 11"), (TABLE, "好的，周六"),
        (TABLE, "yes, 4 December 2027"), (TABLE, "Yes, Friday 8 December"), (TABLE, "نعم، السبت"),
        (TABLE, "yes, every Friday"), (TABLE, "是的，12月4日19点"),
        (WON, "네, 1,234,570원"), (PAY | {"currency": "USD"}, "sim, R$ 120"), (PAY | {"currency": "BRL"}, "sim, $120"),
    ],
)  # fmt: skip
def test_a_yes_with_another_date_or_price_than_is_asked_is_not_enough(args: dict[str, object], reply: str) -> None:
    read = classify(reply, question=question_of("pay_invoice", "pay invoice", args))
    assert read.strength != "strong"


@pytest.mark.parametrize("reply", ["Yes, 130 euros", "Sì, 130 euro", "sì, $120", "好，130欧元", "نعم، 130 يورو"])
def test_a_yes_with_another_price_is_a_change_in_every_language(reply: str) -> None:
    read = classify(reply, question=question_of("pay_invoice", "pay invoice", PAY))
    assert (read.verdict, read.carries_yes) == ("amend", True)


CARD = {
    "en": "The other account is empty. Shall I make the transfer with this card?",
    "it": "L'altro conto è vuoto. Vuoi che faccia il bonifico con questa carta?",
    "fr": "L'autre compte est vide. Voulez-vous que je fasse le virement avec cette carte ?",
    "zh": "另一个账户没有钱。要我用这张卡转账吗？",
    "ar": "الحساب الآخر فارغ. هل تريد أن أقوم بالتحويل بهذه البطاقة؟",
}


@pytest.mark.parametrize(
    ("language", "reply"),
    [
        ("en", "Yes, with the other account."), ("en", "yes please, and the other account"),
        ("en", "Yes, also the other account."), ("it", "Sì, con l'altro conto."), ("it", "Sì, l'altro conto"),
        ("it", "sì, anche l'altro conto"), ("fr", "Oui, l'autre compte."), ("zh", "好的，用另一个账户。"),
        ("zh", "好的，还有另一个账户。"), ("ar", "نعم، بالحساب الآخر."), ("ar", "نعم، الحساب الآخر"),
    ],
)  # fmt: skip
def test_a_yes_to_another_that_was_told_of_before_the_offer_is_not_enough(language: str, reply: str) -> None:
    assert classify(reply, question=question_in(CARD[language])).strength != "strong"


def test_a_yes_may_say_another_and_more_as_the_question_does() -> None:
    for asked, reply in (
        ("Shall I book another flight?", "Yes, book another flight."),
        ("Flight HAT2 costs $146 more. Shall I change the booking?", "Yes, I'm okay with paying $146 more."),
    ):
        assert classify(reply, question=question_in(asked)).strength == "strong"


def test_what_an_offer_asks_besides_is_no_action_that_it_names() -> None:
    besides = "and let me know which card you would like to use for the upgrade."
    assert not names_action(f"Please confirm if you would like to proceed with these actions, {besides}")
    assert names_action(f"Please confirm if you would like to proceed with this booking, {besides}")
    assert not names_action("Confermi che posso procedere, e quale carta vuoi usare per la prenotazione?")


@pytest.mark.parametrize(
    "answer",
    [
        "So: 1. delete itm-1; 2. send Ada the note; 3. delete itm-3. Shall I?",
        "I will delete these:\n- itm-1\n- itm-2\n- itm-3\n\nShall I go ahead?",
        "My plan:\n\n1. **Delete** itm-1\n2. Delete itm-2\n3. Delete itm-3\n\nShall I?",
        "Farò così: 1. cancello itm-1; 2. mando la nota ad Ada; 3. cancello itm-3. Procedo?",
        "我的计划：1. 删除 itm-1；2. 把便条发给 Ada；3. 删除 itm-3。要我继续吗？",
        "خطتي: 1. حذف itm-1 2. إرسال الملاحظة إلى Ada 3. حذف itm-3. هل أتابع؟",
    ],
)
def test_a_short_offer_behind_a_list_of_actions_is_of_all_of_them(answer: str) -> None:
    offer = offer_in(answer)
    assert offer is not None
    assert ("itm-1" in offer, "itm-3" in offer) == (True, True)


@pytest.mark.parametrize(
    "answer",
    [
        "Found:\n1. itm-1\n2. itm-3\n\nShall I delete it?", "Found:\n- itm-1\n- itm-3\n\nShall I?",
        "I found 1. It is itm-1. I can delete itm-3. Shall I?", "itm-1 stays. I can delete itm-3. Shall I?",
    ],
)  # fmt: skip
def test_a_short_offer_behind_a_list_of_things_is_not_of_all_of_them(answer: str) -> None:
    assert "itm-1" not in (offer_in(answer) or "")


@pytest.mark.parametrize(
    "answer",
    [
        "Shall I delete itm-1 or itm-2?", "Do you want me to delete itm-1, itm-2 or both?",
        "I can delete itm-1 or itm-2. Shall I?", "Shall I send it to anna or marco?",
        "Cancello itm-1 o itm-2?", "Vuoi che cancelli itm-1 oppure itm-2?", "Elimino itm-1 e/o itm-2?",
        "要我删除 itm-1 还是 itm-2？", "要我发给安娜还是马可？", "هل أحذف itm-1 أم itm-2؟", "هل أحذف itm-1 أو itm-2؟",
    ],
)  # fmt: skip
def test_a_choice_between_two_is_no_offer_of_either(answer: str) -> None:
    assert offer_in(answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        "Shall I delete itm-1, yes or no?", "Shall I delete itm-1 or not?", "Cancello itm-1 o no?",
        "Shall I delete itm-1, or is there anything else?", "هل أحذف itm-1 أم لا؟",
    ],
)  # fmt: skip
def test_to_do_it_or_not_is_an_offer(answer: str) -> None:
    assert offer_in(answer) is not None


@pytest.mark.parametrize(
    "answer",
    [
        "If Anna agrees, shall I delete itm-1?", "Shall I delete itm-1 once it is sold?",
        "If Anna agrees, I'll delete itm-1. Shall I?", "Could you confirm that you own itm-1? Then I can delete it.",
        "Se Anna è d'accordo, cancello itm-1?", "Cancello itm-1 appena è venduto?", "如果安娜同意，要我删除 itm-1 吗？",
        "إذا وافقت آنا، هل أحذف itm-1؟", "هل أحذف itm-1 عندما يباع؟",
    ],
)  # fmt: skip
def test_what_waits_for_something_is_no_offer(answer: str) -> None:
    assert offer_in(answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        "If you agree, I'll delete itm-1.", "Once you confirm, I will delete itm-1.", "Se vuoi, cancello itm-1?",
        "If you don't mind, shall I delete itm-1?", "如果您同意，我就删除 itm-1。", "إذا أردت، هل أحذف itm-1؟",
    ],
)  # fmt: skip
def test_what_waits_for_a_yes_is_an_offer(answer: str) -> None:
    assert offer_in(answer) is not None


def test_a_quotation_offers_nothing_and_names_no_action() -> None:
    assert offer_in('The note says "shall I delete itm-2?".') is None
    assert not is_about('Shall I send Anna the note "Please delete itm-2"?', "delete_item")
    assert is_about('Shall I delete "itm-2"?', "delete_item")


@pytest.mark.parametrize(
    "answer",
    [
        "Shall I remind you to delete itm-1?", "Shall I show you how to delete itm-1?",
        "Shall I ask Bob to delete itm-1?", "Vuoi che chieda a Bob di cancellare itm-1?", "要我提醒你删除 itm-1 吗？",
        "要我告诉你怎么删除 itm-1 吗？", "هل أذكرك بحذف itm-1؟", "هل أشرح لك كيف تحذف itm-1؟",
    ],
)  # fmt: skip
def test_an_offer_to_tell_ask_or_remind_of_an_action_is_none_of_it(answer: str) -> None:
    assert not is_agreed("delete_item", answer, "yes")


@pytest.mark.parametrize(
    "answer",
    [
        "I have to ask first: shall I delete itm-1?", "Devo chiedere conferma: cancello itm-1?",
        "我需要询问您：要我删除 itm-1 吗？", "You asked me to delete itm-1. Shall I?",
    ],
)  # fmt: skip
def test_an_offer_that_asks_for_a_yes_is_one_of_its_action(answer: str) -> None:
    assert is_agreed("delete_item", answer, "yes")


@pytest.mark.parametrize(
    "answer",
    [
        "These are old:\n1. itm-1\n2. itm-3\n\nShall I delete them?", "Sono vecchi:\n- itm-1\n- itm-3\n\nLi elimino?",
        "这些是旧的：\n1. itm-1\n2. itm-3\n\n要我全部删除吗？", "هذه قديمة:\n1. itm-1\n2. itm-3\n\nهل أحذفها كلها؟",
        "Details:\n- Seat: itm-1\n- Bag: itm-3\n\nShall I book it?",
        "Details:\n- Seat: itm-1\n- Bag: itm-3\n\nWould you like me to go ahead and book it?",
    ],
)  # fmt: skip
def test_an_offer_of_them_or_of_details_is_of_the_whole_list(answer: str) -> None:
    offer = offer_in(answer) or ""
    assert ("itm-1" in offer, "itm-3" in offer) == (True, True)


def test_a_title_before_a_name_ends_no_offer() -> None:
    assert offer_in("Ti prenoto la visita dal dott. Rossi?") == "Ti prenoto la visita dal dott. Rossi?"
    assert offer_in("Cancello l'ordine n. 7781?") == "Cancello l'ordine n. 7781?"


@pytest.mark.parametrize(
    ("offer", "tool"),
    [
        ("Shall I book a table?", "create_booking"), ("Shall I order paper?", "create_order"),
        ("Shall I place the order?", "place_order"), ("Shall I pay Anna?", "create_payment"),
        ("Chiudo il ticket 5521?", "close_ticket"), ("要我关闭工单5521吗？", "close_ticket"),
        ("هل أغلق التذكرة 5521؟", "close_ticket"), ("Invito Anna?", "invite_user"),
        ("要我重启服务器吗？", "restart_server"),
    ],
)  # fmt: skip
def test_an_offer_names_what_a_tool_makes_or_ends(offer: str, tool: str) -> None:
    assert is_agreed(tool, offer, "ok")
    assert not is_agreed("create_contact", offer, "ok")
