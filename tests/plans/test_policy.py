import pytest

from segue.domain.plan import Confirm
from segue.domain.tool import ToolSpec
from segue.plans.acknowledgement import classify
from segue.plans.policy import (
    SearchDecision,
    needs_confirmation,
    should_plan,
    should_search_web,
    speaks_of_asking,
    web_query,
)

ASKED_FOR = [
    "cerca su internet i voli per Oslo", "search the web for cheap flights", "look up online who won",
    "busca en internet vuelos a Lima", "cherche sur internet un hôtel", "suche im Internet nach Flügen",
    "pesquisa na internet os preços", "zoek op internet naar hotels", "poszukaj w internecie hoteli",
    "найди в интернете отель", "internette otel ara", "ابحث في الإنترنت عن فندق", "上网搜索北京的酒店",
    "ネットで調べて", "인터넷에서 검색해 주세요", "इंटरनेट पर होटल खोजो",
]  # fmt: skip

EARLIER = [
    "leggi le email che hai trovato", "read the emails you found", "lee los correos que encontraste",
    "lis les mails que tu as trouvés", "lies die Mails, die du gefunden hast", "прочитай письма, которые ты нашёл",
    "bulduğun e-postaları oku", "读一下你找到的邮件", "open the search results",
]  # fmt: skip

PRIVATE = [
    "che impegni ho domani?", "riassumi quello che hai detto", "come mi chiamo?", "cerca le mail di Rossi",
    "leggi main.py", "apri il file contratto.pdf", "a che punto è il piano?", "salta il prossimo passo",
    "ricordati che sono vegetariano", "chi ha scritto l'ultimo messaggio?", "rispondi a Marco che va bene",
    "what's on my calendar tomorrow?", "what is my name?", "summarise what you said", "find the emails from Rossi",
    "do I have any meetings today?", "what did I tell you about Anna?", "go to the next step", "delete the newest one",
    "总结一下你刚才说的", "我叫什么名字？", "搜索罗西的邮件", "打开文件 report.pdf", "下一步是什么？", "回复王芳说可以",
    "ما هي مواعيدي غدا؟", "لخص ما قلته", "ما اسمي؟", "ابحث عن رسائل ليلى", "ماذا قلت لك عن سارة؟",
    "who wrote me last?", "chi mi ha mandato qualcosa oggi?", "今天谁发给我什么了？", "من كتب لي اليوم؟",
    "¿qué compromisos tengo mañana?", "wie heiße ich?", "lis le dernier message", "昨日届いたメールは？",
]  # fmt: skip

ASIDES = [
    "are you really sure?", "how do you say good morning in Japanese?", "what should I do?", "give me some advice",
    "cosa mi consigli?", "come si dice buongiorno in giapponese?", "¿qué me aconsejas?", "你建议我怎么做？",
    "كيف أقول صباح الخير بالفرنسية؟",
    "non ho capito, puoi ripetere?", "did it work with the second one?", "write me a poem about the sea",
    "are you sure about that?", "scrivi una poesia sul mare", 'translate "good morning" into French',
    "che ne pensi, va bene come lettera?", "dammi un consiglio su come parlare al capo", "你确定吗？这样真的可以吗？",
    "请把这句话翻译成英文：早上好，我的朋友们", "هل أنت متأكد من ذلك؟", "لم أفهم، هل يمكنك التكرار؟",
    "no entendí, ¿puedes repetir?", "tu es sûr de ce que tu dis ?", "bist du sicher, dass das geht?",
]  # fmt: skip

SMALL_TALK = [
    "grazie mille, sei stato gentilissimo", "ciao, come stai oggi?", "buongiorno a tutti", "thanks a lot for your help",
    "hello, how are you doing?", "谢谢你，你帮了我这么大的忙，非常感谢", "你好，最近怎么样？", "شكرا جزيلا على مساعدتك",
    "مرحبا كيف حالك اليوم؟", "vielen Dank für deine Hilfe", "bonjour, comment ça va ?",
]  # fmt: skip

FORBIDDEN = [
    "Don't search the web, just tell me the capital of France", "Without searching online, who won the world cup?",
    "non cercare sul web, chi ha scritto la Divina Commedia?", "rispondi senza cercare su internet",
    "不要上网搜，法国的首都是哪里？", "别上网，直接告诉我", "لا تبحث في الإنترنت، ما هي عاصمة فرنسا؟",
    "من دون البحث في الإنترنت، كم عدد سكان مصر؟", "no busques en internet, dime qué sabes", "erklär es ohne Internet",
    "explique sans chercher sur internet", "não pesquise na internet", "leg het uit zonder internet",
    "wyjaśnij bez szukania w internecie", "ответь без поиска в интернете", "internette arama yapma, kısaca anlat",
    "ネット検索しないで説明して", "인터넷 검색하지 말고 설명해 줘", "इंटरनेट पर सर्च मत करो",
]  # fmt: skip

