import pytest

from segue.plans.acknowledgement import conversation_language

REQUESTS = {
    "it": "Cerca le mail di Rossi e leggi la più recente",
    "de": "Suche die Mails von Rossi und lies die neueste",
    "fr": "Cherche les messages de Rossi et lis le plus récent",
    "es": "Busca los correos de Rossi y lee el último",
    "en": "Find the mails from Rossi and read the newest",
    "ja": "ロッシさんのメールを検索して",
}


@pytest.mark.parametrize(
    ("language", "reply"),
    [
        ("it", "perfetto, vai pure"),
        ("it", "vai avanti"),
        ("de", "Vielen Dank"),
        ("de", "los geht's"),
        ("fr", "vas-y"),
        ("fr", "bien entendu"),
        ("es", "ya basta"),
        ("en", "in a minute"),
        ("ja", "承認"),
    ],
)
def test_a_reply_that_looks_like_another_language_is_in_that_of_the_conversation(language: str, reply: str) -> None:
    assert conversation_language([reply, REQUESTS[language]]) == language
    assert conversation_language([reply, reply, "Rossi", REQUESTS[language]]) == language


@pytest.mark.parametrize(
    ("language", "reply"), [("en", "yes please, send it"), ("it", "sì, grazie"), ("fr", "oui merci")]
)
def test_a_reply_in_another_language_changes_it(language: str, reply: str) -> None:
    assert conversation_language([reply, REQUESTS["de"]]) == language


def test_a_request_in_another_language_changes_it() -> None:
    assert conversation_language(["vai pure", REQUESTS["it"], REQUESTS["de"]]) == "it"


def test_a_reply_alone_is_in_the_language_that_it_shows() -> None:
    assert conversation_language(["sì, grazie"]) == "it"
    assert conversation_language(["Rossi", "ok"]) is None


def test_what_a_message_quotes_does_not_change_the_language() -> None:
    quoted = "<source>Please send the invoice and the contract to me</source>\n\n"
    assert conversation_language([f"{quoted}Che cosa vogliono da me?"]) == "it"
    assert (
        conversation_language(["Che cosa vogliono da me?\n\n-----Original Message-----\nPlease send the invoice"])
        == "it"
    )
    assert conversation_language([quoted, "Leggimi la posta di oggi"]) == "it"


@pytest.mark.parametrize(
    ("language", "order"),
    [
        ("zh", "给bob@x.example发邮件：Hi Bob, the meeting is moved to Tuesday at nine, see you there"),
        ("ar", "أرسل إلى bob@x.example: Hi Bob, the meeting is moved to Tuesday at nine, see you there"),
    ],
)
def test_an_order_with_a_text_to_send_is_in_its_own_language(language: str, order: str) -> None:
    assert conversation_language([order]) == language


@pytest.mark.parametrize(
    ("language", "message"),
    [
        ("en", 'what does "cancella la fattura" mean'),
        ("it", 'cosa vuol dire "delete the invoice"'),
        ("ja", "「delete the invoice」の意味は"),
        ("it", "l'errore dice TypeError: undefined is not a function"),
        ("zh", "把 invoice.pdf 改名"),
        ("ar", "الخطأ TypeError: undefined is not a function"),
        ("it", '"va bene, grazie"'),
    ],
)
def test_a_quotation_code_and_a_file_do_not_show_the_language(language: str, message: str) -> None:
    assert conversation_language([message]) == language
