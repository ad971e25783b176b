import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.plans.acknowledgement import LEXICON, LONGEST_MESSAGE, POSTPONES, classify
from segue.plans.asked_words import ACTIONS, Question, joined, question_in, question_of

CONFIRMS = {
    "en": [
        "Yes, please.",
        "sure, go ahead",
        "OK!",
        "yesss",
        "Sounds good, thanks",
        "that would be great",
        "let's do it",
    ],
    "it": ["sì, grazie", "si", "SÌ", "siiii", "va bene, procedi pure", "d’accordo", "ma certo", "ok, fallo pure"],
    "es": ["sí, adelante", "claro que sí", "vale, gracias", "hazlo, por favor", "de acuerdo, sigue"],
    "fr": ["d'accord, allez-y", "oui, merci", "c’est parfait, vas-y", "bien sûr", "ça marche"],
    "de": ["ja gerne", "Passt, mach weiter", "einverstanden", "klingt gut, danke", "na klar, leg los"],
    "pt": ["sim, por favor", "pode sim", "claro, vai em frente", "tá bom, obrigado"],
    "nl": ["ja graag", "prima, ga je gang", "doe maar", "is goed, dank je"],
    "pl": ["tak, proszę", "jasne, zrób to", "zgadzam się", "dobrze, dziękuję"],
    "ru": ["да, давай", "конечно, спасибо", "хорошо, продолжай", "согласен"],
    "tr": ["evet lütfen", "EVET", "tamam, devam et", "olur, teşekkürler"],
    "ar": ["نعم من فضلك", "تمام، تفضل", "نَعَم", "أيوه، شكرا", "موافق"],
    "zh": ["好的,麻烦你了", "可以，继续吧", "行，谢谢", "没问题，开始吧", "沒問題，謝謝"],
    "ja": ["はい、お願いします", "ええ、進めてください", "ｵｯｹｰ、ありがとう", "それで大丈夫です、お願いします"],
    "ko": ["네 그렇게 해주세요", "네, 부탁드립니다", "좋아요 진행해 주세요", "응 고마워"],
    "hi": ["हाँ कर दो", "जी हाँ, धन्यवाद", "ठीक है, आगे बढ़िए", "haan, kar do"],
}

REJECTS = {
    "en": [
        "no",
        "No, thanks.",
        "no, don't",
        "ok no",
        "certainly not",
        "never mind",
        "not now, maybe later",
        "please stop",
    ],
    "it": ["non va bene", "certo che no", "no grazie", "lascia perdere", "sì, ma in realtà no", "annulla tutto"],
    "es": ["claro que no", "no, gracias", "no lo hagas", "déjalo", "ahora no"],
    "fr": ["bien sûr que non", "non merci", "ne le fais pas", "laisse tomber", "pas maintenant"],
    "de": ["nein danke", "mach das nicht", "auf keinen Fall", "vergiss es", "das passt mir leider nicht"],
    "pt": ["claro que não", "não, obrigado", "deixa pra lá", "agora não"],
    "nl": ["nee, bedankt", "laat maar", "liever niet", "nu niet"],
    "pl": ["nie, dziękuję", "oczywiście że nie", "anuluj", "zapomnij o tym"],
    "ru": ["да нет", "нет, спасибо", "не надо", "отмена"],
    "tr": ["hayır", "HAYIR", "boş ver", "tabii ki hayır", "iptal et lütfen"],
    "ar": ["لا شكرا", "لا تفعل ذلك", "ليس الآن", "انسَ الأمر"],
    "zh": ["不用了，谢谢", "算了吧", "不要发送", "当然不行"],
    "ja": ["いいえ、結構です", "やめてください", "キャンセルして", "また今度"],
    "ko": ["아니요, 괜찮아요", "하지 마세요", "취소해 주세요", "나중에 할게요"],
    "hi": ["नहीं, धन्यवाद", "मत करो", "रहने दो", "अभी नहीं"],
}

AMENDS = {
    "en": ["yes, Friday please", "ok but only the first two", "sure, send it to Rossi instead", "no, make it Friday"],
    "it": ["sì ma solo le prime due", "va bene, però domani", "sì, a Milano"],
    "es": ["sí, pero mañana", "vale, menos la última"],
    "fr": ["oui mais pas la deuxième", "d'accord, demain"],
    "de": ["ja, aber nur die erste", "ok, am Freitag"],
    "pt": ["sim, mas só amanhã"],
    "nl": ["ja, maar alleen de eerste"],
    "pl": ["tak, ale jutro"],
    "ru": ["да, но только завтра"],
    "tr": ["evet ama yarın"],
    "ar": ["نعم ولكن غدا"],
    "zh": ["好的，但是改成周五"],
    "ja": ["はい、でも明日"],
    "ko": ["네, 하지만 내일"],
    "hi": ["हाँ लेकिन कल"],
}

WEAK = {
    "en": ["Perfect!", "great, thanks", "That's perfect.", "excellent", "yes, I understand the question"],
    "it": ["perfetto", "perfetto, grazie mille", "ottimo!", "è perfetto", "sì, ho capito"],
    "es": ["genial", "sí, entiendo"],
    "fr": ["parfait", "oui, compris"],
    "de": ["perfekt", "ja, verstanden"],
    "pt": ["perfeito", "s no"],  # and "no" is a no in most languages
    "nl": ["geweldig"],
    "pl": ["świetnie"],
    "ru": ["отлично", "да, понятно"],
    "tr": ["harika"],
    "ar": ["ممتاز", "نعم فهمت"],
    "zh": ["太棒了", "了解", "还行", "嗯，我懂了"],
    "ja": ["素晴らしい", "了解"],
    "ko": ["완벽해요"],
    "hi": ["बहुत बढ़िया"],
}

NONES = {
    "en": ["thanks", "thanks 👍", "maybe", "ok?", "ok, what does it cost?", "bye", "", "…"],
    "it": ["grazie", "forse", "sì, quanto costa?", "leggi le email di Rossi"],
    "es": ["gracias", "no sé", "busca vuelos a Lima"],
    "fr": ["merci", "peut-être", "où est la gare ?"],
    "de": ["danke", "vielleicht", "Wie spät ist es?"],
    "pt": ["obrigada", "talvez"],
    "nl": ["dank je wel", "misschien"],
    "pl": ["dziękuję", "może"],
    "ru": ["спасибо", "не знаю"],
    "tr": ["teşekkürler", "belki"],
    "ar": ["شكرا", "ربما"],
    "zh": ["谢谢", "随便", "行不行"],
    "ja": ["ありがとう", "たぶん", "大丈夫です"],
    "ko": ["감사합니다", "글쎄요", "괜찮아요"],
    "hi": ["धन्यवाद", "शायद"],
}