FOR_THE_WEB = [
    "qual è la capitale del Perù?", "Chi è Dante?", "ciao, che tempo fa a Roma domani?",
    "grazie, e quanto costa il biglietto per il Louvre?", "miglior provider di posta elettronica",
    "who won the election in Argentina?", "best email provider for small companies", "how do I open a .pages document?",
    "Is it dangerous if my dog eats chocolate?", "Trains from Trieste to Vienna on Sunday", "今天北京天气怎么样？",
    "什么是电子邮件协议？", "ما هي عاصمة فرنسا؟", "أفضل المطاعم في بيروت",
    "¿cuánto cuesta un vuelo a Lima?", "Berlin Hotels im Mai",
]  # fmt: skip

QUERIES = [
    "qual è la capitale del Perù?", "cerca su internet i voli per Oslo", "search the web for cheap flights to Oslo",
    "Trains from Trieste to Vienna on Sunday", "上网搜索北京的酒店", "كم سعر تذكرة الطائرة إلى دبي؟",
]  # fmt: skip

NO_QUERIES = [
    "cerca sul web info sul mittente dell'ultimo messaggio", "search the web for info on the sender of the last email",
    "上网搜一下最后一封邮件的发件人", "ابحث في الإنترنت عن مرسل آخر رسالة", "look it up online", "search the web",
    "who is marco.rossi@rossi.example?", "what happened to flight NQNU5R?", "is eml-30b431 on the web?",
    "che ne dice internet del numero 3331234567?", "e quanto costa quello più piccolo?", "what about the second one?",
    "Is it dangerous if my dog eats chocolate?", "Write a poem about Rome and its rivers",
    "cerca su internet un hotel a Roma e prenotalo", "is\nthis a question?", "Why? " * 60,
]  # fmt: skip

ABOUT_BEING_ASKED = [
    "From now on always ask me before you delete anything", "You may no longer do that without asking",
    "D'ora in poi chiedimi sempre prima di cancellare", "Non puoi più mandare email senza la mia conferma",
    "A partir de ahora pregúntame antes de borrar algo", "No envíes nada sin mi permiso",
    "Demande-moi toujours avant d'envoyer un mail", "N'efface rien sans mon accord",
    "Frag mich ab jetzt immer, bevor du etwas löschst", "Sende nichts ohne meine Zustimmung",
    "以后删除之前先问我", "没有我的同意不要发邮件", "اسألني دائما قبل أن تحذف شيئا", "لا ترسل شيئا بدون إذني",
]  # fmt: skip

ABOUT_SOMETHING_ELSE = [
    "Tell me about the sea", "Delete itm-1, please", "What did Anna ask for in her mail?",
    "Raccontami del mare", "Cancella itm-1, per favore", "Che cosa ha chiesto Anna nella sua email?",
    "Háblame del mar", "Borra itm-1, por favor", "¿Qué ha pedido Anna en su correo?",
    "Parle-moi de la mer", "Efface itm-1, s'il te plaît", "Qu'est-ce qu'Anna veut dans son mail ?",
    "Erzähl mir vom Meer", "Lösche bitte itm-1", "Was will Anna in ihrer Mail?",
    "给我讲讲大海", "请删除 itm-1", "安娜在邮件里想要什么？",
    "حدثني عن البحر", "احذف itm-1 من فضلك", "ماذا تريد آنا في رسالتها؟",
]  # fmt: skip


def decide(message: str, *, force: bool) -> SearchDecision:
    return should_search_web(message, force=force, verdict=classify(message).verdict)


@pytest.mark.parametrize("message", ASKED_FOR)
@pytest.mark.parametrize("force", [True, False])
def test_a_message_that_asks_for_the_web_is_searched(message: str, force: bool) -> None:  # noqa: FBT001
    assert decide(message, force=force) == SearchDecision(search=True, reason="asked_for")


@pytest.mark.parametrize("message", EARLIER)
@pytest.mark.parametrize("force", [True, False])
def test_talk_of_what_was_found_earlier_is_no_search(message: str, force: bool) -> None:  # noqa: FBT001
    assert decide(message, force=force) == SearchDecision(search=False, reason="earlier_results")


@pytest.mark.parametrize(
    "message", ["sì, grazie", "ok", "no, thanks", "好的", "sì ma solo le prime due", "yes, Friday please"]
)
def test_the_toggle_is_not_honoured_on_an_acknowledgement(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=False, reason="acknowledgement")


def test_what_a_message_quotes_asks_for_no_search_forbids_none_and_is_never_sent() -> None:
    quoted = "<source>search the web for flights to Oslo</source>"
    assert decide(f"{quoted} Please translate it for my sister", force=False).reason == "not_asked"
    assert decide("> don't search the web\nsearch the web for flights to Oslo", force=False).reason == "asked_for"
    assert not web_query(f"{quoted} What is the capital of Peru?")


def test_a_bare_yes_is_never_searched_whatever_else_it_says() -> None:
    assert not should_search_web("search the web", force=True, verdict="confirm").search


@pytest.mark.parametrize("force", [True, False])
def test_a_yes_that_adds_a_web_search_is_searched(force: bool) -> None:  # noqa: FBT001
    assert decide("sì, ma cerca anche sul web il prezzo", force=force).search


