"""What of a user's facts reaches the model: found by words in any language, and by meaning where embeddings work."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest
from pydantic import SecretStr
from starlette.responses import Response

from segue.agent.prompts import TEXTS
from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from segue.db.engine import Database
from segue.domain.identity import LOCAL_USER
from segue.domain.ids import utc_now
from segue.domain.session import NewFact
from segue.memory import fact_cues, fact_store
from segue.memory.long_term import EMBEDDED_AT_ONCE, LongTermMemory
from segue.models.embeddings import openai_embedder
from segue.turns.jobs.learn_facts import cancel_extraction
from segue.users.limits import NO_LIMITS, Limits
from segue.users.usage import Books
from tests.support.facts import all_taken_in, fact, known, notes, tell
from tests.support.identity import new_key, speaking
from tests.support.patience import PATIENCE_S
from tests.support.provider import EMBEDDED_TOKENS, GZIP, Provider, fails, fence_after, packed, raw, says
from tests.support.service import Client, running
from tests.support.stores import Stores, looking_into, named, plain
from tests.support.sweeps import first

pytestmark = pytest.mark.usefixtures("long_leases")

ABOUT = {
    "sea": ("sea", "sail", "boat"),
    "food": ("food", "eat", "fish", "peanut", "dinner"),
    "work": ("work", "job", "office"),
}
SMALL = 100  # tokens: of more than a handful of facts the best are given
NOISE = [f"Fact number {number} about nothing in particular" for number in range(20)]


async def by_meaning(text: str) -> Response | list[float]:
    """A vector that only knows what a text is about."""
    return [0.01, *(1.0 if any(word in text.lower() for word in words) else 0.0 for words in ABOUT.values())]


def embedding(settings: Settings, model: str = "embedder") -> Settings:
    return settings.model_copy(update={"embedding_model": model, "turn_lease_s": 1.0, "fact_token_budget": SMALL})


async def embedded(settings: Settings, model: str) -> None:
    """Returns once every fact has an embedding of this model."""
    async with looking_into(settings) as stores:
        await stores.until("SELECT count(*) = 0 FROM memories WHERE embedding_model IS DISTINCT FROM $1", model)


async def recalled(client: Client, provider: Provider, message: str) -> list[str]:
    """The lines of facts in the prompt of a message."""
    provider.will(says("Hm."))
    answer = await client.chat(await client.new_session(), message)
    lines = fence_after(TEXTS["facts"], provider.notes()).splitlines()
    assert answer["memory_used"]["long_term"] == len(lines)
    return lines


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("content", "question"),
    first(
        2,
        [
            ("Preferisco le riunioni di martedì", "In che giorno fissiamo una riunione?"),
            ("我最喜欢喝绿茶", "给我推荐一种绿茶"),
            ("我的猫叫小白", "猫？"),
            ("الاجتماع مع السيد روسي يوم الثلاثاء", "متى اجتماع روسي؟"),
            ("My flights always go through Zurich", "Book me a flight"),
            ("Mes réunions sont toujours le mardi", "Quand est ma réunion ?"),
            ("Мой кот боится пылесоса", "Что делать с котом?"),
            ("会議は火曜日です", "会議はいつですか"),
            ("내 회의는 화요일입니다", "회의가 언제예요?"),
            ("मेरी बैठक मंगलवार को है", "बैठक कब है?"),
        ],
    ),
)
async def test_a_question_finds_the_fact_in_its_language(
    settings: Settings, provider: Provider, content: str, question: str
) -> None:
    async with running(settings.model_copy(update={"fact_token_budget": SMALL})) as client:
        for each in (content, *NOISE):
            await tell(client, each)
        assert content in (await recalled(client, provider, question))[0]
        assert content not in (await recalled(client, provider, "¿?"))[0]


async def test_all_facts_are_given_whatever_the_message_is_about_oldest_first(
    client: Client, provider: Provider
) -> None:
    told = ["My name is Anna", "Sono allergica alle noci", *(f"My boat number {number}" for number in range(30))]
    for content in told:
        await tell(client, content)
    for message in ("Cosa posso mangiare a cena?", "Who am I?", "Where is the boat?"):
        lines = await recalled(client, provider, message)
        assert [json.loads(line)["fact"] for line in lines] == told


@pytest.mark.parametrize(
    "vital",
    first(
        2,
        [
            "Sono allergica alle noci",
            "我对花生过敏",
            "لدي حساسية من المكسرات",
            "I take insulin twice a day",
            "Soy alérgico a los cacahuetes",
            "Ich habe Zöliakie",
            "У меня диабет",
            "ピーナッツアレルギーがあります",
            "땅콩 알레르기가 있어요",
            "मुझे मूंगफली से एलर्जी है",
        ],
    ),
)
async def test_of_more_facts_than_fit_health_is_given_then_what_the_message_is_about_then_the_newest(
    settings: Settings, provider: Provider, vital: str
) -> None:
    async with running(settings.model_copy(update={"fact_token_budget": 150})) as client:
        for content in (vital, "My boat is in Genoa", *(f"Tin number {number} is blue" for number in range(20))):
            await tell(client, content)
        lines = await recalled(client, provider, "Where is the boat?")
    given = [json.loads(line)["fact"] for line in lines]
    assert given[:2] == [vital, "My boat is in Genoa"]
    assert given[2:] == [f"Tin number {number} is blue" for number in range(20)][-len(given) + 2 :]
    assert 3 < len(given) < 10


async def test_a_fact_that_was_given_says_when_it_was_used(settings: Settings, provider: Provider) -> None:
    async with running(settings.model_copy(update={"turn_lease_s": 1.0})) as client:
        await tell(client, "My name is Anna", "personal_info")
        await recalled(client, provider, "hello")
        async with looking_into(settings) as stores:
            await stores.until("SELECT last_used_at FROM memories")


@pytest.fixture
async def embedding_client(settings: Settings, provider: Provider) -> AsyncIterator[Client]:
    provider.embedding = by_meaning
    async with running(embedding(settings)) as client:
        yield client


async def test_a_question_finds_a_fact_by_its_meaning(
    embedding_client: Client, provider: Provider, settings: Settings
) -> None:
    for content in ("I get sick of raw fish", "I sail on Sundays", *NOISE):
        await tell(embedding_client, content)
    await embedded(settings, "embedder")
    first, *_ = await recalled(embedding_client, provider, "What may be in my dinner?")
    assert "fish" in first
    assert (await known(embedding_client, query="boat"))[0] == "I sail on Sundays"


async def test_a_fact_that_is_corrected_while_it_is_embedded_is_found_by_what_it_says_now(
    embedding_client: Client, provider: Provider, settings: Settings
) -> None:
    asked, corrected = asyncio.Event(), asyncio.Event()

    async def slow(text: str) -> Response | list[float]:
        if "sail" in text:
            asked.set()
            await corrected.wait()
        return await by_meaning(text)

    provider.embedding = slow
    await tell(embedding_client, NOISE[0])
    memory_id = await tell(embedding_client, "I sail on Sundays")
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
    changed = await embedding_client.http.patch(f"/memories/{memory_id}", json={"content": "I get ill from peanuts"})
    assert changed.status_code == 200, changed.text
    corrected.set()
    await embedded(settings, "embedder")
    assert await known(embedding_client, query="dinner") == ["I get ill from peanuts", NOISE[0]]


async def test_facts_of_another_user_are_found_neither_by_words_nor_by_meaning(
    settings: Settings, provider: Provider
) -> None:
    provider.embedding = by_meaning
    private = embedding(settings).model_copy(update={"auth": "api_key"})
    async with (
        running(private) as service,
        speaking(service, await new_key(private, "ada")) as ada,
        speaking(service, await new_key(private, "bob")) as bob,
    ):
        await tell(ada, "I get ill from peanuts")
        await embedded(private, "embedder")
        for query in ("peanuts", "dinner"):
            assert (await known(ada, query=query), await known(bob, query=query)) == (["I get ill from peanuts"], [])


async def test_a_correction_supersedes_no_fact_of_another_user(client: Client, settings: Settings) -> None:
    meant = await tell(client, "I sail on Sundays")
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    async with database.transaction() as connection:
        wrong = NewFact("I sail on Mondays", "fact", supersedes=meant)
        await fact_store.add_fact(connection, "mallory", wrong, now=utc_now())
    assert await known(client) == ["I sail on Sundays"]
    async with database.transaction() as connection:
        await fact_store.add_fact(connection, LOCAL_USER, wrong, now=utc_now())
    assert await known(client) == ["I sail on Mondays"]
    await database.close()


async def test_a_fact_gives_way_to_one_that_says_all_of_it_and_not_to_one_that_is_much_like_it(
    embedding_client: Client, provider: Provider, settings: Settings
) -> None:
    session = await embedding_client.new_session()
    own, luca, anna = "I am allergic to peanuts", "Luca eats no peanuts", "Anna eats no peanuts"
    for content in (own, luca, anna, "My son is allergic to peanuts", f"{luca} and no fish"):
        provider.will(says("Noted."), notes(fact(content)))
        await embedding_client.chat(session, f"Remember that {content}")
        await all_taken_in(settings)
    assert await known(embedding_client) == [f"{luca} and no fish", "My son is allergic to peanuts", anna, own]


@pytest.mark.parametrize(
    ("fact", "text", "is_said"),
    [
        ("Luca eats no peanuts", "Luca eats no peanuts and no fish", True),
        ("Allergico alle noci", "Sono allergico alle noci e al pesce", True),
        ("Allergico alle noci", "Mia figlia è allergica alle noci", False),
        ("Allergico alle noci", "Mio figlio è allergico alle noci", False),
        ("我对花生过敏", "我对花生过敏，对虾也过敏", True),
        ("用户对花生过敏", "用户的女儿对花生过敏", False),
        ("عندي حساسية من الفول السوداني", "عندي حساسية من الفول السوداني ومن السمك", True),
        ("عندي حساسية من الفول السوداني", "ابنتي عندها حساسية من الفول السوداني", False),
        ("Anna gives Luca a lift", "Luca gives Anna a lift", False),
        ("My son is called Al", "My son is called Bo", False),
    ],
)
def test_a_text_says_all_of_a_fact_if_it_is_about_the_same(fact: str, text: str, *, is_said: bool) -> None:
    assert fact_cues.says_all_of(text, fact) is is_said


@asynccontextmanager
async def remembering(
    settings: Settings, **limits: Limits
) -> AsyncIterator[tuple[LongTermMemory, Callable[..., Awaitable[None]]]]:
    """A memory that embeds when it is told to, and what adds facts to it. Some owners have `limits`."""
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())

    async def add(*contents: str, owner: str = LOCAL_USER) -> None:
        async with database.transaction() as connection:
            for content in contents:
                await fact_store.add_fact(connection, owner, NewFact(content, "fact"), now=utc_now())

    books = Books(database, utc_now, lambda owner: limits.get(owner, NO_LIMITS))
    async with openai_embedder(embedding(settings), books, lambda _: None) as embedder:
        yield LongTermMemory(database, embedder, stop_learning=cancel_extraction), add
    await database.close()


async def test_an_endpoint_that_refuses_many_texts_at_once_and_one_for_good_embeds_all_others(
    settings: Settings, provider: Provider, stores: Stores
) -> None:
    async def refuses_one(text: str) -> Response | list[float]:
        return fails(413) if text == "poison" else await by_meaning(text)

    provider.embedding, provider.embeds_at_once = refuses_one, 3
    lacking = "SELECT array_agg(content) FROM memories WHERE embedding_model IS NULL"
    async with remembering(settings) as (memory, add):
        await add("poison", "I own a boat", *NOISE[:9])
        rounds = 0
        while await stores.database.fetchval(lacking) != ["poison"]:
            await memory.embed_missing()
            assert (rounds := rounds + 1) < 200  # they are drawn by lot: about twenty
        [found] = await memory.search((LOCAL_USER, ""), "Where can I sail?", now=utc_now(), limit=1)
    assert found.content == "I own a boat"


async def test_facts_told_after_a_while_without_any_are_embedded_together(
    settings: Settings, provider: Provider
) -> None:
    provider.embedding = by_meaning
    async with remembering(settings) as (memory, add):
        assert [await memory.embed_missing() for _ in range(3)] == [0, 0, 0]
        await add(*NOISE)
        assert await memory.embed_missing() == len(NOISE)


async def test_each_owner_pays_for_the_facts_that_are_embedded_and_those_of_one_at_a_cap_wait_for_themselves_alone(
    settings: Settings, provider: Provider, stores: Stores
) -> None:
    provider.embedding = by_meaning
    async with remembering(settings, abe=Limits(tokens_per_day=1)) as (memory, add):
        await add(*(f"This is {number} of many" for number in range(EMBEDDED_AT_ONCE)), "I own a boat", owner="abe")
        await add("I sail", "I eat fish", owner="ada")
        await add("I work", owner="bob")
        rounds = 0
        while len(provider.embedded) < 3:
            await memory.embed_missing()
            assert (rounds := rounds + 1) < 50  # they are drawn by lot
        [found] = await memory.search(("abe", ""), "Where is my boat?", now=utc_now(), limit=1)
    assert (sorted(provider.embedded), found.content) == (["I eat fish", "I sail", "I work"], "I own a boat")
    paid = await stores.database.fetch("SELECT owner, sum(input_tokens)::int FROM usage GROUP BY owner ORDER BY owner")
    assert [tuple(row) for row in paid] == [("ada", 2 * EMBEDDED_TOKENS), ("bob", EMBEDDED_TOKENS)]


OUTAGES: dict[str, Response | list[float]] = {
    "refuses": fails(500),
    "hangs": [1.0, 2.0],
    "nonsense": [],
    "a number that no row can hold": [1e300],
    "no number behind one": raw({"object": "list", "data": [{"index": 0, "embedding": [1.0, "NaN"]}]}),
    "html": raw("<html>It works!</html>"),
    "an answer without vectors": raw({"object": "list", "data": [{"index": 0}]}),
    "an answer without an end": Response(packed(30), headers=GZIP, media_type="application/json"),
}


@pytest.mark.parametrize(("outage", "given"), first(1, OUTAGES.items()), ids=list(OUTAGES))
async def test_where_embedding_fails_facts_are_found_by_their_words(
    settings: Settings, provider: Provider, outage: str, given: Response | list[float]
) -> None:
    never = asyncio.Event()

    async def broken(_: str) -> Response | list[float]:
        if outage == "hangs":
            await never.wait()
        return given

    provider.embedding = broken
    async with running(embedding(settings)) as client:
        for content in ("I sail on Sundays", *NOISE):
            await tell(client, content)
        assert "Sundays" in (await recalled(client, provider, "Where can I sail?"))[0]
        assert provider.embedded or outage == "hangs"
        never.set()


@pytest.mark.sweep
async def test_another_model_embeds_the_known_facts_anew_whatever_its_dimensions(
    settings: Settings, provider: Provider
) -> None:
    provider.embedding = by_meaning
    async with running(embedding(settings)) as client:
        await tell(client, "I get ill from peanuts")
        await embedded(settings, "embedder")

    async def longer(text: str) -> Response | list[float]:
        vector = await by_meaning(text)
        return [0.0, *vector] if isinstance(vector, list) else vector

    provider.embedding = longer
    async with running(embedding(settings, "another")) as client:
        await embedded(settings, "another")
        assert await known(client, query="dinner") == ["I get ill from peanuts"]


@pytest.mark.sweep  # where embedding fails facts are found in the same way
async def test_a_server_without_pgvector_finds_facts_by_their_words(
    servers: ServerUrls, settings: Settings, provider: Provider
) -> None:
    name = "without_vectors"
    admin = await asyncpg.connect(plain(named(servers.database_url, "postgres")))
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template1")
    bare = {"database_url": SecretStr(named(servers.database_url, name)), "migrate_on_start": True}
    try:
        async with running(embedding(settings.model_copy(update=bare))) as client:
            for content in ("I sail on Sundays", *NOISE):
                await tell(client, content)
            assert "Sundays" in (await recalled(client, provider, "Where can I sail?"))[0]
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()
    assert provider.embedded == []
