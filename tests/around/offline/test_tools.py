"""Which tool the offline model takes, by the words of its name and description, and with what arguments."""

from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from segue.agent import prompts
from segue.around.offline.offline_model import draft_plan
from segue.around.offline.replies import answer
from segue.around.offline.vocabulary import OfferedTool, offered_tool
from segue.domain.session import READ_ATTACHMENT


def tool(name: str, description: str, *required: str, **properties: dict[str, Any]) -> OfferedTool:
    given = {argument: {"type": "string"} for argument in required} | properties
    schema = {"type": "object", "properties": given, "required": list(required)}
    return offered_tool({"name": name, "description": description, "parameters": schema})


Steps = list[tuple[str | None, dict[str, Any]]]

TEXT = {"type": "string"}
SEARCH_EMAILS = tool("mcp_search_emails", "Search the inbox by sender, subject and text.", query=TEXT)
GET_EMAIL = tool("mcp_get_email", "Read one mail of the inbox in full.", "email_id")
DELETE_EMAIL = tool("mcp_delete_email", "Delete one mail of the inbox.", "email_id")
SEND_EMAIL = tool("mcp_send_email", "Send a mail.", "to", "subject", "body")
TIME = tool("current_time", "The current date, time and weekday.")
WEB_SEARCH = tool("web_search", "Search the public web.", "query")
WEB_FETCH = tool("web_fetch", "Open a public web page by its address.", "url")
# The tools of a server that the offline model has no words for.
SHOP = [
    tool("mcp_list_orders", "List the orders.", status={"type": "string", "enum": ["open", "shipped"]}),
    tool("mcp_get_order", "Show one order with its lines.", "order_id"),
    tool("mcp_cancel_order", "Cancel an order.", "order_id"),
    tool("get_weather", "Tell the weather in a city.", "city"),
    tool("convert", "Convert an amount into another currency.", "currency", "amount", amount={"type": "number"}),
    tool("create_note", "Create a note.", "text"),
    tool("files.readFile", "Read a file of the project.", "path"),
    tool("createEvent", "Create a calendar event.", "title", "description"),
    tool("stock_level", "How much of a product is in the warehouse.", "product"),
]
MAIL = [SEARCH_EMAILS, GET_EMAIL, DELETE_EMAIL, SEND_EMAIL]
TOOLS = [*MAIL, *SHOP, TIME, WEB_SEARCH, WEB_FETCH]


def reply(*said: str | tuple[str, dict[str, Any], str], note: str = "", tools: list[OfferedTool] = TOOLS) -> AIMessage:
    """What the offline model answers after what the user and it said in turn, and calls with their results."""
    messages: list[BaseMessage] = [SystemMessage(prompts.TEXTS["system"])]
    users_turn = True
    for each in said:
        if isinstance(each, tuple):
            name, args, result = each
            messages.append(AIMessage("", tool_calls=[{"name": name, "args": args, "id": "1", "type": "tool_call"}]))
            messages.append(ToolMessage(result, tool_call_id="1"))
        else:
            messages.append(HumanMessage(each) if users_turn else AIMessage(each))
            users_turn = not users_turn
    return answer(prompts.with_note(messages, note) if note else messages, tools)


def called(message: AIMessage) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