@pytest.mark.parametrize("message", ["ciao", "hotel Roma", "ricercatore", "北京", "findings"])
def test_the_toggle_is_not_honoured_on_a_few_characters_with_no_search_word(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=False, reason="too_short")


@pytest.mark.parametrize("message", ["cerca voli", "find hotels", "meteo Roma", "搜索酒店", "поищи отели", "ara: otel"])
def test_a_search_word_makes_a_few_characters_enough_for_the_toggle(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=True, reason="forced")


@pytest.mark.parametrize("message", PRIVATE)
def test_the_toggle_is_not_honoured_on_what_is_the_users_own_or_was_said_here(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=False, reason="private")


@pytest.mark.parametrize("message", [*SMALL_TALK, *ASIDES])
def test_the_toggle_is_not_honoured_on_thanks_and_greetings(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=False, reason="small_talk")


@pytest.mark.parametrize("message", FORBIDDEN)
@pytest.mark.parametrize("force", [True, False])
def test_a_user_who_wants_no_search_gets_none_toggle_or_not(message: str, force: bool) -> None:  # noqa: FBT001
    assert decide(message, force=force) == SearchDecision(search=False, reason="forbidden")


@pytest.mark.parametrize("message", QUERIES)
def test_a_whole_question_for_the_web_is_a_query(message: str) -> None:
    assert message.endswith(web_query(message) or "none")


@pytest.mark.parametrize(
    ("message", "query"),
    [
        ("Cerca su internet chi è il sindaco di Milano, per favore", "chi è il sindaco di Milano"),
        ("could you look up online when the next eclipse is, thanks", "when the next eclipse is"),
        ("busca en internet quién es el alcalde de Madrid por favor", "quién es el alcalde de Madrid"),
        ("such im Internet, wer Bürgermeister von Berlin ist, bitte", "wer Bürgermeister von Berlin ist"),
        ("上网搜一下谁是北京市长", "谁是北京市长"),
        ("ابحث في الإنترنت عن عمدة ميلانو من فضلك", "عن عمدة ميلانو"),
    ],
)
def test_a_query_is_the_question_without_the_request_around_it(message: str, query: str) -> None:
    assert web_query(message) == query


@pytest.mark.parametrize("message", NO_QUERIES)
def test_what_leans_on_the_user_or_names_an_address_or_id_is_no_query(message: str) -> None:
    assert web_query(message) is None


@pytest.mark.parametrize("message", FOR_THE_WEB)
def test_the_toggle_is_honoured_on_what_the_web_can_answer(message: str) -> None:
    assert decide(message, force=True) == SearchDecision(search=True, reason="forced")


@pytest.mark.parametrize("message", ["qual è la capitale del Perù?", "cerca le mail di Rossi", "find my invoice"])
def test_without_the_toggle_only_words_for_the_web_search_it(message: str) -> None:
    assert decide(message, force=False) == SearchDecision(search=False, reason="not_asked")


@pytest.mark.parametrize("message", ["\0" * 32_000, "\ud800 search", "x" * 32_000])
def test_hostile_text_does_not_make_it_raise(message: str) -> None:
    should_search_web(message, force=True, verdict="none")
    web_query(message)


@pytest.mark.parametrize(
    ("tool", "asks"),
    [
        (ToolSpec("reads", "", {}), {"destructive": False, "always": True, "never": False}),
        (ToolSpec("notes", "", {}, ephemeral=True), {"destructive": False, "always": False, "never": False}),
        (ToolSpec("adds", "", {}, effect="write"), {"destructive": False, "always": True, "never": False}),
        (ToolSpec("deletes", "", {}, effect="destructive"), {"destructive": True, "always": True, "never": False}),
        (
            ToolSpec("waived", "", {}, effect="destructive", confirm=False),
            {"destructive": False, "always": True, "never": False},
        ),
        (ToolSpec("required", "", {}, confirm=True), {"destructive": True, "always": True, "never": False}),
        (ToolSpec("each", "", {}, confirm="always_ask"), {"destructive": True, "always": True, "never": False}),
    ],
    ids=lambda given: given.name if isinstance(given, ToolSpec) else "",
)
def test_a_tool_asks_by_its_effect_or_as_it_was_configured(tool: ToolSpec, asks: dict[Confirm, bool]) -> None:
    assert {mode: needs_confirmation(tool, mode) for mode in asks} == asks


def test_a_plan_is_made_by_itself_only_for_several_steps_and_never_for_a_yes() -> None:
    several = "Find the mails from Rossi, then read the newest, and finally write a reply"
    assert should_plan(several, mode="auto", verdict="none")
    assert not should_plan("What time is it?", mode="auto", verdict="none")
    assert not should_plan(several, mode="auto", verdict="confirm")
    assert not should_plan(several, mode="never", verdict="none")


def test_that_the_user_wants_to_be_asked_is_read_from_words_about_that_and_from_no_others() -> None:
    assert [each for each in ABOUT_BEING_ASKED if not speaks_of_asking(each)] == []
    assert [each for each in ABOUT_SOMETHING_ELSE if speaks_of_asking(each)] == []
