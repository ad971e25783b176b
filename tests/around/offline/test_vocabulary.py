import pytest

from segue.around.offline.vocabulary import concepts, found_sentence, ordinal, reply_language, strip_words

MAILBOX = ("search", "read", "send", "reply", "email")


@pytest.mark.parametrize(
    ("message", "language"),
    [
        ("cerca le mail di 李伟", "it"),
        ("find the mails of ليلى", "en"),
        ("搜索 Rossi 的邮件", "zh"),
        ("ابحث عن Aurora", "ar"),
        ("ابحث عن Marco Rossi", "ar"),
        ("cerca ليلى", "it"),
        ("Vuoi cancellare qualcosa?", "it"),
        ("好的", "zh"),
        ("Rossi?", "en"),
        ("SÌ", "it"),
        ("🙂", "en"),
        ("", "en"),
    ],
)
def test_the_language_is_that_of_the_words_around_a_name(message: str, language: str) -> None:
    assert reply_language([message]) == language


def test_a_message_that_shows_no_language_is_in_the_one_before() -> None:
    assert reply_language(["ابحث عن رسائل ليلى", "Aurora 2026", "👍"]) == "ar"


def test_a_stock_reply_does_not_change_the_language_of_the_conversation() -> None:
    assert reply_language(["Cerca le mail di Rossi", "perfetto, vai pure"]) == "it"


@pytest.mark.parametrize(
    ("message", "query"),
    [
        ("cerca le email di Rossi sull'offerta", "Rossi offerta"),
        ("please find all my emails from Anna about the new office", "Anna new office"),
        ("请帮我查找关于中国馆的邀请函", "中国馆 邀请函"),
        ("搜索发票", "发票"),
        ("找王芳发的信用卡邮件", "王芳 信用卡"),
        ("ابحث في بريدي عن رسالة من عمر", "عمر"),
        ("mail di marco.rossi@rossi-ottica.example", "marco.rossi@rossi-ottica.example"),
        ("leggi la prima", ""),
    ],
)
def test_a_query_is_what_is_left_without_verbs_nouns_and_small_words(message: str, query: str) -> None:
    assert strip_words(message, MAILBOX) == query


@pytest.mark.parametrize(
    ("message", "spoken"),
    [
        ("搜索发票", {"search", "invoice"}),
        ("发邮件给李伟", {"send", "email"}),
        ("信用卡", set()),
        ("the reader opened it", set()),
        ("Öffne die Mail", {"read", "email"}),
        ("ارسل رسالة", {"send", "email"}),
    ],
)
def test_a_word_counts_whole_and_a_chinese_one_not_inside_another(message: str, spoken: set[str]) -> None:
    assert concepts(message) == spoken


@pytest.mark.parametrize(
    ("message", "place"),
    [("la seconda", 1), ("第三封", 2), ("الرابعة", 3), ("number 5", 4), ("l'ultima", 0), ("seconds", 0)],
)
def test_an_ordinal_is_a_place_in_a_list(message: str, place: int) -> None:
    assert ordinal(message) == place


@pytest.mark.parametrize(
    ("language", "noun", "number", "query", "text"),
    [
        ("en", "email", 1, "", "I found one email:"),
        ("en", "page", 3, "x", "I found 3 results for “x”:"),
        ("it", "thing", 1, "x", "Ho trovato un risultato per «x»:"),
        ("it", "email", 0, "", "Non ho trovato nulla."),
        ("zh", "email", 1, "", "找到了 1 封邮件："),
        ("ar", "email", 1, "", "وجدت رسالة واحدة:"),
        ("ar", "email", 2, "", "وجدت رسالتين:"),
        ("ar", "email", 10, "", "وجدت 10 رسائل:"),
        ("ar", "email", 11, "", "وجدت 11 رسالة:"),
        ("ar", "thing", 103, "{n}", "وجدت 103 نتائج عن «{n}»:"),
    ],
)
def test_numbers_and_nouns_agree(language: str, noun: str, number: int, query: str, text: str) -> None:
    assert found_sentence(language, noun=noun, number=number, query=query) == text