@pytest.mark.parametrize(
    ("message", "name", "args"),
    [
        ("show me the open orders", "mcp_list_orders", {"status": "open"}),
        ("mostrami gli ordini", "mcp_list_orders", {}),
        ("查看订单", "mcp_list_orders", {}),
        ("اعرض الطلبات", "mcp_list_orders", {}),
        ("use mcp_list_orders", "mcp_list_orders", {}),
        ("usa list_orders con status=shipped", "mcp_list_orders", {"status": "shipped"}),
        ("调用 mcp_list_orders", "mcp_list_orders", {}),
        ("read order ord-1042", "mcp_get_order", {"order_id": "ord-1042"}),
        ("annulla l'ordine ord-1042", "mcp_cancel_order", {"order_id": "ord-1042"}),
        ("取消订单 ord-1042", "mcp_cancel_order", {"order_id": "ord-1042"}),
        ("ألغ الطلب ord-1042", "mcp_cancel_order", {"order_id": "ord-1042"}),
        ("what is the weather in Oslo?", "get_weather", {"city": "Oslo"}),
        ("che tempo fa a Trieste?", "get_weather", {"city": "Trieste"}),
        ("convert 50 to currency: USD", "convert", {"currency": "USD", "amount": 50}),
        ('crea una nota: "comprare il latte"', "create_note", {"text": "comprare il latte"}),
        ("Leggi main.py", "files.readFile", {"path": "main.py"}),
        ("read the file src/main.py please", "files.readFile", {"path": "src/main.py"}),
        ("how many lamps do we have in the warehouse?", "stock_level", {"product": "lamps"}),
        ("quante lampade abbiamo in magazzino?", "stock_level", {"product": "lampade"}),
        ("search the web for news on Mars", "web_search", {"query": "news Mars"}),
        ("cerca sul web notizie su Marte", "web_search", {"query": "notizie Marte"}),
        ("find the mails from Rossi", "mcp_search_emails", {"query": "Rossi"}),
        ("delete the mail from Rossi", "mcp_search_emails", {"query": "Rossi"}),
        ("delete the mail eml-30b431", "mcp_delete_email", {"email_id": "eml-30b431"}),
        ("open https://words.example/a", "web_fetch", {"url": "https://words.example/a"}),
    ],
)
def test_any_tool_is_found_by_its_words(message: str, name: str, args: dict[str, Any]) -> None:
    assert called(reply(message)) == [(name, args)]


@pytest.mark.parametrize(
    "message",
    ["call my wife", "Who won the world cup?", "delete everything", "bake a cake", "你好", "ما رأيك؟", "wipe it"],
)
def test_what_no_tool_fits_calls_none(message: str) -> None:
    assert not reply(message).tool_calls


LISTED = (
    "mcp_search_emails",
    {"query": "Rossi"},
    """{"emails": [{"id": "eml-111111", "date": "2026-11-12"}, {"id": "eml-222222", "date": "2026-09-01"},
    {"id": "eml-333333", "date": "2026-10-01"}]}""",
)
OFFER = "I found 3 emails. Shall I open the first one (eml-111111)?"


@pytest.mark.parametrize(
    ("message", "name", "email_id"),
    [
        ("sì, leggi", "mcp_get_email", "eml-111111"),
        ("sì, leggila", "mcp_get_email", "eml-111111"),
        ("va bene, aprila", "mcp_get_email", "eml-111111"),
        ("ok, read the second one", "mcp_get_email", "eml-222222"),
        ("yes, open it", "mcp_get_email", "eml-111111"),
        ("好的，打开吧", "mcp_get_email", "eml-111111"),
        ("نعم، افتحها", "mcp_get_email", "eml-111111"),
        ("e la seconda?", "mcp_get_email", "eml-222222"),
        ("what about the third?", "mcp_get_email", "eml-333333"),
        ("那第二封呢？", "mcp_get_email", "eml-222222"),
        ("elimina la più vecchia", "mcp_delete_email", "eml-222222"),
        ("delete the third one", "mcp_delete_email", "eml-333333"),
        ("删除最旧的一封", "mcp_delete_email", "eml-222222"),
        ("删除它", "mcp_delete_email", "eml-111111"),
    ],
)
def test_a_yes_with_a_verb_does_that_with_what_was_listed(message: str, name: str, email_id: str) -> None:
    assert called(reply("find the mails from Rossi", LISTED, OFFER, message)) == [(name, {"email_id": email_id})]


KEPT: tuple[str, dict[str, Any], str] = ("files.readFile", {"path": "a.txt"}, "The passes end in May.")


@pytest.mark.parametrize(
    "question",
    ["what was in the file you read?", "cosa c'era nel file che hai letto?", "¿qué había en el archivo que leíste?",
     "你读的文件里有什么？", "ماذا كان في الملف الذي قرأته؟"],
)  # fmt: skip
def test_what_was_in_a_file_is_answered_from_the_kept_result(question: str) -> None:
    told = reply("read a.txt", KEPT, "The passes end in May.", question)
    assert not told.tool_calls
    assert told.text.startswith("The passes end in May.")


