"""The mailbox example as a client sees it: the real server, started as a process and driven over stdio."""

import asyncio
import hashlib
import mailbox
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent

from tests.support.commands import python

FOLDER = Path(__file__).parents[2] / "examples" / "mailbox"
NEWEST_OF_ROSSI = "eml-30b431"


@asynccontextmanager
async def mailbox_client(outbox: Path, program: str, *options: str) -> AsyncIterator[Client]:
    """`program` and `options` are a Python to run the server in."""
    server = StdioServerParameters(
        command=program,
        args=[*options, str(FOLDER / "server.py")],
        env={"MAILBOX_OUTBOX": str(outbox), "MAILBOX_OFFLINE": str(outbox.parent / "offline")},
    )
    async with Client(server, read_timeout_seconds=20) as client:
        yield client


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """One server for all tests that only read; a task of its own enters and leaves it, as the SDK demands."""
    ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def own() -> None:
        async with mailbox_client(tmp_path_factory.mktemp("unused") / "outbox.mbox", sys.executable) as client:
            ready.set_result(client)
            await done.wait()

    owner = asyncio.create_task(own())
    either: set[asyncio.Future[Any]] = {owner, ready}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if owner.done():
        await owner
    yield ready.result()
    done.set()
    await owner


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    return tmp_path / "sent" / "outbox.mbox"


async def answer(client: Client, tool: str, **arguments: str) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: str) -> str:
    result: CallToolResult = await client.call_tool(tool, arguments)
    assert result.is_error
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def found(client: Client, query: str) -> list[str]:
    return [email["id"] for email in (await answer(client, "search_emails", query=query))["emails"]]


def messages(path: Path) -> list[EmailMessage]:
    if not path.exists():
        return []
    with closing(mailbox.mbox(path, create=False)) as box:
        return [message_from_bytes(box.get_bytes(key), policy=policy.default) for key in box.iterkeys()]


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("query", "total", "newest", "subject"),
    [
        ("Rossi", 8, NEWEST_OF_ROSSI, "Consegna ordine 2026-118: quale data preferite?"),
        ("Aurora installation", 2, "eml-3074a9", "Aurora: installation schedule and site passes"),
        ("李伟", 5, "eml-896327", "发票 HG-2026-1147：极光项目余款 70%"),
        ("ليلى", 6, "eml-ca29f8", "موافقة على المخطط النهائي وسؤال عن العينات"),
    ],
)
async def test_a_search_in_each_language_finds_the_newest_mail_first(
    client: Client, query: str, total: int, newest: str, subject: str
) -> None:
    result = await answer(client, "search_emails", query=query)
    first = result["emails"][0]
    assert (first["id"], first["subject"]) == (newest, subject)
    assert set(first) == {"id", "from", "subject", "date", "snippet"}
    assert first["snippet"]
    assert result["total"] == total == len(result["emails"])


async def test_the_newest_mail_from_rossi_asks_for_a_delivery_date(client: Client) -> None:
    email = await answer(client, "get_email", email_id=(await found(client, "le mail di Rossi"))[0])
    assert email["id"] == NEWEST_OF_ROSSI
    assert email["from"] == "Marco Rossi <marco.rossi@rossi-ottica.example>"
    assert email["to"] == "Elena Conti <elena.conti@lumen.example>"
    assert email["date"] == "2026-11-12T09:14:00+01:00"
    assert "quale delle due preferisce, A o B?" in email["body"]


async def test_case_accents_order_and_small_words_do_not_matter_to_a_search(client: Client) -> None:
    for query in ("papà compleanno", "COMPLEANNO PAPA", "cerca la mail sul compleanno di papà"):
        assert "eml-ecb3c8" in await found(client, query), query
    assert await found(client, "رسائل ليلى") == await found(client, "ليلى")
    assert await found(client, "李伟的邮件") == await found(client, "李伟")
    assert await found(client, "الفاتورة") == await found(client, "فاتورة")


async def test_a_word_is_found_by_its_beginning_and_not_by_its_middle(client: Client) -> None:
    assert await found(client, "magaz")
    assert not await found(client, "agazzino")


async def test_a_search_that_no_mail_matches_in_full_gives_those_with_the_most_words(client: Client) -> None:
    assert await found(client, "Leeds focusing banana") == ["eml-b95316", "eml-65e2ac"]
    assert await found(client, "李伟交货时间香蕉") == ["eml-aa4bf3"]
    assert await answer(client, "search_emails", query="banana") == {"emails": [], "total": 0}


async def test_an_empty_search_lists_the_ten_newest_mails_and_counts_all(client: Client) -> None:
    result = await answer(client, "search_emails", query="")
    assert await answer(client, "search_emails") == result
    dates = [email["date"] for email in result["emails"]]
    assert result["total"] == len(messages(FOLDER / "inbox.mbox"))
    assert len(dates) == 10
    assert dates[0].startswith("2026-11-13")
    assert dates == sorted(dates, reverse=True)


async def test_every_mail_is_read_by_an_id_made_from_its_message_id(client: Client) -> None:
    for message in messages(FOLDER / "inbox.mbox"):
        email_id = "eml-" + hashlib.sha256(message["Message-ID"].encode()).hexdigest()[:6]
        email = await answer(client, "get_email", email_id=email_id)
        assert email["id"] == email_id
        assert email["subject"] == message["Subject"]
        assert len(email["body"]) > 100