YES_WORDS = (
    "sì", "yes", "sí", "oui", "ja", "sim", "tak", "да", "evet", "نعم", "好的", "はい", "네", "हाँ", "va bene", "ok",
    "sure, go ahead", "d'accord", "да, давай", "그렇게 해주세요",
)  # fmt: skip

CONTENT_WORDS = (
    "Rossi", "invoice", "Milano", "Friday", "tomorrow", "fattura", "allegato", "domani", "rechnung", "viernes",
    "demain", "piątek", "договор", "yarın", "غدا", "发票", "東京", "서울", "कल", "cheapest", "delete", "send", "budget",
    "42", "NQ7", "everyone's",
)  # fmt: skip

REPLIES = [
    reply
    for table in (CONFIRMS, REJECTS, AMENDS, WEAK, NONES)
    for replies in table.values()
    for reply in replies
    if reply
]


RULES = [
    ("x" * 1_001, "too_long"),
    ("sì, quanto costa?", "question"),
    ("what?", "question"),
    ("maybe", "doubt"),
    ("no, thanks, Friday", "no_with_a_reason"),
    ("no, make it Friday", "no_with_a_change"),
    ("okay, do it. no choices", "no_and_go_ahead"),
    ("no", "no"),
    ("forget it", "stop"),
    ("no, Rossi", "no_and_more"),
    ("yes, but tomorrow", "yes_with_a_change"),
    ("yes, cancel it", "cancel"),
    ("yes, cancel the reservation", "yes"),
    ("cancel it", "cancel"),
    ("he said yes", "reported"),
    ("that was great", "past"),
    ("you are interesting, yes", "opinion"),
    ("that's interesting", "opinion"),
    ("I think yes", "statement"),
    ('"yes"', "quoted"),
    ("porcedi", "misspelt"),
    ("ok, I see", "understood"),
    ("later", "later"),
    ("don't send it", "negated"),
    ("yes, Rossi", "yes_and_more"),
    ("find me a hotel in Lyon", "more_than_a_reply"),
    ("أرسل رسالة", "order"),
    ("bye", "goodbye"),
    ("sì", "yes"),
    ("procedi", "go_ahead"),
    ("grazie", "thanks_alone"),
    ("perfetto", "praise"),
    ("", "nothing_decided"),
]


def replies(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(language, reply) for language, listed in table.items() for reply in listed]


@pytest.mark.parametrize(("language", "reply"), replies(CONFIRMS))
def test_a_yes_with_nothing_more_in_it_confirms(language: str, reply: str) -> None:
    read = classify(reply)
    assert (read.verdict, read.strength, language) == ("confirm", "strong", language)
    assert classify(reply).verdict == "confirm"


@pytest.mark.parametrize(("language", "reply"), replies(WEAK))
def test_praise_alone_and_a_yes_that_only_says_that_it_was_understood_are_weak(language: str, reply: str) -> None:
    read = classify(reply)
    assert (read.verdict, read.strength, language) == ("confirm", "weak", language)


@pytest.mark.parametrize(("language", "reply"), replies(REJECTS))
def test_a_no_a_cancel_and_a_later_reject(language: str, reply: str) -> None:
    assert (classify(reply).verdict, language) == ("reject", language)
    assert classify(reply).verdict != "confirm"


@pytest.mark.parametrize(("language", "reply"), replies(AMENDS))
def test_a_yes_with_a_change_amends(language: str, reply: str) -> None:
    assert (classify(reply).verdict, language) == ("amend", language)


@pytest.mark.parametrize(("language", "reply"), replies(NONES))
def test_thanks_doubt_and_questions_decide_nothing(language: str, reply: str) -> None:
    assert (classify(reply).verdict, language) == ("none", language)


@pytest.mark.parametrize(
    ("reply", "language"),
    [("sì", "it"), ("evet", "tr"), ("好的", "zh"), ("네", "ko"), ("はい", "ja"), ("👍", None)],
)
def test_the_language_is_named_where_the_words_belong_to_one(reply: str, language: str | None) -> None:
    assert classify(reply).language == language


@pytest.mark.parametrize(("reply", "rule"), RULES)
def test_the_rule_that_decided_is_named(reply: str, rule: str) -> None:
    assert classify(reply).rule == rule


@pytest.mark.parametrize("reply", ["yes, please book the room", "yes, send it", "yes, go ahead with the transfer"])
def test_a_yes_that_repeats_the_plan_confirms(reply: str) -> None:
    assert classify(reply).verdict == "confirm"


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("sì, ma in realtà no", "reject"),
        ("no, but actually, yes", "confirm"),
        ("yes, only Friday, I mean yes", "amend"),
        ("no, stop, I mean yes", "reject"),
        ("don't, or rather, go ahead", "confirm"),
        ("no wait, actually yes", "confirm"),
        ("no aspetta, anzi sì", "confirm"),
        ("不，等等，还是继续吧", "confirm"),
        ("لا انتظر، نعم", "confirm"),
        ("yes, but actually later", "reject"),
        ("sì, anzi no, lascia stare", "reject"),
        ("on second thoughts, don't bother", "reject"),
        ("yes, I mean cancel", "reject"),
        ("yes... no, wait, don't", "reject"),
    ],
)
def test_what_comes_after_a_change_of_mind_counts_and_nothing_else_is_forgotten(reply: str, verdict: str) -> None:
    assert classify(reply).verdict == verdict


CHAT_CONFIRMS = {
    "en": ["alrite", "ofcourse", "yup yup", "okey dokey", "bet", "yea sure mate", "np", "crack on"],
    "it": ["sisi", "siiì", "vabbè", "dajee", "dacordo", "massì", "apposto"],
    "es": ["vale vale", "dale pues", "porsupuesto", "sipo", "no hay drama"],
    "fr": ["ouais", "ouii", "vasy", "c bon", "aucun souci"],
    "de": ["jup", "natuerlich", "nichts dagegen", "passt scho", "jawoll"],
    "pt": ["concerteza", "bora nessa", "não tem problema", "tá beleza", "vambora"],
    "nl": ["tuurlijk", "das goed", "met alle plezier", "joe", "zonder problemen"],
    "pl": ["spoko", "pewka", "no jasne", "nie mam nic przeciwko", "lecimy"],
    "ru": ["канешно", "норм", "не проблема", "погнали", "угу"],
    "tr": ["sıkıntı yok", "aynen", "kulağa hoş geliyor", "yap gitsin", "tabi canım"],
    "ar": ["اوكي", "مفيش مشاكل", "ابشر", "هو ده", "yalla", "mashi", "tamam"],
    "zh": ["好滴", "嗯嗯", "行吧", "冇問題", "阔以", "沒意見"],
    "ja": ["りょうかい", "おけー", "うむ", "せやな", "いいと思います"],
    "ko": ["ㅇㅇ", "넵", "ㅇㅋ", "좋은 것 같아요", "이의 없어"],
    "hi": ["theek hai", "haan ji", "chalo theek hai", "koi dikkat nahi hai", "ekdum sahi", "ठीके"],
}