def test_what_is_kept_by_reference_is_loaded_and_then_told() -> None:
    load = tool("get_tool_result", "Load the stored result of an earlier tool call.", tool_call_id=TEXT)
    kept: tuple[str, dict[str, Any], str] = (
        "mcp_get_email",
        {},
        '{"tool_call_id": "call_1", "identifiers": [], "summary": "Get email"}',
    )
    said = ("read the first", kept, "A long mail.", "who wrote it?")
    assert called(reply(*said, tools=[*TOOLS, load])) == [("get_tool_result", {"tool_call_id": "call_1"})]
    loaded: tuple[str, dict[str, Any], str] = (
        "get_tool_result",
        {},
        '{"tool_name": "mcp_get_email", "result": {"from": "Anna"}}',
    )
    assert reply(*said, loaded).text.startswith("It is from Anna.")


@pytest.mark.parametrize(
    ("greeting", "praise", "answer"),
    [("你好", "太棒了", "不客气"), ("مرحبا", "ممتاز", "على الرحب"), ("ciao", "perfetto!", "Prego")],
)
def test_praise_is_not_told_that_nothing_waits_for_a_yes(greeting: str, praise: str, answer: str) -> None:
    assert answer in reply(greeting, "…", praise).text


DELETED = ("mcp_delete_email", {"email_id": "eml-222222"}, '{"id": "eml-222222", "status": "deleted"}')


def test_a_yes_to_delete_it_again_finds_nothing_waiting() -> None:
    answered = reply(
        "find the mails from Rossi", LISTED, OFFER, "delete the second one", DELETED, "Done.", "yes, delete it"
    )
    assert not answered.tool_calls
    assert "nothing waiting for your yes" in answered.text


def test_a_yes_is_no_answer_to_an_id_that_was_only_told() -> None:
    told = "id: eml-111111\nstatus: deleted"
    answered = reply("find the mails from Rossi", LISTED, OFFER, "delete the first one", DELETED, told, "yes")
    assert not answered.tool_calls


def test_a_file_is_not_read_with_a_tool_for_mails() -> None:
    assert not reply("find the mails from Rossi", LISTED, OFFER, "Read main.py", tools=MAIL).tool_calls
    assert planned("Leggi main.py e correggi il bug", MAIL) == []


@pytest.mark.parametrize(
    "shown",
    [
        '{"emails": [{"id": "eml-111111"}, {"id": "eml-222222"}], "total": 44}',
        '{"tool_call_id": "call_1", "summary": "2 of 44 emails", "identifiers": ["eml-111111", "eml-222222"]}',
        '{"tool_call_id": "call_1", "summary": "Search: R — 3 emails", "identifiers": ["eml-111111", "eml-222222"]}',
    ],
)
def test_the_oldest_is_not_taken_from_a_list_that_shows_only_the_newest(shown: str) -> None:
    listed = ("mcp_search_emails", {"query": "Rossi"}, shown)
    answered = reply("find the mails from Rossi", listed, OFFER, "delete the oldest")
    assert not answered.tool_calls
    assert "I still need: email_id" in answered.text


def test_what_a_frontend_found_is_shown_if_the_message_asks_for_no_call() -> None:
    found = (READ_ATTACHMENT, {"attachment_id": "att_1"}, "a lamp is 12")
    asked = reply("find the mails from Rossi", found, note=prompts.TEXTS["sources"])
    assert called(asked) == [("mcp_search_emails", {"query": "Rossi"})]
    assert "a lamp is 12" in reply("hm", found, note=prompts.TEXTS["sources"]).text
    assert called(reply("find the mails from Rossi", found)) == []  # of a file of the user's


