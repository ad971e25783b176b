import pytest

from segue.plans.translations import PHRASEBOOK, language_of, parse_phrasebook, say

LANGUAGES = ("en", "it", "es", "fr", "de", "pt", "nl", "pl", "ru", "tr", "ar", "zh", "ja", "ko", "hi")
FIELDS = {
    "ask_step": {"description": "Write a reply"},
    "ask": {},
    "ask_again_plainly": {},
    "done_step": {"description": "Search", "summary": "3 mails"},
    "cancelled": {},
    "expired": {},
    "still_waiting": {"goal": "answer Rossi"},
    "changed": {},
    "blocked": {"tool": "mcp_send_mail", "reason": "timeout"},
    "failed": {"number": 2, "description": "Read the newest", "error": "timeout"},
    "skipped": {},
    "unknown": {"number": 3, "description": "Send it"},
    "nothing_waiting": {},
    "interrupted": {},
}
QUESTION_MARKS = {"ar": "؟", "zh": "？", "ja": "？", "fr": "\u202f?"}
REQUESTS = {
    "en": [
        "Find the mails of Rossi and read the newest",
        "what's the weather like in Rome tomorrow?",
        "I need to know how many people are coming",
        "book a table for two, please",
    ],
    "it": [
        "Cerca le mail di Rossi e leggi la più recente",
        "Che tempo fa domani a Roma?",
        "mi dici quanti siamo stasera",
        "perche non funziona piu?",
        "Leggi l’ultima email e scrivi una risposta",
    ],
    "es": [
        "Busca los correos de Rossi y lee el más reciente",
        "¿Qué tiempo hace mañana en Roma?",
        "necesito saber cuántos somos esta noche",
        "por que no funciona el correo",
    ],
    "fr": [
        "Cherche les mails de Rossi et lis le plus récent",
        "Quel temps fait-il demain à Rome ?",
        "j'aimerais savoir combien nous sommes ce soir",
        "Réserve une table pour deux, s'il te plaît",
    ],
    "de": [
        "Such die Mails von Rossi und lies die neueste",
        "Wie wird das Wetter morgen in Rom?",
        "ich möchte wissen, wie viele wir heute Abend sind",
        "bitte einen Tisch fur zwei reservieren",
    ],
    "pt": [
        "Procure os e-mails do Rossi e leia o mais recente",
        "Como vai estar o tempo amanhã em Roma?",
        "preciso saber quantos somos hoje à noite",
        "voce pode reservar uma mesa para dois?",
    ],
    "nl": [
        "Zoek de mails van Rossi en lees de nieuwste",
        "Wat voor weer wordt het morgen in Rome?",
        "ik wil weten met hoeveel we vanavond zijn",
        "Boek alsjeblieft een tafel voor twee",
    ],
    "pl": [
        "Znajdź maile od Rossiego i przeczytaj najnowszy",
        "Jaka będzie jutro pogoda w Rzymie?",
        "prosze zarezerwuj stolik dla dwoch osob",
    ],
    "ru": ["Найди письма от Rossi и прочитай последнее", "Какая завтра погода в Риме?"],
    "tr": [
        "Rossi’den gelen postaları bul ve en yenisini oku",
        "Yarın Roma’da hava nasıl olacak?",
        "LÜTFEN İKİ KİŞİLİK BİR MASA AYIRT",
        "bu aksam icin bir masa bul",
    ],
    "ar": ["ابحث عن رسائل Rossi واقرأ أحدثها", "كيف الطقس غدا في روما؟"],
    "zh": [
        "搜索罗西的邮件并阅读最新的一封",
        "明天罗马天气怎么样？",
        "用 Python 写一个 hello world 程序",
        "搜尋最新的郵件",
    ],
    "ja": ["ロッシさんのメールを検索して最新のものを読んで", "明日のローマの天気は？", "PDFを要約してください"],
    "ko": ["로시의 메일을 찾아서 최신 것을 읽어줘", "내일 로마 날씨 어때?", "PDF 요약해줘"],
    "hi": ["रॉसी के मेल खोजो और सबसे नया पढ़ो", "कल रोम में मौसम कैसा रहेगा?", "meeting की रिपोर्ट email करो"],
}
TELLS_NOTHING = ["", "   ", "ok", "👍", "42", "Rossi", "https://example.com/the/best", "anna@posta.it", "???"]
MINIMAL = '[en.say]\nhello = "Hi {name}"\n'


