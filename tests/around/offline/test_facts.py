"""The offline model keeps what people say of themselves, in their own sentences, and can say it again."""

import orjson
import pytest

from segue.around.offline.fill_arguments import extract_facts
from segue.config import Settings
from tests.support.facts import all_taken_in, known, tell
from tests.support.service import running


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("message", "facts", "question"),
    [
        ("My name is Bob. What time is it?", "My name is Bob.", "What am I called?"),
        ("Ciao, mi chiamo Anna e vivo a Roma", "mi chiamo Anna|vivo a Roma", "Come mi chiamo?"),
        ("我叫小明，住在罗马。", "我叫小明，住在罗马。", "我叫什么？"),
        ("اسمي سارة وأعيش في روما", "اسمي سارة|أعيش في روما", "ما اسمي؟"),
    ],
)
async def test_it_notes_a_sentence_and_gives_it_back(
    settings: Settings, message: str, facts: str, question: str
) -> None:
    async with running(settings.model_copy(update={"openai_base_url": None})) as client:
        await client.chat(await client.new_session(), message)
        await all_taken_in(settings)
        assert sorted(await known(client)) == sorted(facts.split("|"))
        answer = await client.chat(await client.new_session(), question)
    assert facts.split("|", maxsplit=1)[0] in answer["message"]["content"]


@pytest.mark.parametrize(
    ("message", "noted"),
    [
        ("call my wife", []),
        ("scrivi a mia moglie che arrivo tardi", []),
        ("给我妻子发邮件", []),
        ("أرسل رسالة إلى زوجتي", []),
        ("my name is Bob, find my mails", ["my name is Bob"]),
        ("Lavoro alla Lumen e mi piace leggere", ["Lavoro alla Lumen e mi piace leggere"]),
    ],
)
def test_what_the_user_wants_done_is_no_fact(message: str, noted: list[str]) -> None:
    facts = orjson.loads(extract_facts(orjson.dumps({"user_said": message, "known": []}).decode()))["facts"]
    assert [fact["content"] for fact in facts] == noted


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("content", "message", "said"),
    [
        ("Abito a Roma", "dimentica dove abito", "Ho dimenticato:"),
        ("I live at 3 Harbour Street", "forget my address", "I have forgotten:"),
        ("我住在罗马", "忘记我住在哪里", "我已经忘记："),
        ("أعيش في روما", "انس أين أعيش", "لقد نسيت:"),
    ],
)
async def test_it_forgets_what_it_is_asked_to_and_says_so(
    settings: Settings, content: str, message: str, said: str
) -> None:
    async with running(settings.model_copy(update={"openai_base_url": None})) as client:
        for each in ("Tom the cat has fleas", content):
            await tell(client, each)
        answer = await client.chat(await client.new_session(), message)
        await all_taken_in(settings)
        assert answer["message"]["content"].startswith(f"{said}\n- {content}")
        assert await known(client) == ["Tom the cat has fleas"]


async def test_of_two_facts_in_a_sentence_it_forgets_the_one_it_is_asked_to(settings: Settings) -> None:
    async with running(settings.model_copy(update={"openai_base_url": None})) as client:
        await client.chat(await client.new_session(), "Hi, I live at 3 Harbour Street and I work for Lumen")
        await all_taken_in(settings)
        await client.chat(await client.new_session(), "forget my address")
        await all_taken_in(settings)
        assert await known(client) == ["I work for Lumen"]


async def test_it_replaces_what_was_corrected(settings: Settings) -> None:
    async with running(settings.model_copy(update={"openai_base_url": None})) as client:
        session = await client.new_session()
        for message in ("Vivo a Roma con due gatti", "Mi piace il tè", "Non vivo più a Roma, sono di Torino adesso"):
            await client.chat(session, message)
            await all_taken_in(settings)
        assert await known(client) == ["Non vivo più a Roma, sono di Torino adesso", "Mi piace il tè"]
