import pytest

from segue.plans.acknowledgement import chosen_of, classify
from segue.plans.asked_words import Question, joined, question_of

THREE = dict.fromkeys((4, 5, 6), Question())


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("the first", {4}), ("skip the second", {4, 6}), ("only the second please", {5}),
        ("go with the first one please", {4}), ("option 2", {5}), ("la terza e basta", {6}), ("بس الأول", {4}),
        ("2号", {5}), ("رقم ٢", {5}), ("no, only the first", {4}), ("1 and 3", {4, 6}),
        ("the last two", {5, 6}), ("not the second", {4, 6}), ("only the first, thanks", {4}),
        ("solo la prima", {4}), ("sì, la prima e l'ultima", {4, 6}), ("tutte tranne la seconda", {4, 6}),
        ("solo el primero", {4}), ("todas menos la última", {4, 5}), ("los dos primeros", {4, 5}),
        ("seulement le deuxième", {5}), ("tous sauf le premier", {5, 6}), ("les deux derniers", {5, 6}),
        ("nur die erste", {4}), ("alle außer der letzten", {4, 5}),
        ("só a primeira", {4}), ("todos exceto o segundo", {4, 6}), ("os dois primeiros", {4, 5}),
        ("alleen de eerste", {4}), ("alle behalve de laatste", {4, 5}),
        ("tylko pierwszy", {4}), ("wszystkie oprócz ostatniego", {4, 5}),
        ("только первый", {4}), ("все кроме последнего", {4, 5}),
        ("sadece ilki", {4}), ("sonuncusu hariç hepsi", {4, 5}),
        ("الأول فقط", {4}), ("الكل ما عدا الأخير", {4, 5}),
        ("只要第一个", {4}), ("好的，只删第一个", {4}), ("除了最后一个都要", {4, 5}),
        ("最初だけ", {4}), ("最後以外", {4, 5}),
        ("첫 번째만", {4}), ("마지막 빼고", {4, 5}), ("सिर्फ पहला", {4}), ("आखिरी को छोड़कर", {4, 5}),
    ],
)  # fmt: skip
def test_a_reply_picks_some_of_three(reply: str, chosen: set[int]) -> None:
    assert chosen_of(reply, THREE) == frozenset(chosen)


@pytest.mark.parametrize(
    "reply",
    [
        "all of them", "yes, all three", "ok, everything please", "tutte e tre, grazie", "sí, todas", "oui, tous",
        "yes, all 3", "sì, tutte e 3",
        "alle drei", "todos", "allemaal", "wszystkie", "все три", "hepsini", "الكل", "全部", "すべて", "모두", "सभी",
    ],
)  # fmt: skip
def test_a_reply_picks_all(reply: str) -> None:
    assert chosen_of(reply, THREE) == frozenset(THREE)


@pytest.mark.parametrize(
    "reply",
    [
        "both", "both of them", "tutte e due", "ambas", "les deux", "beide", "os dois", "allebei", "obie", "оба",
        "ikisini de", "كلاهما", "两个都", "两个都可以", "両方", "둘 다", "दोनों",
    ],
)  # fmt: skip
def test_both_is_two_and_picks_nothing_of_three(reply: str) -> None:
    assert chosen_of(reply, dict.fromkeys((1, 2), Question())) == frozenset({1, 2})
    assert (chosen_of(reply, THREE), classify(reply, question=joined(THREE.values())).strength) == (None, None)