CHAT_REJECTS = {
    "en": ["nvm", "nah fam", "put it on hold", "i'm afraid not", "tomorrow maybe"],
    "it": ["mi sa di no", "come non detto", "blocca tutto", "un'altra volta magari"],
    "es": ["me temo que no", "aguanta", "nel", "quizá después"],
    "fr": ["ça ne me convient pas", "minute papillon", "j'en ai plus besoin"],
    "de": ["lass stecken", "ich hab's mir anders überlegt", "ich stimme nicht zu"],
    "pt": ["péssima ideia", "quero cancelar", "deixa-me pensar"],
    "nl": ["hoeft niet meer", "stel het uit", "doe niks"],
    "pl": ["daj se spokój", "póki co nie", "chcę anulować"],
    "ru": ["давай потом", "перехотел", "хочу отменить"],
    "tr": ["neyse boşver", "lüzum yok", "fikrim değişti"],
    "ar": ["مش ضروري", "سيبك منها", "mesh 3ayez", "khalas"],
    "zh": ["还是算了", "唔好", "唔使", "再考虑考虑"],
    "ja": ["やめときます", "後にして", "気に入らない"],
    "ko": ["안 될 것 같아요", "없던 일로 하자", "다음에 할게"],
    "hi": ["rehne de", "mood nahi hai", "baad me karenge", "मन नहीं है"],
}

LONG_REQUESTS = [
    "Look for something completely different now, then read the third of them and finally delete item 3",
    "well then, find me another hotel in Lyon and send it to Anna",
    "guarda, ora cerca qualcosa di diverso e poi leggi la terza",
    "bene, allora cerca un volo per Parigi e poi scrivi a Marco",
    "mira, busca algo completamente distinto y luego lee la tercera",
    "vamos a buscar otro hotel y luego leer el tercero",
    "écoute, cherche autre chose puis lis le troisième message",
    "schau, such jetzt etwas anderes und lies dann die dritte",
    "слушай, найди теперь что-то другое и потом прочитай третье",
]


@pytest.mark.parametrize("reply", [reply for replies in CHAT_CONFIRMS.values() for reply in replies])
def test_a_yes_as_people_type_it_confirms(reply: str) -> None:
    assert classify(reply).verdict == "confirm"


@pytest.mark.parametrize("reply", [reply for replies in CHAT_REJECTS.values() for reply in replies])
def test_a_no_as_people_type_it_rejects(reply: str) -> None:
    assert classify(reply).verdict == "reject"


@pytest.mark.parametrize("message", LONG_REQUESTS)
def test_a_new_request_is_no_change_to_the_plan(message: str) -> None:
    assert classify(message).verdict == "none"


NOS_INSIDE_AN_OK = [
    "fine, cancel it", "ok, annulla", "vale, cancélalo", "d'accord, annule", "ok, brich ab", "ok, cancela",
    "oké, annuleer", "ok, anuluj", "хорошо, отмени", "tamam, iptal et", "حسنًا، ألغِ", "好的，取消吧",
    "はい、キャンセルして", "네, 취소해 주세요", "ठीक है, रद्द कर दो",
]  # fmt: skip


@pytest.mark.parametrize("reply", [*NOS_INSIDE_AN_OK, "yes, cancel it", "sì, annulla"])
def test_a_cancel_inside_an_ok_rejects(reply: str) -> None:
    assert classify(reply).verdict == "reject"


@pytest.mark.parametrize("reply", NOS_INSIDE_AN_OK)
def test_a_cancel_inside_an_ok_confirms_a_step_that_cancels(reply: str) -> None:
    read = classify(reply, question=question_of("cancel_booking", "Cancel the booking", {"id": "b7"}))
    assert (read.verdict, read.strength) == ("confirm", "strong")


@pytest.mark.parametrize(
    ("reply", "verdict"), [("👍", "confirm"), ("👍🏿", "confirm"), ("👎", "reject"), ("🤔", "none"), ("🎉", "confirm")]
)
def test_an_emoji_alone_speaks_for_itself(reply: str, verdict: str) -> None:
    assert classify(reply).verdict == verdict


def test_an_emoji_that_only_applauds_is_a_weak_yes() -> None:
    assert [classify(emoji).strength for emoji in ("👏", "🎉👏", "👍", "✅")] == ["weak", "weak", "strong", "strong"]


@pytest.mark.parametrize("reply", ["certto", "porcedi", "procced", "surre", "confrimed", "natürlcih"])
def test_a_misspelt_yes_is_a_weak_one(reply: str) -> None:
    assert (classify(reply).rule, classify(reply).strength) == ("misspelt", "weak")


@pytest.mark.parametrize("reply", ["cerco", "vado", "file", "line", "certa", "sire", "coarse", "yew", "nope"])
def test_another_word_that_looks_like_a_yes_is_none(reply: str) -> None:
    assert classify(reply).verdict != "confirm"


NEVER = [
    "that was great", "it was perfect", "that's interesting", "it looks good so far", "è stato utile",
    "è stato utile, grazie", "è bello", "era perfetto", "那次太棒了", "刚才那个很好", "كان ذلك رائعا",
    "das war großartig", "c'était super", "he said yes, do it", "ha detto sì", "他说可以", "قال نعم", "my boss said ok",
    'escribe un correo que empiece con "Sí, confirmo"', '"yes"', "«sì»", "“好的”", "'ok'", "> sì", "> yes\n> go ahead",
    "thanks", "sì?", "ok?", "if it's free, yes", "se è gratis, sì", "yes, once I have checked", "sì e no", "yeah right",
    "I would have said yes", "I'll do it myself", "ok, lo faccio io", "\u200b> yes", "yes, I'm still here",
    "yes it's raining", "ok, let's see", "yes what is it?", "sì, sono qui", "嗯，你说", "应该可以吧",
    "نعم أنا هنا", "ага, щас",
]  # fmt: skip


@pytest.mark.parametrize("reply", NEVER)
def test_what_is_past_quoted_reported_asked_or_conditional_is_never_a_yes(reply: str) -> None:
    assert classify(reply).verdict != "confirm"


