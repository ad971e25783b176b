import pytest

from segue.plans.multistep_detector import asks_for_several_steps, parse_cues

SEQUENCES = {
    "en": [
        "Search my mails for Rossi, then read the newest one",
        "First find a hotel in Rome and then book it for two nights",
        "Look up the weather in Oslo. After that, write a mail to Anna about it",
        "Please open the report; finally send it to my boss",
        "Can you find the invoice and after that forward it to accounting?",
        "Get the weather in Milan. Then draft an email to Lucy with it.",
        "search my mails -> then, read the newest",
        "grab the latest invoice then pay it",
        "when you've found the invoice forward it to Anna",
    ],
    "it": [
        "Cerca le mail di Rossi, poi leggi la più recente e infine scrivi una risposta",
        "Prima cerca un albergo a Roma e poi prenotalo",
        "Puoi cercare le mail di Anna e dopo inoltrarle a Marco?",
        "Trova la fattura. Infine, inviala al commercialista",
        "cerca il volo più economico, quindi prenota due posti",
        "prendi l'ultima fattura e pagala",
        "Vorrei che cercassi le mail di ieri, poi leggi la più recente e dopo scrivi una risposta",
    ],
    "es": [
        "Busca los correos de Rossi, luego lee el más reciente",
        "Primero busca un hotel en Roma y después resérvalo",
        "Encuentra la factura y, por último, envíala a contabilidad",
        "¿Puedes buscar los correos de Ana y a continuación responderle?",
    ],
    "fr": [
        "Cherche les mails de Rossi, puis lis le plus récent",
        "Trouve d’abord un hôtel à Rome, ensuite réserve-le",
        "Pouvez-vous chercher la facture et enfin l’envoyer au comptable ? Ensuite, supprimez le brouillon",
        "Ouvre le rapport et après envoie un résumé à Anna",
    ],
    "de": [
        "Such die Mails von Rossi und lies dann die neueste",
        "Suche zuerst ein Hotel in Rom. Buche es danach für zwei Nächte",
        "Öffne den Bericht, anschließend schick ihn an Anna",
        "Kannst du die Mails von Rossi suchen und zum Schluss eine Antwort schreiben?",
    ],
    "pt": [
        "Procure os e-mails do Rossi, depois leia o mais recente",
        "Primeiro encontra um hotel em Roma e em seguida reserva dois quartos",
        "Busque a fatura e, por fim, envie para a contabilidade",
    ],
    "nl": [
        "Zoek de mails van Rossi en lees daarna de nieuwste",
        "Zoek eerst een hotel in Rome. Boek het vervolgens voor twee nachten",
        "Open het rapport en stuur het tot slot naar Anna",
    ],
    "pl": [
        "Znajdź maile od Rossiego, potem przeczytaj najnowszy",
        "Najpierw wyszukaj hotel w Rzymie, a następnie zarezerwuj pokój",
        "Otwórz raport i na koniec wyślij go do Anny",
    ],
    "ru": [
        "Найди письма от Росси, потом прочитай последнее",
        "Сначала найдите отель в Риме, затем забронируйте номер",
        "Открой отчёт и после этого отправь его Анне",
    ],
    "tr": [
        "Rossi’den gelen postaları bul, sonra en yenisini oku",
        "Önce Roma’da bir otel ara, ardından iki gece için rezervasyon yap",
        "Raporu aç ve son olarak Anna’ya gönder",
    ],
    "ar": [
        "ابحث عن رسائل روسي ثم اقرأ أحدثها",
        "ابحث عن رسائل ليلى ثم احذفها",
        "افتح التقرير وبعد ذلك أرسله إلى آنا",
        "دور على رحلة لشبونة واحجزها",
        "جيب آخر فاتورة وادفعها",
        "بعد ما تلاقي الفاتورة حولها لآنا",
        "ابحث عن فندق في روما، وأخيرًا احجز غرفة لليلتين",
    ],
    "zh": [
        "先搜索罗西的邮件，再阅读最新的一封",
        "查找罗马的酒店，然后预订两晚",
        "打开报告，最后发送给安娜",
        "先看天气再给妈妈发短信",
        "帮我查一下明天的天气，之后写一封邮件告诉安娜",
        "先搜尋羅西的郵件，然後回覆最新的一封",
    ],
    "ja": [
        "ロッシさんのメールを検索して、次に最新のものを読んでください",
        "ローマのホテルを探して、その後二泊予約してください",
        "レポートを開いて、最後にアンナに送ってください",
        "請求書を見つけてください。そして経理に転送してください",
    ],
    "ko": [
        "로시의 메일을 찾아줘. 그 다음 가장 최근 것을 읽어줘",
        "로마의 호텔을 검색하고 그리고 이틀 예약해줘",
        "보고서를 열고 마지막으로 안나에게 보내줘",
    ],
    "hi": [
        "रॉसी के मेल खोजो, फिर सबसे नया पढ़ो",
        "रोम में होटल ढूँढो और उसके बाद दो रातों के लिए बुक करो",
        "रिपोर्ट खोलो और अंत में उसे अन्ना को भेजो",
    ],
}
JOINED = {
    "en": ["search the mails, read the newest and write a reply", "Could you find the invoice and send it to Anna?"],
    "it": ["cerca le mail, leggi la più recente e scrivi una risposta", "trova la fattura e mandala ad Anna"],
    "es": ["busca los correos, lee el más reciente y escribe una respuesta"],
    "fr": ["cherche les mails, lis le plus récent et écris une réponse"],
    "de": [
        "such die Mails, lies die neueste und schreib eine Antwort",
        "Kannst du die Mails durchsuchen und die neueste lesen?",
    ],
    "pt": ["procure os e-mails, leia o mais recente e escreva uma resposta"],
    "nl": ["zoek de mails, lees de nieuwste en schrijf een antwoord"],
    "pl": ["znajdź maile, przeczytaj najnowszy i napisz odpowiedź"],
    "ru": ["найди письма, прочитай последнее и напиши ответ"],
    "tr": ["postaları ara, en yenisini oku ve bir yanıt yaz"],
    "ar": ["ابحث في الرسائل واقرأ أحدثها واكتب ردًا"],
    "zh": ["搜索邮件，阅读最新的一封，并写一封回复"],
    "ja": ["メールを検索し、最新のものを読んで、返信を書いてください"],
    "ko": ["메일을 검색하고, 최신 메일을 읽고, 답장을 써줘"],
    "hi": ["मेल खोजो, सबसे नया पढ़ो और जवाब लिखो"],
}
ONE_FIRST = {
    "en": "After reading the report, send a summary to Anna",
    "it": "Dopo aver letto la mail di Rossi, scrivi una risposta",
    "es": "Una vez que encuentres la factura, envíala a Ana",
    "fr": "Après avoir lu le rapport, envoie un résumé à Anna",
    "de": "Nachdem du die Mail gelesen hast, schreib eine Antwort",
    "ru": "После того как прочитаешь письмо, напиши ответ",
    "tr": "Raporu okuduktan sonra Anna’ya bir özet gönder",
}
LISTS = [
    "1. search the mails\n2. read the newest\n3. write a reply",
    "Fai così:\n- cerca le mail di Rossi\n- leggi la più recente",
    "• busca los correos\n• responde al último",
    "1) such die Mails 2) lies die neueste",
    "1、搜索邮件\n2、阅读最新的一封",
    "①搜索邮件②回复最新的一封",
    "１．メールを検索して\n２．最新のものを読んで",
    "1. найди письма\n2. ответь на последнее",
    "١. ابحث عن الرسائل\n٢. اكتب ردا",
]
AND_THEN_SOMEONE = [
    "Leggi main.py e correggi il bug", "Read main.py and fix the bug", "读 main.py 并修复错误",
    "اقرأ main.py وأصلح الخطأ", "Lies main.py und behebe den Fehler", "Lee main.py y corrige el error",
    "Move the meeting with Anna to Friday and tell the participants", "Move the call to 3pm and let everyone know",
    "Sposta la riunione con Anna a venerdì e dillo ai partecipanti", "把会议改到周五并通知参会者",
    "انقل الاجتماع إلى الجمعة وأخبر المشاركين", "find the mails from Rossi and delete the oldest",
]  # fmt: skip
FROM_WHAT_IS_THE_USERS = [
    "cerca sul web info sul mittente dell'ultimo messaggio",
    "cerca su internet l'azienda che mi ha scritto l'ultima mail",
    "search the web for info on the sender of the last message", "look up the sender of my latest email online",
    "上网搜一下最后一封邮件的发件人", "在网上查一下最新邮件的发件人的信息",
    "ابحث في الإنترنت عن معلومات عن مرسل آخر رسالة", "Create a calendar event from the last email by Marco",
    "Write a summary based on the last message from Anna", "Crea un evento in calendario dall'ultima mail di Marco",
    "根据马可的最后一封邮件创建一个日历事件", "أنشئ حدثا في التقويم من آخر رسالة من ماركو",
    "Crea un evento a partir del último correo de Marco", "Crée un événement à partir du dernier mail de Marco",
    "Erstelle einen Termin aus der letzten Mail von Marco",
]  # fmt: skip
ONE_PLACE = [
    "Read the last email from Marco", "reply to the last email", "delete the last message from Anna",
    "upload the last file", "search the web for email providers", "search the web for the last world cup final",
    "create a file from a template", "leggi l'ultima mail di Marco", "rispondi all'ultimo messaggio",
    "cerca sul web il miglior provider di posta", "scrivi una mail a Marco",
    "cerca online l'ultimo film di Sorrentino", "读最后一封邮件", "写一封邮件给马可", "上网搜北京的酒店",
    "اقرأ آخر رسالة", "أرسل رسالة إلى عمر", "ابحث في الإنترنت عن فندق", "responde al último correo", "tell the truth",
]  # fmt: skip
NOT_SEQUENCES = {
    "en": [
        "what happened then?",
        "then what?",
        "since then I have not found my mail",
        "I searched for it and then I read it in the paper",
        "How do I search my mails and then open the newest?",
        "Explain how to read a file and then write it",
        "What did you find and then delete?",
        "find the next train to Rome",
        "search for hotels with a gym and a pool",
        "find a book about the history of search and the web",
        "don't send it, and never call me again",
        "I read your answer, and then the call was over",
        "Translate “search the mails, then read the newest” into French",
        "remind me to call Anna next week",
        "tell me a story, then",
        "copy and paste is broken",
        "finally!",
        "The server crashed and then restarted. Why?",
        "Can you find me a restaurant near the station, not too expensive, and open late?",
        "Show me the mails from Rossi and the newest from Bianchi",
        "Search the web for the latest news about the Mars mission and tell me what you think",
    ],
    "it": [
        "e poi?",
        "poi vediamo",
        "prima o poi leggi quella mail",
        "cosa è successo dopo?",
        "come faccio a cercare una mail e poi aprirla?",
        "ho cercato la mail e poi ho scritto a Marco",
        "cerca le mail arrivate dopo il 3 maggio",
        "da allora in poi non ho più scritto",
        "infine",
        "cerca un albergo con piscina e parcheggio",
        "grazie, poi ti dico",
    ],
    "es": [
        "¿y luego?",
        "¿qué pasó después?",
        "luego vemos",
        "desde luego, busca el correo",
        "¿cómo puedo buscar un correo y luego abrirlo?",
        "busca los correos que llegaron después del lunes",
    ],
    "fr": [
        "et puis quoi ?",
        "et après ?",
        "qu’est-ce qui s’est passé ensuite ?",
        "cherche les mails reçus après le 3 mai",
        "comment chercher un mail et puis l’ouvrir ?",
        "trouve un hôtel avec piscine et parking",
    ],
    "de": [
        "und dann?",
        "was passierte dann?",
        "bis dann",
        "Wie kann ich eine Mail suchen und dann öffnen?",
        "such ein Hotel mit Pool und Sauna",
        "Ich habe gesucht und dann nichts gefunden",
    ],
    "pt": ["e depois?", "o que aconteceu depois?", "procure um hotel com piscina e estacionamento", "até depois"],
    "nl": ["en dan?", "wat gebeurde er toen en daarna?", "zoek een hotel goedkoper dan 100 euro", "tot dan"],
    "pl": ["i co potem?", "co się stało później?", "znajdź hotel z basenem i parkingiem", "prędzej czy później"],
    "ru": ["и что потом?", "что случилось после этого?", "найди отель с бассейном и парковкой", "потом посмотрим"],
    "tr": ["peki sonra?", "sonra ne oldu?", "havuzlu ve otoparklı bir otel bul", "yaz tatili için otel ara"],
    "ar": ["ثم ماذا؟", "ماذا حدث بعد ذلك؟", "ابحث عن فندق فيه مسبح وموقف", "كيف أبحث عن رسالة ثم أفتحها؟"],
    "zh": [
        "然后呢？",
        "再见",
        "后来发生了什么？",
        "查找最后一封邮件",
        "怎么搜索邮件然后打开？",
        "三天之后提醒我",
        "我昨天读了一本书，然后写了一篇文章",
        "服务器崩溃了，然后又恢复了，为什么？",
        "找一家有泳池和停车场的酒店",
    ],
    "ja": ["それから？", "その後どうなった？", "最後のメールを読んで", "どうやってメールを検索して、次に開くの？"],
    "ko": ["그리고?", "그 다음은?", "다음에 봐", "마지막으로 온 메일을 읽어줘", "어떻게 메일을 찾고 그 다음 열어?"],
    "hi": ["फिर?", "फिर क्या हुआ?", "फिर से खोजो", "उसके बाद क्या हुआ?", "पूल और पार्किंग वाला होटल खोजो"],
}
NO_STEPS = [
    "",
    "   ",
    "ok",
    "sì, grazie",
    "yes please",
    "好的",
    "1. Apples\n2. Pears",
    "- pane\n- latte\n- uova",
    "- one mail to Anna",
    "It costs 1.5 euros, 2. at most",
    "👍",
    "What is 3 + 4?",
]
# Verbs that no list has, between `first` and a word that goes on.
FIRST_AND_THEN = [
    "First check the disk, then restart the service", "First check the disk. Then restart the service.",
    "prima scarica il file e poi convertilo", "先记下a，再记下b", "أولا سجل الملاحظة ثم اضربها في اثنين",
    "Primero multiplica 3 por 4 y luego divídelo", "D'abord multiplie 3 par 4, puis divise par deux",
    "Zuerst multipliziere 3 mit 4, dann halbiere es", "Сначала умножь 3 на 4, потом раздели",
]  # fmt: skip
FIRST_OF_A_STORY = [
    "I first went to Rome, then to Paris", "First I went to Rome, then to Paris", "the first mail, then the second",
    "My first name is Bob, then comes Smith", "Prima ero a Roma, poi a Milano", "prima o poi ci vado",
    "Who came first, then?", "我先走了，然后呢？",
]  # fmt: skip