async def test_an_html_mail_is_read_as_text(client: Client) -> None:
    quote = await answer(client, "get_email", email_id="eml-b6b5ea")
    order = await answer(client, "get_email", email_id="eml-7f70aa")
    assert "Totale | 1.614,50 €\n" in quote["body"]
    assert "- domenica 25 ottobre: Bologna → Francoforte → Hong Kong" in quote["body"]
    assert "الدفعة المقدمة 40% | 18,400 يورو\n" in order["body"]
    assert not any(mark in quote["body"] + order["body"] for mark in ("<", "font-family", "border-collapse", "&"))


async def test_encoded_and_multipart_mails_are_read_as_their_sender_wrote_them(client: Client) -> None:
    dinner = await answer(client, "get_email", email_id="eml-2347a4")
    offer = await answer(client, "get_email", email_id="eml-9d8f9b")
    assert "老板的烧鹅是全香港最好的" in dinner["body"]
    assert offer["body"].count("Gentile dottoressa Conti") == 1
    assert offer["body"].endswith("[attachment: distinta-231-2026.csv]")


async def test_an_unknown_id_is_refused_with_the_way_to_find_one(client: Client) -> None:
    text = await refusal(client, "get_email", email_id="eml-000000")
    assert "no mail with the id 'eml-000000'" in text
    assert "search_emails" in text


async def test_a_sent_mail_stands_in_the_outbox_as_it_was_written(outbox: Path) -> None:
    body = "Gentile signor Rossi,\n\npreferiamo la B. Perché? 好的，谢谢。 شكرًا\n"
    async with mailbox_client(outbox, *python()) as client:
        receipt = await answer(
            client, "send_email", to="marco.rossi@rossi-ottica.example", subject="Re: Consegna: sì", body=body
        )
    (message,) = messages(outbox)
    assert receipt == {
        "id": "eml-" + hashlib.sha256(message["Message-ID"].encode()).hexdigest()[:6],
        "to": "marco.rossi@rossi-ottica.example",
        "subject": "Re: Consegna: sì",
        "status": "sent",
    }
    assert message["To"] == "marco.rossi@rossi-ottica.example"
    assert message["From"] == "Elena Conti <elena.conti@lumen.example>"
    assert message["Subject"] == "Re: Consegna: sì"
    assert message["Date"].datetime.tzinfo
    assert message.get_content() == body


@pytest.mark.sweep
async def test_mails_sent_at_the_same_time_from_two_servers_all_stand_in_the_outbox(outbox: Path) -> None:
    async with mailbox_client(outbox, *python()) as one, mailbox_client(outbox, *python()) as other:
        await asyncio.gather(
            *(
                answer(client, "send_email", to="sara.bianchi@lumen.example", subject=f"{name} {number}", body="Ciao")
                for number in range(10)
                for name, client in (("one", one), ("other", other))
            )
        )
    subjects = {str(message["Subject"]) for message in messages(outbox)}
    assert subjects == {f"{name} {number}" for name in ("one", "other") for number in range(10)}


async def test_an_invalid_recipient_is_refused_and_nothing_is_sent(outbox: Path) -> None:
    async with mailbox_client(outbox, *python()) as client:
        for to in (
            "",
            "Rossi",
            "marco@rossi",
            "marco@@rossi.example",
            "a@b.example c@d.example",
            "a@b.example\nBcc: c@d",
        ):
            assert "Nothing was sent" in await refusal(client, "send_email", to=to, subject="Ciao", body="Ciao")
    assert not messages(outbox)


async def test_a_subject_cannot_smuggle_in_a_header(outbox: Path) -> None:
    async with mailbox_client(outbox, *python()) as client:
        await answer(client, "send_email", to="a@b.example", subject="Ciao\r\nBcc: c@d.example", body="Ciao")
    (message,) = messages(outbox)
    assert message["Bcc"] is None
    assert message["Subject"] == "Ciao Bcc: c@d.example"


async def test_while_the_file_offline_lies_there_every_tool_fails_and_nothing_is_sent(outbox: Path) -> None:
    outbox.parent.mkdir()
    offline = outbox.parent / "offline"
    async with mailbox_client(outbox, *python()) as client:
        offline.touch()
        mail = {"to": "sara.bianchi@lumen.example", "subject": "Ciao", "body": "Ciao"}
        one = {"email_id": "eml-000000"}
        for tool, arguments in (("search_emails", {}), ("get_email", one), ("send_email", mail), ("delete_email", one)):
            assert "cannot be reached" in await refusal(client, tool, **arguments)
        offline.unlink()
        assert await found(client, "Rossi")
    assert not messages(outbox)


async def test_a_mail_that_is_deleted_is_found_no_more(outbox: Path) -> None:
    async with mailbox_client(outbox, *python()) as client:
        newest = (await found(client, "Rossi"))[0]
        assert (await answer(client, "delete_email", email_id=newest))["status"] == "deleted"
        assert newest not in await found(client, "Rossi")
        assert "no mail with the id" in await refusal(client, "delete_email", email_id=newest)


async def test_the_tools_declare_what_they_read_and_what_they_change(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    hints = {
        name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint, tool.annotations.idempotent_hint)
        for name, tool in tools.items()
        if tool.annotations
    }
    assert hints == {
        "search_emails": (True, None, None),
        "get_email": (True, None, None),
        "send_email": (False, True, False),
        "delete_email": (False, True, True),
    }
    assert all(
        "description" in argument for tool in tools.values() for argument in tool.input_schema["properties"].values()
    )