def test_what_no_tool_is_about_is_said_to_have_none() -> None:
    assert "Non ho uno strumento per «che impegni ho domani?»" in reply("che impegni ho domani?", tools=MAIL).text
    move = "Move the meeting with Rossi to Friday and tell the participants"
    assert "I have no tool for “Move the meeting" in reply(move, tools=MAIL).text


def test_a_call_about_mails_is_never_made_with_a_tool_for_something_else() -> None:
    without = [each for each in TOOLS if each.name != "mcp_delete_email"]
    answered = reply("find the mails from Rossi", LISTED, OFFER, "delete the oldest", tools=without)
    assert not answered.tool_calls
    assert "no tool for “delete the oldest”" in answered.text


@pytest.mark.parametrize(
    ("first", "question", "supplied", "name", "args"),
    [
        ("create a note", "text", "buy bread", "create_note", {"text": "buy bread"}),
        ("convert 50 euros", "currency", "currency=USD", "convert", {"amount": 50, "currency": "USD"}),
        ("cancel the order", "order_id", "ord-1042", "mcp_cancel_order", {"order_id": "ord-1042"}),
    ],
)
def test_what_is_missing_is_asked_for_and_taken_from_the_answer(
    first: str, question: str, supplied: str, name: str, args: dict[str, Any]
) -> None:
    tools = [each for each in SHOP if each.name != "mcp_list_orders"]
    asked = reply(first, tools=tools)
    assert f"I still need: {question}." in asked.text
    assert called(reply(first, asked.text, supplied, tools=tools)) == [(name, args)]


def test_the_first_verb_says_what_is_wanted() -> None:
    asked = reply("send an email to anna@example.com with subject Hello and body See you tomorrow")
    assert "To use mcp_send_email I still need: subject, body." in asked.text


def test_a_question_after_a_question_is_not_taken_for_its_answer() -> None:
    asked = reply("create a note")
    assert called(reply("create a note", asked.text, "find the mails from Rossi")) == [
        ("mcp_search_emails", {"query": "Rossi"})
    ]


@pytest.mark.parametrize(
    ("message", "says", "example"),
    [
        ("what can you do?", "These are the tools I have", "find the emails from Rossi"),
        ("cosa sai fare?", "Questi sono gli strumenti", "cerca le email di Rossi"),
        ("你能做什么？", "我有这些工具", "搜索李伟的邮件"),
        ("ماذا تستطيع أن تفعل؟", "هذه هي الأدوات", "ابحث عن رسائل ليلى"),
    ],
)
def test_asked_what_it_can_do_it_lists_its_tools_with_examples(message: str, says: str, example: str) -> None:
    text = reply(message).text
    assert says in text
    assert "- mcp_cancel_order: Cancel an order" in text
    assert f"- {example}" in text


def test_a_search_that_is_wanted_is_made_if_no_tool_fits_and_one_that_is_not_never() -> None:
    assert called(reply("and how cold is Oslo?", note=prompts.TEXTS["search_wanted"], tools=[*MAIL, WEB_SEARCH])) == [
        ("web_search", {"query": "cold Oslo"})
    ]
    assert called(reply("find the mails of Rossi", note=prompts.TEXTS["search_wanted"])) == [
        ("mcp_search_emails", {"query": "Rossi"})
    ]
    banned = "non cercare sul web, chi era Dante?"
    assert not reply(banned, note=prompts.TEXTS["search_forbidden"], tools=MAIL).tool_calls


def planned(message: str, tools: list[OfferedTool]) -> Steps:
    asked = f"{message}\n\n{prompts.planner_note(locked=[], barred=[])}"
    steps = orjson.loads(draft_plan([SystemMessage(prompts.TEXTS["system"]), HumanMessage(asked)], tools))["steps"]
    return [(step["tool"], step["args"]) for step in steps]


FIRST_READ: Steps = [("mcp_search_emails", {}), ("mcp_get_email", {}), ("web_search", {})]