@pytest.mark.parametrize(
    "reply",
    [
        "all good", "everything is wrong", "not at all", "not all of them", "none of them", "that's all", "all?",
        "no to all", "all but", "the fourth", "only the second and the fifth", "only the red one", "only one",
        "not one", "the last one was wrong", "first of all, no", "wait for the second", "“only the first”",
        "not only the first", "not both", "all or none", "stop all", "cancel everything", "leave everything", "no", "",
        "thanks for everything", "thanks for the first", "tutto bene", "grazie di tutto", "non solo la prima",
        "solo uno", "todo bien", "gracias por todo", "no, la primera", "tout va bien", "merci pour tout", "pas tous",
        "alles gut", "danke für alles", "nicht alle", "nicht nur die erste", "não, a primeira", "obrigado por tudo",
        "bedankt voor alles", "niet alles", "nie, pierwszy", "dziękuję za wszystko", "не все", "спасибо за все",
        "всё понятно", "hepsi tamam", "sadece ilki değil", "ليس كلها", "شكرا على كل شيء", "都好", "都不要",
        "1 sì 2 no", "1 no 2 sì", "la 2 no", "no 2", "1 non 2 oui", "de eerste niet, de tweede wel", "yes, at 2",
        "第一个不要，第二个要", "一个都不要", "全部だめ", "다 됐어", "सब ठीक है",
    ],
)  # fmt: skip
def test_what_only_has_a_word_for_a_choice_in_it_picks_nothing(reply: str) -> None:
    assert not chosen_of(reply, THREE)


BOOKINGS = {at: question_of("cancel_booking", "cancel booking", {"booking_id": f"BK-10{at}"}) for at in (1, 2, 3)}
TWO = {at: BOOKINGS[at] for at in (1, 2)}
MIXED = {1: BOOKINGS[1], 2: question_of("send_mail", "send mail", {"to": "anna@x.example", "text": "See you soon"})}


@pytest.mark.parametrize(
    ("reply", "asked", "chosen"),
    [
        ("Yes, cancel BK-101.", BOOKINGS, {1}), ("Yes, cancel BK-101 and BK-103", BOOKINGS, {1, 3}),
        ("Sì, cancella BK-102, grazie", BOOKINGS, {2}), ("是的，取消BK-101", BOOKINGS, {1}),
        ("Yes, cancel the first one only", BOOKINGS, {1}), ("Sì, annulla la prima e la terza", BOOKINGS, {1, 3}),
        ("Oui, annule les deux premières", BOOKINGS, {1, 2}), ("Ja, storniere nur die erste", BOOKINGS, {1}),
        ("نعم، ألغ الأول فقط", BOOKINGS, {1}), ("Sì, cancellale tutte e tre", BOOKINGS, {1, 2, 3}),
        ("Yes, send the mail", MIXED, {2}), ("Sì, manda la mail ad anna", MIXED, {2}),
        ("Yes, please cancel the booking and send the mail.", MIXED, {1, 2}),
    ],
)  # fmt: skip
def test_a_yes_picks_the_steps_that_it_names(reply: str, asked: dict[int, Question], chosen: set[int]) -> None:
    assert chosen_of(reply, asked) == frozenset(chosen)


@pytest.mark.parametrize("reply", ["Yes please", "Yes, cancel the bookings", "cancel both", "cancel the first", "no"])
def test_a_yes_that_names_none_and_an_action_without_a_yes_pick_nothing(reply: str) -> None:
    assert chosen_of(reply, TWO) is None


@pytest.mark.parametrize(
    "reply",
    [
        "Yes, please cancel both of them.", "Sure, cancel them both.", "Yes, go ahead with both cancellations.",
        "Sì, confermo, cancella pure tutte e due.", "Sì, annullale entrambe, grazie.",
        "Sí, cancela las dos por favor.", "Oui, vous pouvez annuler les deux réservations.",
        "Ja, storniere bitte beide Buchungen.", "Sim, pode cancelar as duas.", "好的，两个都取消吧。",
        "نعم، ألغ الحجزين من فضلك",
        "はい、両方キャンセルしてください。", "네, 둘 다 취소해 주세요.", "हाँ, दोनों रद्द कर दो।",
    ],
)  # fmt: skip
def test_a_sentence_that_says_both_is_a_yes_to_two_and_no_yes_to_three(reply: str) -> None:
    read = classify(reply, question=joined([*TWO.values()]))
    assert chosen_of(reply, TWO) == frozenset(TWO) or (chosen_of(reply, TWO), read.strength) == (None, "strong")
    of_three = classify(reply, question=joined(BOOKINGS.values()))
    assert (chosen_of(reply, BOOKINGS), of_three.strength, of_three.carries_yes) == (None, None, False)