def _cases(by_language: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(language, message) for language, messages in by_language.items() for message in messages]


@pytest.mark.parametrize(("language", "message"), _cases(SEQUENCES))
def test_a_sequence_word_between_two_requests_asks_for_several_steps(language: str, message: str) -> None:
    assert asks_for_several_steps(message), language


@pytest.mark.parametrize(("language", "message"), _cases(JOINED))
def test_requests_joined_by_commas_and_and_ask_for_several_steps(language: str, message: str) -> None:
    assert asks_for_several_steps(message), language


@pytest.mark.parametrize(("language", "message"), ONE_FIRST.items())
def test_a_request_to_be_done_after_another_asks_for_several_steps(language: str, message: str) -> None:
    assert asks_for_several_steps(message), language


@pytest.mark.parametrize("message", FIRST_AND_THEN)
def test_what_is_asked_for_first_and_then_is_several_steps_whatever_verbs_it_has(message: str) -> None:
    assert asks_for_several_steps(message)


@pytest.mark.parametrize("message", AND_THEN_SOMEONE)
def test_a_request_and_what_follows_from_it_ask_for_several_steps(message: str) -> None:
    assert asks_for_several_steps(message)


@pytest.mark.parametrize("message", FROM_WHAT_IS_THE_USERS)
def test_a_request_that_needs_the_newest_mail_first_asks_for_several_steps(message: str) -> None:
    assert asks_for_several_steps(message)


