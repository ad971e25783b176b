from pathlib import Path

import pytest

from segue.language.detect_language import detect_language

FIRST_REQUESTS = Path(__file__).with_name("first_requests.txt")
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


def _cases(by_language: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(language, text) for language, texts in by_language.items() for text in texts]


@pytest.mark.parametrize(("language", "text"), _cases(REQUESTS))
def test_an_ordinary_request_gives_its_language_away(language: str, text: str) -> None:
    assert detect_language(text, default="??") == language


@pytest.mark.parametrize(("language", "text"), _cases(REQUESTS))
def test_capitals_do_not_hide_the_language(language: str, text: str) -> None:
    assert detect_language(text.upper(), default="??") == language


@pytest.mark.parametrize(("language", "least"), [("it", 58), ("en", 57), ("es", 53), ("fr", 27), ("de", 28)])
def test_the_first_message_of_a_session_shows_its_language(language: str, least: int) -> None:
    lines = FIRST_REQUESTS.read_text("utf-8").splitlines()
    texts = [text for named, _, text in (line.partition("\t") for line in lines) if named == language]
    missed = [text for text in texts if detect_language(text, default="??") != language]
    assert len(texts) - len(missed) >= least, missed


@pytest.mark.parametrize("text", TELLS_NOTHING)
def test_a_text_that_tells_nothing_is_in_the_default_language(text: str) -> None:
    assert detect_language(text, default="fr") == "fr"


def test_without_a_default_it_is_english() -> None:
    assert detect_language("ok") == "en"


def test_a_foreign_name_does_not_change_the_language() -> None:
    assert detect_language("send «你好» to Anna, please, and read the answer", default="??") == "en"
    assert detect_language("найди письма от Mario Rossi", default="??") == "ru"
    assert detect_language("cerca la mail di 王伟 e leggila", default="??") == "it"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("ar", "أرسل التقرير إلى a@long-name.example و de@c.example"),
        ("ar", "احذف order_2026-118 من el-ordine.example/la/il"),
        ("zh", "发给ada@der-und.example吧"),
        ("en", "send the report to müller@und.example"),
        ("??", "mcp_write_off article=lamp"),
    ],
)
def test_an_address_does_not_change_the_language(language: str, text: str) -> None:
    assert detect_language(text, default="??") == language


def test_an_endless_text_is_told_by_its_beginning() -> None:
    assert detect_language("leggi questa mail: " + "the and of " * 100_000, default="??") in {"it", "en"}
