"""The offline model as a newcomer meets it: no provider configured, the mailbox example, four languages."""

import mailbox
import re
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from tests.support.mailbox import write_mailbox_config
from tests.support.service import Client, running
from tests.support.stores import new_database
from tests.support.sweeps import first

OFFLINE = {
    "en": "(Offline model: no language model is configured, so I only pick tools by their words.)",
    "it": "(Modello offline: nessun modello linguistico è configurato, scelgo gli strumenti solo dalle parole.)",
    "zh": "（离线模型：没有配置语言模型，我只能根据词语选择工具。）",
    "es": "(Modelo sin conexión: no hay modelo de lenguaje configurado, solo elijo herramientas por sus palabras.)",
    "ar": "(نموذج دون اتصال: لم يُضبط أي نموذج لغوي، لذلك أختار الأدوات بحسب الكلمات فقط.)",
}
TOOLS = ("current_time", "mcp_delete_email", "mcp_get_email", "mcp_search_emails", "mcp_send_email", "web_fetch")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `write_mailbox_config` names it."""
    return tmp_path_factory.mktemp("offline") / "outbox.mbox"


@pytest.fixture
def outbox(sent: Path) -> Path:
    """Where sent mails stand, empty."""
    sent.unlink(missing_ok=True)
    return sent


@pytest.fixture(scope="module")
async def client(servers: ServerUrls, template: str, sent: Path) -> AsyncIterator[Client]:
    """One service for all: each conversation is a session of its own, and the mailbox takes a second to start."""
    config, _ = write_mailbox_config(sent.parent)
    async with new_database(servers, template) as database_url:
        settings = Settings(
            _env_file=None,
            database_url=SecretStr(database_url),
            redis_url=SecretStr(servers.redis_url),
            openai_base_url=None,
            llm_model="scripted",
            llm_max_retries=0,
            mcp_config=config,
            web_search_provider="none",
            migrate_on_start=False,
        )
        async with running(settings) as served:
            yield served


async def say(client: Client, session: str, message: str, language: str) -> tuple[str, list[tuple[str, Any]]]:
    """What the offline model answers, without its note, and what it called."""
    answer = await client.chat(session, message)
    text, _, note = answer["message"]["content"].rpartition("\n\n")
    assert answer["model"] == "offline"
    assert note == OFFLINE[language]
    return text, [(call["tool_name"].removeprefix("mcp_"), call["args"]) for call in answer["tool_calls"]]


def subjects(outbox: Path) -> list[str]:
    if not outbox.exists():
        return []
    with closing(mailbox.mbox(outbox, create=False)) as sent:
        return [str(message["Subject"]) for message in sent]


CONVERSATIONS = {
    "it": [
        (
            "cerca le email di Rossi",
            ("search_emails", {"query": "Rossi"}),
            (
                r"Ho trovato 8 email per «Rossi»:\n"
                r"1\. Consegna ordine 2026-118: quale data preferite\? — Marco Rossi, 2026-11-12 \(eml-30b431\)\n"
                r"2\. Fatture in scadenza a novembre — Sara Bianchi, 2026-11-11 \(eml-bef661\)\n"
                r"(?:\d\. .+\n){6}Vuoi che apra la prima \(eml-30b431\)\?"
            ),
        ),
        (
            "sì, grazie",
            ("get_email", {"email_id": "eml-30b431"}),
            r"Consegna ordine .+ — Marco Rossi <marco\.rossi@rossi-ottica\.example> — 2026-11-12 09:14\n\nGentile",
        ),
        ("leggi la seconda", ("get_email", {"email_id": "eml-bef661"}), "Fatture in scadenza a novembre — Sara"),
        ("no, grazie", None, r"Va bene, lascio stare\."),
        ("che ore sono?", ("current_time", {}), r"Sono le \d\d:\d\d \(UTC\), \d{4}-\d\d-\d\d\."),
        ("rispondi", None, "Per usare mcp_send_email mi manca ancora: subject, body. Ripeti la richiesta"),
        ("qual è la capitale della Francia?", None, "Senza un modello linguistico non so rispondere. Posso solo usare"),
        (
            "trova email sulle banane",
            ("search_emails", {"query": "banane"}),
            "Non ho trovato nulla per «banane»",
        ),
    ],
    "en": [
        (
            "find the emails about Aurora installation",
            ("search_emails", {"query": "Aurora installation"}),
            (
                r"I found 2 emails for “Aurora installation”:\n1\. Aurora: installation schedule .+ \(eml-3074a9\)\n"
                r"2\. .+\nShall I open the first one \(eml-3074a9\)\?"
            ),
        ),
        ("yes please", ("get_email", {"email_id": "eml-3074a9"}), "Aurora: installation schedule and site passes — "),
        ("read the second one", ("get_email", {"email_id": "eml-b95316"}), "Aurora design review: full minutes"),
        ("no thanks", None, r"All right, I will leave it\."),
        ("What time is it?", ("current_time", {}), r"It is \d\d:\d\d \(UTC\) on \d{4}-\d\d-\d\d\."),
        ("send an email", None, "To use mcp_send_email I still need: to, subject, body. Please ask again"),
        ("Who won the world cup?", None, "I cannot answer that without a language model. What I can do is use"),
        ("find emails about banana", ("search_emails", {"query": "banana"}), "I found nothing for “banana”."),
    ],
    "zh": [
        (
            "请搜索李伟的邮件",
            ("search_emails", {"query": "李伟"}),
            (
                r"关于“李伟”，找到了 5 封邮件：\n"
                r"1\. 发票 HG-2026-1147：极光项目余款 70% — 李伟 Li Wei、2026-11-06 \(eml-896327\)\n"
                r"(?:\d\. .+\n){4}要我打开第一封（eml-896327）吗？"
            ),
        ),
        ("好的", ("get_email", {"email_id": "eml-896327"}), "发票 HG-2026-1147：极光项目余款 70% — 李伟"),
        ("读第二封", ("get_email", {"email_id": "eml-1c83f6"}), "会议纪要：10 月 29-30 日工厂验货 — 陈静"),
        ("不用了，谢谢", None, "好的，那就不做了。"),
        ("现在几点？", ("current_time", {}), r"现在是 \d{4}-\d\d-\d\d \d\d:\d\d（UTC）。"),
        ("发一封邮件", None, "要使用 mcp_send_email，还缺少：to、subject、body。请重新说一遍"),
        ("法国的首都是哪里？", None, "没有语言模型，我回答不了这个问题。我只能使用这些工具："),
        ("查找关于香蕉的邮件", ("search_emails", {"query": "香蕉"}), "关于“香蕉”，什么都没有找到。"),
    ],
    "ar": [
        (
            "ابحث عن رسائل ليلى",
            ("search_emails", {"query": "ليلى"}),
            (
                r"وجدت 6 رسائل عن «ليلى»:\n"
                r"1\. موافقة على المخطط النهائي وسؤال عن العينات — ليلى حداد، 2026-11-13 \(eml-ca29f8\)\n"
                r"(?:\d\. .+\n){5}هل أفتح الرسالة الأولى \(\u2068eml-ca29f8\u2069\)؟"
            ),
        ),
        ("نعم", ("get_email", {"email_id": "eml-ca29f8"}), "موافقة على المخطط النهائي وسؤال عن العينات — ليلى حداد"),
        ("اقرأ الثانية", ("get_email", {"email_id": "eml-12d73c"}), "محضر اجتماع 5 نوفمبر والمواصفات الكاملة للردهة"),
        ("لا، شكرا", None, r"حسنًا، لن أفعل ذلك\."),
        (
            "كم الساعة الآن؟",
            ("current_time", {}),
            r"الساعة الآن \u2068\d\d:\d\d\u2069 \(\u2068UTC\u2069\)، بتاريخ \u2068\d{4}-\d\d-\d\d\u2069\.",
        ),
        (
            "أرسل رسالة",
            None,
            "لاستخدام \u2068mcp_send_email\u2069 ما زلت أحتاج إلى: \u2068to، subject، body\u2069. أعد الطلب",
        ),
        ("ما هي عاصمة فرنسا؟", None, "لا أستطيع الإجابة عن هذا من دون نموذج لغوي"),
        ("ابحث عن رسائل عن الموز", ("search_emails", {"query": "الموز"}), r"لم أجد شيئًا عن «الموز»\."),
    ],
}


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("language", first(2, CONVERSATIONS))
async def test_a_conversation_reads_naturally_and_does_what_was_asked(client: Client, language: str) -> None:
    session = await client.new_session()
    for message, called, reads in CONVERSATIONS[language]:
        text, calls = await say(client, session, message, language)
        assert calls == ([called] if called else []), message
        assert re.match(reads, text), (message, text)


ABOUT_A_MAIL = {
    "it": (
        "quante mail ho da Rossi?",
        "Ho trovato 8 email per «Rossi».",
        "e la seconda?",
        "chi l'ha scritta?",
        "È di Sara Bianchi",
    ),
    "es": (
        "¿cuántos correos tengo de Rossi?",
        "He encontrado 8 correos para «Rossi».",
        "¿y el segundo?",
        "¿quién lo escribió?",
        "Es de Sara Bianchi",
    ),
    "ar": ("كم رسالة لدي من ليلى؟", "وجدت 6 رسائل عن «ليلى».", "والثانية؟", "من كتبها؟", "هي من ليلى حداد"),
    "en": (
        "how many mails do I have from Rossi?",
        "I found 8 emails for “Rossi”.",
        "and the second?",
        "who wrote it?",
        "It is from Sara",
    ),
    "zh": ("我有多少封李伟的邮件？", "关于“李伟”，找到了 5 封邮件。", "第二封呢？", "谁写的？", "是 陈静"),
}


@pytest.mark.parametrize("language", first(2, ABOUT_A_MAIL))
async def test_mails_are_counted_the_second_is_opened_and_its_sender_told(client: Client, language: str) -> None:
    count, counted, second, who, told = ABOUT_A_MAIL[language]
    session = await client.new_session()
    assert (await say(client, session, count, language))[0] == counted
    assert [name for name, _ in (await say(client, session, second, language))[1]] == ["get_email"]
    text, called = await say(client, session, who, language)
    assert text.startswith(told)
    assert called == []


@pytest.mark.sweep
async def test_a_request_for_another_list_searches_and_one_for_the_same_list_reads(client: Client) -> None:
    session = await client.new_session()
    for message, called in (
        ("mi cerchi le mail di Marco Rossi sull'ordine?", ("search_emails", {"query": "Marco Rossi ordine"})),
        ("leggimi l'ultima mail di Sara", ("search_emails", {"query": "Sara"})),
        ("leggi la terza mail di Sara", ("get_email", {"email_id": "eml-641eff"})),
        ("leggi la mail eml-cfafb7", ("get_email", {"email_id": "eml-cfafb7"})),
        ("leggi la quinta", None),
        ("quali email ho ricevuto?", ("search_emails", {})),
        ("trova le fatture", ("search_emails", {"query": "fatture"})),
    ):
        _, calls = await say(client, session, message, "it")
        assert calls == ([called] if called else []), message


async def test_a_yes_opens_only_what_the_last_answer_offered(client: Client) -> None:
    session = await client.new_session()
    nothing = "Non c'è nulla in attesa di un sì. Dimmi che cosa fare."
    assert await say(client, session, "sì, grazie", "it") == (nothing, [])
    await say(client, session, "cerca le mail di Rossi", "it")
    await say(client, session, "no, grazie", "it")
    assert await say(client, session, "sì", "it") == (nothing, [])
    await say(client, session, "leggi la seconda", "it")
    assert await say(client, session, "sì", "it") == (nothing, [])


async def test_a_mail_is_written_only_in_the_users_own_words(client: Client, outbox: Path) -> None:
    session = await client.new_session()
    await say(client, session, "cerca le mail di Rossi", "it")
    assert (await say(client, session, "rispondi che va bene la seconda data", "it"))[1] == []
    assert subjects(outbox) == []
    await client.chat(session, 'rispondi: "Re: Consegna" "Preferiamo la B."')
    calls = (await client.get(f"/sessions/{session}/tool-results", tool="mcp_send_email"))["items"]
    wanted = {"to": "marco.rossi@rossi-ottica.example", "subject": "Re: Consegna", "body": "Preferiamo la B."}
    assert [call["args"] for call in calls] in ([], [wanted])  # not before a yes, where sending asks for one
    assert subjects(outbox) == ["Re: Consegna"] * len(calls)


async def test_a_failure_is_told_with_its_reason(client: Client) -> None:
    text, _ = await say(client, await client.new_session(), "leggi la mail eml-000000", "it")
    assert re.match("Non ci sono riuscito: .*There is no mail with the id 'eml-000000'", text)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("message", "language", "told"),
    [
        ("find the emails about bananas, then read the first", "en", "To use mcp_get_email I still need: email_id."),
        ("cerca le mail sulle banane, poi leggi la prima", "it", "Per usare mcp_get_email mi manca ancora: email_id."),
        ("查找关于香蕉的邮件，然后打开第一封", "zh", "要使用 mcp_get_email，还缺少：email_id。"),
        (
            "ابحث عن رسائل الموز ثم افتح الأولى",
            "ar",
            "لاستخدام \u2068mcp_get_email\u2069 ما زلت أحتاج إلى: \u2068email_id\u2069.",
        ),
    ],
)
async def test_a_step_that_finds_nothing_to_work_on_says_so_in_the_users_language(
    client: Client, message: str, language: str, told: str
) -> None:
    text, called = await say(client, await client.new_session(), message, language)
    assert told in text
    assert "could not be found" not in text
    assert [name for name, _ in called] == ["search_emails"]


async def test_small_talk_is_answered_with_what_can_be_done(client: Client) -> None:
    session = await client.new_session()
    text, _ = await say(client, session, "buongiorno", "it")
    listed = ", ".join(TOOLS)
    assert text.startswith(f"Dimmi che cosa cercare o aprire. Posso usare questi strumenti: {listed}. Chiedi «cosa sai")


@pytest.mark.sweep
async def test_the_same_conversation_is_always_answered_in_the_same_words(client: Client) -> None:
    answers = []
    for _ in range(2):
        session = await client.new_session()
        messages = ("find the emails from Rossi", "yes please", "read the third one", "what else?")
        answers.append([await say(client, session, message, "en") for message in messages])
    assert answers[0] == answers[1]