def _cases(by_language: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(language, text) for language, texts in by_language.items() for text in texts]


def test_every_language_says_every_sentence() -> None:
    assert set(PHRASEBOOK.sentences) == set(LANGUAGES) == set(REQUESTS)
    assert all(set(sentences) == set(FIELDS) for sentences in PHRASEBOOK.sentences.values())


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("key", "values"), FIELDS.items())
def test_a_sentence_shows_each_of_its_values_and_no_braces(language: str, key: str, values: dict[str, object]) -> None:
    sentence = say(key, language, **values)

    assert all(str(value) in sentence for value in values.values())
    assert not {"{", "}"} & set(sentence)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_question_ends_with_the_question_mark_of_its_language(language: str) -> None:
    assert say("ask", language).endswith(QUESTION_MARKS.get(language, "?"))


@pytest.mark.parametrize("key", sorted(set(FIELDS) - {"done_step"}))
def test_no_language_borrows_the_sentence_of_another(key: str) -> None:
    assert len({sentences[key] for sentences in PHRASEBOOK.sentences.values()}) == len(LANGUAGES)


@pytest.mark.parametrize("language", [None, "", "xx", "tlh", "english"])
def test_an_unknown_language_is_answered_in_english(language: str | None) -> None:
    assert say("ask", language) == "Shall I go ahead?"


@pytest.mark.parametrize("language", ["it", "it-IT", "it_CH", "IT"])
def test_a_region_does_not_matter(language: str) -> None:
    assert say("ask", language) == "Procedo?"


@pytest.mark.parametrize("language", ["en", "xx"])
def test_an_unknown_key_is_an_error(language: str) -> None:
    with pytest.raises(KeyError):
        say("praise", language)


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        say("still_waiting", "en")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_value_is_never_read_as_a_format(language: str) -> None:
    hostile = "{number} {0} {error.__class__} %s {"

    assert hostile in say("failed", language, number=1, description="x", error=hostile)


def test_a_value_may_be_called_key_or_language() -> None:
    assert say("ask", "en", key="x", language="y") == "Shall I go ahead?"


@pytest.mark.parametrize(
    "italian",
    [
        "",
        'hello = "Ciao"',
        'hello = "Ciao {nome}"',
        'hello = "Ciao {name!r}"',
        'hello = "Ciao {name.x}"',
        'hello = "{name:>9}"',
    ],
)
def test_a_sentence_that_lacks_a_field_or_changes_it_is_refused_at_load(italian: str) -> None:
    with pytest.raises(ValueError, match=r"it\.say"):
        parse_phrasebook(f"{MINIMAL}[it.say]\n{italian}\n")


def test_a_sentence_that_english_does_not_have_is_refused_at_load() -> None:
    with pytest.raises(ValueError, match="goodbye"):
        parse_phrasebook(f'{MINIMAL}[it.say]\nhello = "Ciao {{name}}"\ngoodbye = "Addio"\n')


@pytest.mark.parametrize(("language", "text"), _cases(REQUESTS))
def test_an_ordinary_request_gives_its_language_away(language: str, text: str) -> None:
    assert language_of(text, default="??") == language


@pytest.mark.parametrize(("language", "text"), _cases(REQUESTS))
def test_capitals_do_not_hide_the_language(language: str, text: str) -> None:
    assert language_of(text.upper(), default="??") == language


@pytest.mark.parametrize("text", TELLS_NOTHING)
def test_a_text_that_tells_nothing_is_in_the_default_language(text: str) -> None:
    assert language_of(text, default="fr") == "fr"


def test_without_a_default_it_is_english() -> None:
    assert language_of("ok") == "en"


def test_a_foreign_name_does_not_change_the_language() -> None:
    assert language_of("send «你好» to Anna, please, and read the answer", default="??") == "en"
    assert language_of("найди письма от Mario Rossi", default="??") == "ru"
    assert language_of("cerca la mail di 王伟 e leggila", default="??") == "it"


def test_an_endless_text_is_told_by_its_beginning() -> None:
    assert language_of("leggi questa mail: " + "the and of " * 100_000, default="??") in {"it", "en"}
