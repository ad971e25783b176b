"""How sure a yes is: what only reads goes on with any, what changes the world takes a strong one."""

import json

import pytest

from segue.config import Settings
from tests.support.plans import ASK, THREE_STEPS, deletion, offered, planned, reads
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.sweeps import first

SEVERAL = {
    "it": ("Cerca le cose di Rossi, poi leggi la prima e infine cancellala", "perfetto", "sì, cancellala",
           "Prossimo passo"),
    "en": ("Find the things from Rossi, then read the first and finally delete it", "great", "yes, delete it",
           "Next step"),
    "zh": ("先搜索罗西的东西，然后阅读第一个，最后把它删除", "太棒了", "好的，删除吧", "下一步"),
    "ar": ("ابحث عن أغراض روسي ثم اقرأ الأول وأخيرا احذفه", "ممتاز", "نعم، احذفه", "الخطوة التالية"),
}  # fmt: skip


@pytest.mark.parametrize("language", first(1, SEVERAL))
async def test_praise_is_asked_about_in_one_line_and_a_yes_that_repeats_the_step_does_it(
    language: str, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    message, praise, yes, next_step = SEVERAL[language]
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    async with running(settings) as client:
        session, asked = await offered(client, provider, THREE_STEPS, message)
        assert next_step in asked["message"]["content"]
    async with running(settings) as client:
        for _ in range(2):
            answer = await client.chat(session, praise)
            line = answer["message"]["content"]
            assert (next_step in line, "\n" in line, line.count("`item_id: itm-1`")) == (True, False, 1)
            read = answer["acknowledgement"]
            assert (read["verdict"], read["strength"], read["rule"]) == ("confirm", "weak", "praise")
            assert answer["plan"]["status"] == "waiting"
    async with running(settings) as client:
        provider.will(says("Fatto."))
        answer = await client.chat(session, yes)
    assert (answer["acknowledgement"]["strength"], answer["plan"]["status"]) == ("strong", "completed")
    assert shelf.effects == ["get itm-1", "delete itm-1"]


async def test_what_a_model_reads_as_a_yes_is_a_weak_one(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(says('{"verdict": "confirm"}'))
    answer = await client.chat(session, "muoviti dunque coraggiosamente")
    read = answer["acknowledgement"]
    assert (read["verdict"], read["strength"], read["rule"]) == ("confirm", "weak", "model_confirm")
    assert (answer["plan"]["status"], effects) == ("waiting", [])


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("reply", ["that was great", "è stato utile, grazie", '"sì"', "he said yes, do it"])
async def test_what_is_never_a_yes_is_not_read_by_a_model_either(
    reply: str, client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(says("Glad to hear."))
    answer = await client.chat(session, reply)
    assert (answer["acknowledgement"]["verdict"], effects) == ("none", [])


async def test_a_weak_yes_goes_on_with_what_only_reads_and_asks_before_what_writes(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    read = {"id": 1, "description": "Read it", "tool": "mcp_get_item", "args": {"item_id": "itm-1"}}
    write = {"id": 2, "description": "Set it aside", "tool": "mcp_set_aside", "args": {"item_id": "itm-1"}}
    steps = [{**read, "requires_confirmation": True}, write]
    session, _ = await offered(client, provider, steps)
    answer = await client.chat(session, "perfect")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "waiting"]
    assert effects == ["get itm-1"]
    provider.will(says("Done."))
    await client.chat(session, "yes")
    assert effects == ["get itm-1", "set aside itm-1"]


async def test_a_weak_yes_to_what_the_model_proposed_holds_its_writing_call(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    provider.will(says("Metto da parte itm-1?"), calls(("mcp_set_aside", {"item_id": "itm-1"})), says("Fatto."))
    session = await client.new_session()
    await client.chat(session, "Non voglio perdere itm-1")
    answer = await client.chat(session, "ottimo")
    assert (answer["plan"]["status"], effects) == ("waiting", [])
    assert "Prossimo passo: Metti da parte" in answer["message"]["content"]
    await client.chat(session, "sì")
    assert effects == ["set aside itm-1"]


async def test_a_cancel_inside_an_ok_rejects_a_step_that_deletes(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1)] * 2)
    answer = await client.chat(session, "ok, annulla")
    assert (answer["acknowledgement"]["verdict"], answer["plan"]["status"], effects) == ("reject", "cancelled", [])


async def test_a_yes_with_another_action_or_another_id_changes_the_plan(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    for reply in ("sì, inviala pure", "yes, delete itm-2"):
        provider.will(reads("amend"), planned([deletion(3)]))
        answer = await client.chat(session, reply)
        assert (answer["acknowledgement"]["verdict"], answer["plan"]["status"], effects) == ("amend", "waiting", [])
    provider.will(says("Gone."))
    await client.chat(session, "yes, delete itm-3")
    assert effects == ["delete itm-3"]


async def test_a_yes_to_what_the_model_asked_in_words_counts_for_exactly_that_call(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    provider.will(says("Vuoi che cancelli itm-1?"), calls(("mcp_delete_item", {"item_id": "itm-1"})), says("Fatto."))
    session = await client.new_session()
    await client.chat(session, "Togli itm-1 dallo scaffale")
    answer = await client.chat(session, "sì, grazie")
    assert (answer["message"]["content"], answer["plan"], effects) == ("Fatto.", None, ["delete itm-1"])


async def test_a_yes_to_what_the_model_asked_in_words_counts_for_no_other_call(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    deletions = [("mcp_delete_item", {"item_id": f"itm-{number}"}) for number in (2, 1)]
    provider.will(says("Vuoi che cancelli itm-1?"), calls(*deletions))
    session = await client.new_session()
    await client.chat(session, "Togli itm-1 dallo scaffale")
    answer = await client.chat(session, "sì, grazie")
    assert effects == ["delete itm-1"]
    [step] = answer["plan"]["steps"]
    assert (step["status"], step["args"], step["description"]) == ("waiting", {"item_id": "itm-2"}, "delete item")
    assert answer["message"]["content"].startswith("Non mostrato prima: `item_id: itm-2`\n\n`mcp_delete_item`\n\n")


async def test_no_yes_to_the_models_words_runs_a_tool_that_always_asks(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    server = {"url": shelf.url, "confirm": {"delete_item": "always_ask"}}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": server}}))
    async with running(settings) as client:
        provider.will(says("Vuoi che cancelli itm-1?"), calls(("mcp_delete_item", {"item_id": "itm-1"})))
        session = await client.new_session()
        await client.chat(session, "Togli itm-1 dallo scaffale")
        asked = await client.chat(session, "sì, grazie")
        assert (asked["plan"]["status"], shelf.effects) == ("waiting", [])
        provider.will(says("Fatto."))
        await client.chat(session, "sì, grazie")
    assert shelf.effects == ["delete itm-1"]


async def test_praise_of_an_answer_that_asked_for_nothing_orders_nothing(client: Client, provider: Provider) -> None:
    provider.will(says("Ci sono tre cose."), says("Grazie!"))
    session = await client.new_session()
    await client.chat(session, "Quante cose ci sono?")
    await client.chat(session, "perfetto")
    assert "Do now what you last proposed" not in provider.notes()


async def test_a_plan_whose_place_another_takes_is_said_to_be_superseded(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-3"})))
    answer = await client.chat(
        session, "Lascia un momento da parte queste due cose, perché adesso mi serve che tu tolga di mezzo la terza"
    )
    said = answer["message"]["content"]
    assert (f"«{ASK}» è stato sostituito" in said, "aspetta ancora" in said, effects) == (True, False, [])
    plans = (await client.http.get(f"/sessions/{session}/plans")).json()["items"]
    assert [plan["status"] for plan in plans] == ["waiting", "superseded"]
