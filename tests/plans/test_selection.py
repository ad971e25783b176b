import pytest

from segue.plans.acknowledgement import chosen_of

THREE = (4, 5, 6)


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
        ("只要第一个", {4}), ("除了最后一个都要", {4, 5}), ("最初だけ", {4}), ("最後以外", {4, 5}),
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
    assert chosen_of(reply, (1, 2)) == frozenset({1, 2})
    assert chosen_of(reply, THREE) is None


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
    assert chosen_of(reply, THREE) is None