@pytest.mark.parametrize(
    ("message", "steps"),
    [
        ("cerca sul web info sul mittente dell'ultimo messaggio", FIRST_READ),
        ("search the web for info on the sender of the last message", FIRST_READ),
        ("上网搜一下最后一封邮件的发件人", FIRST_READ),
        ("ابحث في الإنترنت عن معلومات عن مرسل آخر رسالة", FIRST_READ),
        (
            "find the mails from Rossi and delete the oldest",
            [("mcp_search_emails", {"query": "Rossi"}), ("mcp_delete_email", {})],
        ),
        (
            "cerca le mail di Rossi ed elimina la più vecchia",
            [("mcp_search_emails", {"query": "Rossi"}), ("mcp_delete_email", {})],
        ),
        ("搜索李伟的邮件并删除最旧的一封", [("mcp_search_emails", {"query": "李伟"}), ("mcp_delete_email", {})]),
        ("ابحث عن رسائل ليلى واحذف أقدمها", [("mcp_search_emails", {"query": "ليلى"}), ("mcp_delete_email", {})]),
        ("Leggi main.py e correggi il bug", [("files.readFile", {"path": "main.py"}), (None, {})]),
        ("Read main.py and fix the bug", [("files.readFile", {"path": "main.py"}), (None, {})]),
        (
            "Create a calendar event from the last email by Marco",
            [("mcp_search_emails", {"query": "Marco"}), ("mcp_get_email", {}), ("createEvent", {})],
        ),
        ("what time is it?", []),
        ("find the mails from Rossi", []),
    ],
)
def test_a_plan_has_a_step_for_each_part_and_reads_first_what_a_part_needs(message: str, steps: Steps) -> None:
    assert planned(message, TOOLS) == steps


@pytest.mark.parametrize(
    ("message", "query"),
    [
        ("trova le fatture e poi apri la prima", "fatture"),
        ("find the invoices, then open the first", "invoices"),
        ("查找发票，然后打开第一封", "发票"),
        ("ابحث عن الفواتير ثم افتح الأولى", "الفواتير"),
    ],
)
def test_a_part_that_names_nothing_is_about_what_the_tool_before_it_gives(message: str, query: str) -> None:
    assert planned(message, MAIL) == [("mcp_search_emails", {"query": query}), ("mcp_get_email", {})]