@pytest.mark.parametrize("reply", ["> Elimino la mail?\n\nsì", "> Shall I delete it?\nYes, please."])
def test_a_yes_under_a_quoted_line_is_the_writers_own(reply: str) -> None:
    assert classify(reply).strength == "strong"


@pytest.mark.parametrize(
    "reply",
    [
        "no objections", "I don't see why not", "nothing to add, go ahead", "niente in contrario", "non vedo perché no",
        "没有异议", "没什么要补充的，继续", "لا مانع", "لا اعتراض، تابع", "keine Einwände", "I hereby approve the plan",
        "Hiermit bestätige ich den Plan", "Con la presente confermo", "特此确认", "ابدأ", "Oui, je confirme.",
    ],
)  # fmt: skip
def test_a_double_negative_that_agrees_and_a_formal_approval_confirm(reply: str) -> None:
    assert classify(reply).strength == "strong"


def test_begin_is_not_never_in_arabic() -> None:
    assert [classify(word).verdict for word in ("ابدأ", "أبدًا", "أبدا")] == ["confirm", "reject", "reject"]


DELETION = question_of("mcp_delete_email", "Elimina la mail di Rossi", {"email_id": "m1"})
ITALIAN_DELETION = question_of("mcp_delete_email", "Cancella la mail", {"email_id": "m1"})  # `cancella`: or cancels
SENDING = question_of("mcp_send_email", "Send the mail", {"to": "rossi@example.com", "body": "Greet Anna. " * 20})
READING = question_of("mcp_get_email", "Read the mail", {"email_id": "m1"})
CANCELLATION = question_of("cancel_reservation", "Cancel the reservation", {"reservation_id": "NQNU5R"})
TURKISH_DELETION = question_of("mcp_delete_email", "Rossi'nin mailini sil", {"email_id": "m1"})
BOOKING = question_of("book_hotel", "预订Aurora酒店三晚", {"hotel": "Aurora"})
TABLE_AT = {"restaurant": "Da Gino", "date": "2026-12-01", "time": "20:00", "people": 4}
TABLE = question_of("book_table", "Book a table at Da Gino", TABLE_AT)
MOVE = question_of("update_event", "Sposta la riunione a venerdì", {"event_id": "e7", "day": "venerdì"})


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        *((DELETION, reply) for reply in (
            "sì, cancellala", "certo, elimina", "sì, elimina la mail di Rossi", "yes, delete it",
            "Hiermit bestätige ich die Löschung", "I hereby approve the deletion",
            "sì, la puoi cancellare", "sí, bórralo", "oui, supprime-le", "ja, lösch sie", "sim, apaga",
            "ja, verwijder het", "tak, usuń to", "да, удали его", "evet, sil",
            "نعم، احذفها", "好的，删除吧", "はい、削除してください", "네, 삭제해 주세요",
            "हाँ, हटा दो", "sì, cancella m1",
        )),
        *((SENDING, reply) for reply in (
            "sì, inviala pure", "sì, mandala pure", "yes, send it", "好的，发送吧", "نعم، أرسلها", "ja, schick sie ab",
            "sì, inviala a rossi@example.com",
        )),
        *((READING, reply) for reply in ("yes, read it", "sì, leggi", "va bene, aprila", "yes, open that one")),
        *((CANCELLATION, reply) for reply in (
            "Yes, please go ahead and cancel reservation NQNU5R", "yes, cancel the booking", "ok, annulla",
            "yes, I don't need the reservation anymore, cancel it", "sì, non mi serve più, annullala",
            "对，不需要了，取消吧", "نعم، ما عدت أحتاجه، الغيه",
            "yes, cancel it. I no longer need it because plans changed",
        )),
        *((CANCELLATION, reply) for reply in ("yes, I want it cancelled", "yes, and cancel it")),
        (CANCELLATION, "yes please, I want it cancelled now"),
        *((DELETION, reply) for reply in ("yes, I want it deleted", "sí, bórralo ya", "no, I mean delete it")),
        (BOOKING, "好，帮我订三晚"),
        *((MOVE, reply) for reply in ("sì, spostala", "sì, spostala a venerdì", "ok, sposta la riunione")),
        *((TABLE, reply) for reply in (
            "sì, siamo in quattro, alle otto di sera", "yes, four of us at eight", "yes, 8pm", "oui à 20h pour quatre",
            "sí, para cuatro a las ocho", "sim, quatro pessoas às oito da noite", "ja, um acht uhr abends für vier",
            "evet dört kişi saat sekizde", "نعم، أربعة أشخاص الساعة ٨ مساء", "对的，四个人，晚上八点",
            "はい、4人で夜8時です、お願いします", "Sounds perfect, please go ahead and book the table.",
            "完美，请预订", "Perfecto, reserva la mesa",
        )),
    ],
)  # fmt: skip
def test_a_yes_that_repeats_the_step_in_question_is_a_strong_one(question: Question, reply: str) -> None:
    assert classify(reply, question=question).strength == "strong"


@pytest.mark.parametrize(
    ("question", "reply", "verdict"),
    [
        (DELETION, "sì, inviala pure", "amend"),
        (DELETION, "ok, so it's old", "amend"),
        *(
            (TABLE, reply, "amend")
            for reply in (
                "yes for eight",
                "yes, at four",
                "yes, at 8 am",
                "yes at eight in the morning",
                "yes, for twelve",
                "sì, siamo in otto",
                "sì alle quattro",
                "sì alle 8 di mattina",
                "oui à 8h",
                "sí a las cuatro",
                "好，早上八点",
                "نعم الساعة الرابعة",
            )
        ),
        (TABLE, "scrap that", "reject"),
        (TABLE, "ok, we'll eat at home", "reject"),
        (DELETION, "sì, cancella m2", "amend"),
        (DELETION, "ok, annulla", "reject"),
        (DELETION, "отмена", "reject"),
        (ITALIAN_DELETION, "annulla", "reject"),
        (ITALIAN_DELETION, "sì, annulla", "reject"),
        (ITALIAN_DELETION, "إلغاء", "reject"),
        (DELETION, "non cancellarla", "reject"),
        (DELETION, "yes, Anna", "amend"),
        (BOOKING, "不需要了", "reject"),
        (SENDING, "yes, I don't need it anymore", "reject"),
        (SENDING, "I no longer need it", "reject"),
        (SENDING, "no, non mi serve più", "reject"),
        (TURKISH_DELETION, "silme", "reject"),
        (DELETION, "sì, ma solo m1", "amend"),
        (DELETION, 'sì, scrivi "m1"', "amend"),
        (SENDING, "sì, mandala ad Anna", "amend"),
        (SENDING, "yes, delete it", "amend"),
        (READING, "yes, delete it", "amend"),
        (READING, "ok, read the second one", "amend"),
        (CANCELLATION, "Yes, please go ahead and cancel reservation ABC123", "amend"),
        (CANCELLATION, "yes, cancel the flight", "amend"),
        (CANCELLATION, "cancel it", "none"),
        (CANCELLATION, "don't cancel it", "reject"),
        (MOVE, "sì, spostala a giovedì", "amend"),
        (MOVE, "va bene, ma non spostarla", "reject"),
        (MOVE, "好吧，还是不移动了", "reject"),
        (MOVE, "我明天有什么安排？", "none"),
    ],
)
def test_another_action_or_argument_is_no_yes_to_the_step_in_question(
    question: Question, reply: str, verdict: str
) -> None:
    assert classify(reply, question=question).verdict == verdict