@pytest.mark.parametrize("message", ONE_PLACE)
def test_a_request_about_one_place_does_not(message: str) -> None:
    assert not asks_for_several_steps(message)


@pytest.mark.parametrize("message", LISTS)
def test_a_list_of_two_requests_asks_for_several_steps(message: str) -> None:
    assert asks_for_several_steps(message)


@pytest.mark.parametrize(("language", "message"), _cases(NOT_SEQUENCES))
def test_a_sequence_word_in_a_question_a_story_or_one_request_does_not(language: str, message: str) -> None:
    assert not asks_for_several_steps(message), language


@pytest.mark.parametrize("message", [*NO_STEPS, *FIRST_OF_A_STORY])
def test_a_message_without_requests_does_not(message: str) -> None:
    assert not asks_for_several_steps(message)


def test_every_language_has_its_own_cases() -> None:
    languages = {"it", "en", "es", "fr", "de", "pt", "nl", "pl", "ru", "tr", "ar", "zh", "ja", "ko", "hi"}
    assert SEQUENCES.keys() == JOINED.keys() == NOT_SEQUENCES.keys() == languages


@pytest.mark.parametrize(("_language", "message"), _cases(SEQUENCES) + _cases(JOINED))
def test_case_and_missing_accents_do_not_change_the_answer(_language: str, message: str) -> None:
    assert asks_for_several_steps(message.upper())


def test_what_stands_beyond_the_part_that_is_read_does_not_count() -> None:
    assert not asks_for_several_steps("word " * 1_000 + "search the mails, then read the newest")


def test_a_very_long_message_of_one_kind_of_sign_is_answered() -> None:
    for sign in ("«", "`", "1. ", "- ", "\n", "then ", "然后", '"', "—"):
        assert not asks_for_several_steps(sign * 20_000)


def test_a_word_in_two_lists_of_a_language_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[xx\] has 'foo' in both"):
        parse_cues({"xx": {"verb": "first", "act": "foo", "tell": "Foo"}})


def test_an_unknown_list_is_refused() -> None:
    with pytest.raises(ValueError, match="a list called 'acts'"):
        parse_cues({"xx": {"verb": "first", "acts": "foo"}})


def test_a_stem_of_a_letter_or_two_is_refused() -> None:
    with pytest.raises(ValueError, match="too little"):
        parse_cues({"xx": {"verb": "first", "act": "fo*"}})


def test_an_unknown_place_of_the_verb_is_refused() -> None:
    with pytest.raises(ValueError, match="verb"):
        parse_cues({"xx": {"verb": "middle", "act": "foo"}})