PROMISE = tool("promise", "Promise the user to do something later.")
TUESDAY = "It is Tuesday, 2026-11-24, 10:00 (Europe/Rome, +0100)."
LATER = [
    ("remind me tomorrow at 9 to call Rossi", "2026-11-25T09:00", "call Rossi"),
    ("ricordami domani alle 9 di chiamare Rossi", "2026-11-25T09:00", "chiamare Rossi"),
    ("明天上午九点提醒我给罗西打电话", "2026-11-25T09:00", "给罗西打电话"),
    ("ذكرني غدا الساعة 9 بالاتصال بروسي", "2026-11-25T09:00", "بالاتصال بروسي"),
    ("please remind me to call Rossi tomorrow at 5 pm", "2026-11-25T17:00", "call Rossi"),
    ("Can you remind me in 20 minutes to check the oven?", "2026-11-24T10:20", "check the oven"),
    ("remind me at 3 to call Rossi", "2026-11-24T15:00", "call Rossi"),
    ("remind me on Friday morning to send the report", "2026-11-27T09:00", "send the report"),
    ("remind me on Tuesday at 9 to send the report", "2026-12-01T09:00", "send the report"),
    ("remind me at 9 that the meeting is on Friday at 10", "2026-11-25T09:00", "the meeting is on Friday at 10"),
    ("puoi ricordarmi venerdì alle 9 e mezza di chiamare Sara?", "2026-11-27T09:30", "chiamare Sara"),
    ("domattina ricordami di pagare la bolletta", "2026-11-25T09:00", "pagare la bolletta"),
    ("tra due ore ricordami di spegnere il forno", "2026-11-24T12:00", "spegnere il forno"),
    ("提醒我明天下午3点半给李伟回信", "2026-11-25T15:30", "给李伟回信"),
    ("下周五上午10点提醒我交报告", "2026-12-04T10:00", "交报告"),
    ("ذكرني بعد ساعتين أن أتصل بليلى", "2026-11-24T12:00", "أتصل بليلى"),
    ("ذكرني يوم الخميس الساعة الثامنة مساء أن أتصل بليلى", "2026-11-26T20:00", "أتصل بليلى"),
]
AGAIN = [
    ("every Monday at 9 show me the new mails", "week", "2026-11-30T09:00", "show me the new mails"),
    ("ogni lunedì alle 9 mostrami le nuove mail", "week", "2026-11-30T09:00", "mostrami le nuove mail"),
    ("每周一上午9点给我看新邮件", "week", "2026-11-30T09:00", "给我看新邮件"),
    ("كل يوم اثنين الساعة 9 اعرض لي الرسائل الجديدة", "week", "2026-11-30T09:00", "اعرض لي الرسائل الجديدة"),
    ("show me the new mails every weekday at 8:30", "weekday", "2026-11-25T08:30", "show me the new mails"),
    ("every hour check the new mails", "hour", "2026-11-24T11:00", "check the new mails"),
    ("ricordami ogni sera alle 10 di prendere le gocce", "day", "2026-11-24T22:00", "prendere le gocce"),
]
NOT_LATER = [
    "don't remind me tomorrow at 9 to call Rossi", "non ricordarmi domani alle 9 di chiamare Rossi",
    "what meetings do I have every Monday?", "show me my meetings tomorrow at 9", "domani alle 9 ho una riunione",
    "tomorrow at 9 create an event with Sara", "book a table for two tomorrow at 8 pm", "每周一都有会议吗？",
    "ti ricordi che domani alle 9 ho una riunione?", "ricordami che mi piace il tè", "明天9点我有会议",
    "ricordami cosa ho detto ieri alle 9", "remind me on 3/12 at 9 to call Rossi", "find the mails from Monday",
    "remind me to call Rossi on December 3 at 9", "ricordami il 3 alle 9 di chiamare Rossi", "remind me tomorrow at 9",
    "ricordami di chiamare Rossi il 3 alle 9", "remind me to call Rossi on 3/12 at 9",
    "remind me today at 9 to call Rossi", "remind me tomorrow at 27 to call Rossi", "أرني رسائل يوم الاثنين",
]  # fmt: skip


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("message", "at", "what"), LATER)
def test_what_is_wanted_later_is_promised_for_the_time_that_the_words_mean(message: str, at: str, what: str) -> None:
    assert called(reply(message, note=TUESDAY, tools=[*TOOLS, PROMISE])) == [("promise", {"what": what, "at": at})]


@pytest.mark.parametrize(("message", "every", "at", "what"), AGAIN)
def test_what_is_wanted_again_and_again_is_promised_for_a_year(message: str, every: str, at: str, what: str) -> None:
    args = {"what": what, "at": at, "every": every, "until": at.replace("2026", "2027")}
    assert called(reply(message, note=TUESDAY, tools=[*TOOLS, PROMISE])) == [("promise", args)]


@pytest.mark.parametrize("message", NOT_LATER)
def test_nothing_is_promised_that_is_not_asked_for_or_whose_time_is_not_understood(message: str) -> None:
    answered = reply(message, note=TUESDAY, tools=[*TOOLS, PROMISE])
    assert "promise" not in dict(called(answered))


def test_what_is_due_is_said_or_shown_and_promised_no_second_time() -> None:
    due = f"{TUESDAY}\n{prompts.TEXTS['unattended']} {prompts.TEXTS['promised']}"
    said = reply("⏰ ricordami domani alle 9 di chiamare Rossi", note=due, tools=[*TOOLS, PROMISE])
    assert not said.tool_calls
    assert said.text.startswith("⏰ ricordami domani alle 9 di chiamare Rossi\n")
    assert reply("⏰ send the report to Sara", note=due).text.startswith("⏰ send the report to Sara\n")
    for shows in ("show me the new mails", "mostrami le nuove mail", "给我看新邮件", "اعرض لي الرسائل الجديدة"):
        assert called(reply(f"⏰ {shows}", note=due, tools=[*TOOLS, PROMISE])) == [("mcp_search_emails", {})]