@pytest.mark.parametrize(
    "reply",
    [
        "delete it later", "delete it after lunch", "maybe delete it later", "delete it later, I appreciate it",
        "can we do it tomorrow instead", "yes, delete it, but wait", "eliminala dopo", "sì, eliminala più tardi",
        "晚点删", "以后再删", "احذفها لاحقا", "احذفها بعدين", "bórralo luego", "supprime-le plus tard",
        "lösch sie später", "apaga depois",
        "verwijder het later", "usuń to później", "удали потом", "sonra sil", "後で消して", "나중에 삭제해 주세요",
        "बाद में हटा दो",
    ],
)  # fmt: skip
def test_a_yes_to_the_step_at_a_later_time_postpones_it(reply: str) -> None:
    read = classify(reply, question=DELETION)
    assert (read.verdict, read.rule in POSTPONES) == ("reject", True)


@pytest.mark.parametrize(
    "reply", ["yes, don't wait", "go ahead, no need to wait", "sì, non aspettare", "别等了，删吧", "نعم لا تنتظر"]
)
def test_a_yes_that_tells_not_to_wait_does_not_postpone(reply: str) -> None:
    assert classify(reply, question=DELETION).strength == "strong"


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        ("La prenotazione QX41 si può annullare. Vuoi che annulli la prenotazione?", "sì, prenota"),
        ("La reserva QX41 se puede cancelar. ¿Quieres que cancele la reserva?", "sí, resérvalo"),
        ("La réservation QX41 peut être annulée. Voulez-vous que j'annule la réservation ?", "oui, réservez"),
        ("Soll ich die Buchung QX41 stornieren?", "ja, buchen"),
        ("预订QX41可以取消。要我取消这个预订吗？", "好的，订吧"),
        ("يمكن إلغاء الحجز QX41. هل تريد أن ألغي الحجز؟", "نعم احجز"),
        ("予約QX41をキャンセルしましょうか？", "はい、予約してください"),
        ("Отменить бронь QX41?", "да, бронируйте"),
    ],
)
def test_the_name_of_what_is_cancelled_is_no_order_to_book_it(asked: str, reply: str) -> None:
    assert classify(reply, question=question_in(asked)).strength is None


@pytest.mark.parametrize(
    "reply", ["Yes, my reservation is NQNU5R", "Correct, that is my reservation", "Yes, that's the reservation"]
)
def test_a_yes_that_states_what_the_question_names_is_a_weak_one(reply: str) -> None:
    assert classify(reply, question=CANCELLATION).strength == "weak"


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        ("Shall I change your reservation to flight HAT213?", "Go ahead if my seat doesn't change"),
        ("Vuoi che cambi la prenotazione col volo HAT213?", "Sì, solo se il posto non cambia"),
    ],
)
def test_a_refusal_within_a_condition_ends_nothing(asked: str, reply: str) -> None:
    read = classify(reply, question=question_in(asked))
    assert (read.verdict, read.carries_yes) == ("amend", False)


@pytest.mark.parametrize("language", ACTIONS.now)
def test_every_language_names_every_action(language: str) -> None:
    actions = {name for names in ACTIONS.now[language].actions.matches.values() for name in names}
    assert actions >= {
        "read", "open", "send", "write", "reply", "delete", "cancel", "move", "book", "create", "change", "add",
        "remove", "search", "call", "pay", "save", "share", "archive",
    }  # fmt: skip


@pytest.mark.parametrize(
    "reply", ["there is no mail from Rossi", "I went to the stop sign", "the right address is Oslo"]
)
def test_a_no_or_a_yes_within_a_longer_message_decides_nothing(reply: str) -> None:
    assert classify(reply).verdict == "none"


def test_no_reply_in_the_data_is_wrongly_read_as_a_strong_yes() -> None:
    rows = map(json.loads, Path(__file__).with_name("replies.jsonl").read_text("utf-8").splitlines())
    answers = ((row, _question_for(row)) for row in rows if row["label"] != "ack")
    assert [row for row, question in answers if classify(row["text"], question=question).strength == "strong"] == []


def _question_for(row: dict[str, Any]) -> Question | None:
    return question_of(**row["step"]) if "step" in row else question_in(row.get("asked"))


@given(
    yes=st.sampled_from(YES_WORDS), content=st.sampled_from(CONTENT_WORDS), gap=st.sampled_from([" ", ", ", ". ", "! "])
)
def test_a_content_word_added_to_a_yes_never_confirms(yes: str, content: str, gap: str) -> None:
    assert classify(f"{yes}{gap}{content}").verdict != "confirm"
    assert classify(f"{content}{gap}{yes}").verdict != "confirm"


@given(reply=st.sampled_from(REPLIES), form=st.sampled_from(["NFC", "NFD"]))
def test_the_normal_form_does_not_change_a_verdict(reply: str, form: Literal["NFC", "NFD"]) -> None:
    assert classify(unicodedata.normalize(form, reply)).verdict == classify(reply).verdict


@given(reply=st.sampled_from(REPLIES), recase=st.sampled_from([str.upper, str.lower, str.title]))
def test_case_does_not_change_a_verdict(reply: str, recase: Callable[[str], str]) -> None:
    assert classify(recase(reply)).verdict == classify(reply).verdict


@given(
    reply=st.sampled_from(REPLIES),
    end=st.text(alphabet=".!,;…。！،", max_size=4),
    start=st.sampled_from(["", "«", "  ", "¡"]),
)
def test_punctuation_does_not_change_a_verdict(reply: str, end: str, start: str) -> None:
    assert classify(f"{start}{reply}{end}").verdict == classify(reply).verdict


@given(
    reply=st.sampled_from([reply for reply in REPLIES if reply != "…"]),
    emoji=st.text(alphabet="🙂😊🎉🙏👍✅❤️", min_size=1, max_size=3),
)
def test_a_friendly_emoji_after_the_words_does_not_change_a_verdict(reply: str, emoji: str) -> None:
    assert classify(f"{reply} {emoji}").verdict == classify(reply).verdict


@given(st.text(alphabet=st.characters(), max_size=300))
def test_no_text_makes_it_raise(text: str) -> None:
    classify(text)


@pytest.mark.parametrize(
    "text", ["\0" * 32_000, "\ud800", "yes\udfff", "y" + "\u0301" * 31_999, "好" * 32_000, "yes " * 8_000]
)
def test_hostile_text_confirms_nothing_but_what_is_readable(text: str) -> None:
    assert classify(text).verdict == ("confirm" if len(text) < LONGEST_MESSAGE and "yes" in text else "none")


@pytest.mark.parametrize(
    "reply",
    [
        "ok, see you later",
        "ok thanks, see you tomorrow",
        "ok grazie, a domani",
        "vale, gracias, hasta mañana",
        "ok, danke, bis morgen",
        "ok dank je, tot morgen",
        "ok, dzięki, do jutra",
        "tamam, yarın görüşürüz",
        "好的，明天见",
        "طيب، أراك غدا",
        "네, 내일 봐요",
        "ठीक है, कल मिलते हैं",
    ],
)
def test_a_goodbye_until_tomorrow_changes_no_plan(reply: str) -> None:
    assert classify(reply).rule == "goodbye"


@pytest.mark.parametrize(
    "reply", ["sì, spostala a domani", "sí, hasta mañana no", "ja, aber bis morgen", "sì, a domani"]
)
def test_tomorrow_in_a_yes_changes_the_plan(reply: str) -> None:
    assert classify(reply).verdict == "amend"


def test_the_shipped_lexicon_speaks_fifteen_languages() -> None:
    assert set(LEXICON.now.phrases) - {"any"} == set(CONFIRMS)


BOOKINGS = "Booking PB77 is not refundable. Booking QX41 is. Would you like me to cancel booking QX41?"
ORDER = """Here are the details of your order:

- **Item:** Desk lamp
- **Ship to:** Ivan Petrov
- **Payment:** Visa ending in 4410

Please confirm if everything is correct, and I'll place the order."""
ALBERGO = "L'Hotel Luna non si può annullare. Vuoi che annulli la prenotazione all'Hotel Sole?"
YUDING = "预订B34不可退款。要我取消预订A12吗？"
HAJZ = "الحجز B34 غير قابل للاسترداد. هل تريد أن ألغي الحجز A12؟"


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        *((BOOKINGS, reply) for reply in (
            "Yes, cancel QX41.", "Yes, please go ahead with that approach. Thank you for your help!",
            "Oui, please proceed with the cancellation. Merci!", "Sure. That's very kind of you.",
            "If that's the only option, then yes, please cancel it.",
            "Yes, please cancel the booking. I just want to save some money.", "si, go ahead",
        )),
        *((ORDER, reply) for reply in (
            "Yes, everything looks correct. Please go ahead and place the order.",
            "That sounds good. Please order it for Ivan.", "Yes, I confirm. Please go ahead with this order.",
            "Yes, ship it to Ivan Petrov and use the Visa ending in 4410.",
        )),
        *((ALBERGO, reply) for reply in (
            "Sì, annullala pure. Grazie mille!", "Va benissimo, procedi pure con l'annullamento.",
            "Tutto corretto. Annulla la prenotazione all'Hotel Sole.",
        )),
        *((YUDING, reply) for reply in ("是的，请取消A12。谢谢你的帮助！", "可以。麻烦取消预订。")),
        *((HAJZ, reply) for reply in ("نعم، ألغ الحجز A12. شكرا لك", "موافق. تفضل بالإلغاء.")),
    ],
)  # fmt: skip
def test_a_yes_is_strong_if_every_sentence_beside_it_repeats_thanks_or_remarks(answer: str, reply: str) -> None:
    assert classify(reply, question=question_in(answer)).strength == "strong"


@pytest.mark.parametrize(
    ("answer", "reply", "added"),
    [
        (BOOKINGS, "Yes, cancel PB77.", {"pb77"}),
        (BOOKINGS, "Yes, and use the gift card instead", {"gift", "card"}),
        (BOOKINGS, "yes, at 5 pm", {"5", "pm"}),
        (BOOKINGS, "yes and B too", {"b"}),
        (BOOKINGS, "Yes, please proceed. Thanks for calling Marco.", {"calling", "marco"}),
        (BOOKINGS, "Yes, please proceed. Also, do I have other flights?", {"flights"}),
        (BOOKINGS, "Yes, please proceed. Could you make sure we sit together?", {"sit"}),
        (ORDER, "Yes, please order it for Marco.", {"marco"}),
        (ORDER, "Yes, place the order with 3 lamps", {"3"}),
        (ALBERGO, "Sì, annulla l'Hotel Luna", {"luna"}),
        (ALBERGO, "Sì, annullala. E avvisa Marta.", {"avvisa", "marta"}),
        (YUDING, "好的，取消B34", {"b34"}),
        (HAJZ, "نعم، ألغ الحجز B34", {"b34"}),
        (BOOKINGS, "Yes. Thanks for the warning, keep a copy.", {"keep", "copy"}),
        (BOOKINGS, "Oui. Merci de garder une copie.", {"garder", "copie"}),
        (HAJZ, "نعم. شكرا على التنبيه واحتفظ بنسخة", {"بنسخه"}),
    ],
)
def test_a_yes_with_what_the_question_has_not_carries_the_yes_and_tells_the_words(
    answer: str, reply: str, added: set[str]
) -> None:
    read = classify(reply, question=question_in(answer))
    assert (read.strength, read.carries_yes) == (None, True)
    assert set(read.added) >= added


@pytest.mark.parametrize(
    "reply",
    [
        "yes but not that one", "sì ma solo le prime due", "only if it is free", "if it never expires, yes",
        "I agree that the weather is nice", "yes he said", "oh sure, because that went so well last time", "yes?",
        "好，但是先告诉我退多少钱", "نعم ولكن بشرط الاسترداد الفوري", "Yes. Don't touch the second one, Marco.",
    ],
)  # fmt: skip
def test_a_yes_with_a_condition_a_doubt_or_of_another_carries_none(reply: str) -> None:
    read = classify(reply, question=question_in(BOOKINGS))
    assert (read.strength, read.carries_yes) == (None, False)


@pytest.mark.parametrize(
    "reply",
    [
        "wait", "hold on", "not now", "let me think about it", "after lunch", "not before lunch", "no, not now",
        "yes, later", "un momento", "dopo", "ci penso", "non ora", "等会儿", "让我想想", "لحظة", "ليس الآن",
        "espera un poco", "pas maintenant", "jetzt nicht", "agora não", "nu niet", "nie teraz", "не сейчас",
        "şimdi değil", "今はいいです", "아직 아니에요", "अभी नहीं",
    ],
)  # fmt: skip
def test_waiting_is_a_no_that_postpones(reply: str) -> None:
    read = classify(reply)
    assert (read.verdict, read.rule in POSTPONES) == ("reject", True)


@pytest.mark.parametrize(
    "reply",
    [
        "no", "no, not now, forget it", "never mind", "don't you dare", "non toccare niente", "ni se te ocurra",
        "mach das bitte nicht", "non mandare nulla", "别动", "لا تلمس شيئا", "no, don't wait",
    ],
)  # fmt: skip
def test_a_refusal_does_not_postpone(reply: str) -> None:
    read = classify(reply)
    assert (read.verdict, read.rule in POSTPONES) == ("reject", False)


@pytest.mark.parametrize("reply", ["yes, cancel the booking", "yes, I'd like to cancel it", "tak, proszę anulować"])
def test_a_yes_to_a_cancellation_is_never_read_as_a_no(reply: str) -> None:
    assert classify(reply, question=CANCELLATION).strength == "strong"


ENDING = question_of("delete_file", "Delete the file report.pdf", {"path": "report.pdf"})
SENDING = question_of("send_email", "Send the email to Anna", {"to": "anna@example.com"})


@pytest.mark.parametrize(
    "reply",
    [
        "Keep the file",
        "no sé, el archivo me lo quedo",
        "il file lo voglio tenere",
        "die Datei will ich behalten",
        "файл я оставлю",
        "vou ficar com o arquivo",
        "خلي الملف",
    ],
)
def test_to_keep_a_thing_refuses_a_step_that_ends_it(reply: str) -> None:
    assert classify(reply, question=ENDING).verdict == "reject"


def test_to_keep_something_else_or_from_another_step_is_no_refusal() -> None:
    wish = classify("Yes. Keep a copy", question=ENDING)
    assert (wish.verdict, wish.carries_yes) == ("amend", True)
    assert classify("keep it", question=SENDING).verdict == "none"


@pytest.mark.parametrize(
    "reply",
    [
        "ne l'envoie pas encore",
        "non mandarla ancora",
        "não manda ainda",
        "nie wysyłaj jeszcze",
        "stuur het nog niet",
        "schick sie noch nicht ab",
        "пока не отправляй",
        "daha gönderme",
        "لا ترسلها بعد",
    ],
)
def test_a_no_with_a_word_for_yet_postpones(reply: str) -> None:
    read = classify(reply, question=SENDING)
    assert (read.verdict, read.rule in POSTPONES) == ("reject", True)


@pytest.mark.parametrize("reply", ["non, encore deux", "nie, jeszcze jeden"])
def test_a_word_for_yet_beside_a_wish_is_a_change(reply: str) -> None:
    assert classify(reply, question=SENDING).rule not in POSTPONES


@pytest.mark.parametrize(
    ("reply", "rule"),
    [
        ("we won't be going out tonight, leave it", "stop"),
        ("it still has a typo, don't send it", "negated"),
        ("wir bleiben heute daheim, lass es", "stop"),
        ("she is on holiday, no point", "no"),
        ("my sister has the keys, not yet", "later"),
    ],
)
def test_a_clause_that_refuses_decides_if_the_others_only_tell_why(reply: str, rule: str) -> None:
    read = classify(reply, question=SENDING)
    assert (read.verdict, read.rule) == ("reject", rule)


@pytest.mark.parametrize("reply", ["send it to Bob, not to Anna", "he says, don't send it"])
def test_a_refusal_beside_a_wish_or_a_report_decides_nothing(reply: str) -> None:
    assert classify(reply, question=SENDING).verdict in ("none", "amend")


@pytest.mark.parametrize("reply", ["Yes, could you do that please?", "yeah, can you go ahead and send it?"])
def test_a_yes_that_asks_to_do_it_is_a_weak_one(reply: str) -> None:
    read = classify(reply, question=SENDING)
    assert (read.verdict, read.strength) == ("confirm", "weak")
    assert classify("yes?", question=SENDING).verdict == "none"


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (ENDING, "네, 삭제해도 돼요"),
        (ENDING, "消していいですよ"),
        (ENDING, "हाँ, मिटा सकते हो"),
        (ENDING, "evet, silebilirsin"),
        (ENDING, "да, можно удалять"),
        (SENDING, "oui, tu peux l'envoyer"),
        (SENDING, "ja, stuur die maar"),
    ],
)
def test_leave_to_do_the_step_is_a_yes_in_the_forms_of_a_language(asked: Question, reply: str) -> None:
    assert classify(reply, question=asked).strength == "strong"


@pytest.mark.parametrize(
    "reply",
    [
        "I suppose so", "I think so", "yes if you must", "come no", "Sì, certo, come no", "Magari sì", "penso di sì",
        "Sì, credo di sì", "أظن نعم", "نعم، أعتقد", "creo que sí", "je suppose que oui", "ich denke schon",
        "acho que sim",
    ],
)  # fmt: skip
def test_a_yes_that_is_not_sure_is_weak_unless_it_says_to_go_on(reply: str) -> None:
    assert classify(reply).strength == "weak"


@pytest.mark.parametrize("reply", ["I think so, please do it", "come no, fai pure", "Sì, come hai detto tu", "أجل"])
def test_a_yes_that_says_to_go_on_or_refers_to_the_offer_is_strong(reply: str) -> None:
    offer = "هل أحذف itm-1؟" if reply == "أجل" else "Shall I delete itm-1?"
    assert classify(reply, question=question_in(offer)).strength == "strong"


ONE, TWO, FOUR = "Shall I delete itm-1?", "Vuoi che cancelli itm-1 e itm-2?", "Shall I tell Anna, Marco, Lea and Ada?"
THREE = "要我删除 itm-1、itm-2 和 itm-3 吗？"
LISTED = "I would do this:\n1. Delete itm-1\n2. Delete itm-2\n\nShall I go ahead?"


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (ONE, "yes, only that one"), (ONE, "sì, solo quello"), (ONE, "好的，只要那个"), (ONE, "نعم، هذا فقط"),
        (TWO, "Yes, both"), (TWO, "sì, cancellali entrambi"), (LISTED, "yes, both please"), (TWO, "نعم، كلاهما"),
        (THREE, "是的，三个都删"), (THREE, "yes, all three"), (FOUR, "yes, tell all four"),
        ("Delete the two files?", "好的，两个都删"), ("Elimino i due file?", "sì, tutti e due"),
    ],
)  # fmt: skip
def test_a_yes_to_as_many_things_as_were_offered_is_a_strong_one(asked: str, reply: str) -> None:
    assert classify(reply, question=question_in(asked)).strength == "strong"


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (ONE, "Yes, both"), (ONE, "yes, delete both"), (ONE, "sì, tutti e due"), (ONE, "好的，两个都删"),
        (ONE, "نعم احذف كليهما"), (THREE, "Yes, delete both"), (THREE, "sì, cancellali entrambi"),
        (TWO, "yes, all three"), (TWO, "是的，三个都删"), (FOUR, "yes, tell both"), (LISTED, "sì, tutti e tre"),
        (TWO, "yes, only that one"), (TWO, "sì, solo quello"), (TWO, "好的，只要那个"), (TWO, "نعم، هذا فقط"),
        (ONE, "yes, only if it is old"), (ONE, "sì, ma solo domani"),
    ],
)  # fmt: skip
def test_a_yes_to_more_or_fewer_things_than_were_offered_carries_none(asked: str, reply: str) -> None:
    read = classify(reply, question=question_in(asked))
    assert (read.strength, read.carries_yes) == (None, False)


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        ("Shall I delete the files?", "Sure, delete both of them"), ("Shall I delete them?", "Yes, all three of them"),
        ("Cancello i file?", "Sì, cancellali entrambi"), ("Dois-je supprimer les fichiers ?", "oui, supprime les deux"),
        ("要我删除这些文件吗？", "好的，两个都删"), ("هل أحذف الملفات؟", "نعم، احذف كليهما"),
    ],
)  # fmt: skip
def test_a_yes_that_counts_what_an_offer_has_not_counted_is_no_strong_one(asked: str, reply: str) -> None:
    assert classify(reply, question=question_in(asked)).strength is None


def test_a_yes_counts_the_things_of_a_step_too() -> None:
    one, two = (question_of("delete", "", {"ids": ids}) for ids in ("a", ["a", "b"]))
    assert [classify("yes, delete both", question=each).strength for each in (one, two)] == [None, "strong"]
    assert classify("yes, delete both", question=joined([one, one])).strength == "strong"


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        ("我找到了一张高铁票G12，553元。要我帮您预订吗？", "好的，帮我订吧，谢谢"),
        ("I can look for the price of flight AZ610. Would you like me to book it?", "yes, book it"),
    ],
)
def test_what_is_offered_is_the_action_of_the_offer_and_not_of_the_sentence_before_it(asked: str, reply: str) -> None:
    assert classify(reply, question=question_in(asked)).strength == "strong"


@pytest.mark.parametrize(
    "reply",
    [
        "yes, in case she asks", "go ahead once I have read it", "sì, appena conferma", "sì, dopo che l'ho letta",
        "sì, quando l'ho vista", "sí, una vez que la lea", "oui, dès qu'il répond", "oui s'il est gratuit",
        "ja, sobald sie antwortet", "sim, caso ela responda", "ja, zodra ze antwoordt", "tak, jak tylko odpowie",
        "да, как только она ответит", "نعم بعد أن أراجعها", "نعم عندما توافق", "نعم لما أشوفها", "好的，一旦她同意",
        "好的，等我看完", "हाँ, जैसे ही वह आए",
    ],
)  # fmt: skip
def test_a_yes_that_waits_for_something_carries_none(reply: str) -> None:
    read = classify(reply, question=SENDING)
    assert (read.strength, read.carries_yes) == (None, False)


@pytest.mark.parametrize(
    "reply",
    [
        "Yes, send it over to Anna, thanks", "yup send that off pls", "yes, and thank you",
        "yes, send it to her please", "yes send it before it's too late", "send it as soon as you can",
        "sì, invia quel messaggio, grazie",
        "sì, mandala, e grazie", "sì, appena puoi", "sì mandala prima che sia tardi", "好，发给她，谢谢",
        "好的，尽快发吧", "نعم أرسلها وشكرا", "نعم وشكرا جزيلا", "نعم أرسلها في أقرب وقت", "oui, dès que possible",
        "ja, so schnell wie möglich",
    ],
)  # fmt: skip
def test_a_plain_yes_as_people_write_one_in_a_chat_is_a_strong_one(reply: str) -> None:
    assert classify(reply, question=SENDING).strength == "strong"


@pytest.mark.parametrize(
    "reply",
    [
        "Yes please, since it is cheaper", "yes, because it's urgent", "Sì, perché costa meno",
        "sì grazie, visto che è urgente", "Sí, porque es más barato", "Oui, puisque c'est moins cher",
        "Ja bitte, weil es billiger ist", "好的，因为便宜", "نعم، لأنه أرخص",
    ],
)  # fmt: skip
def test_a_yes_that_says_why_is_a_strong_one(reply: str) -> None:
    assert classify(reply, question=SENDING).strength == "strong"


@pytest.mark.parametrize(
    "reply",
    [
        "Sì, perché?", "yes, because that went so well last time", "yes, because I want the other one",
        "oui, moins cher", "sí, más barato", "好厉害", "好快", "好麻烦", "好美",
    ],
)  # fmt: skip
def test_what_looks_like_a_yes_that_says_why_or_praises_is_no_strong_one(reply: str) -> None:
    assert classify(reply, question=SENDING).strength is None


@pytest.mark.parametrize(
    "reply", ["نعم وأضف سارة", "yes, and add Sara", "yes, also", "sì, anche", "好的，然后发给李娜"]
)
def test_a_yes_and_something_else_is_no_plain_one(reply: str) -> None:
    assert classify(reply, question=SENDING).strength is None


@pytest.mark.parametrize(
    "text",
    [
        "do it yourself", "Yeah, do it yourself.", "sure, because I love losing my files",
        "oh yes, because that went so well last time", "arrangiati", "sì, fallo da solo", "نعم، افعلها بنفسك",
    ],
)  # fmt: skip
def test_do_it_yourself_and_a_mocking_reason_are_no_yes(text: str) -> None:
    found = classify(text, question=question_of("delete_file", "", {"path": "report.pdf"}))
    assert (found.verdict, found.carries_yes) == ("none", False)
