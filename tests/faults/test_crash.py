"""kill -9 of every process in many turns at once, each at another place, and the loss of Redis; one fresh start."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import orjson
import pytest
from starlette.responses import Response

from segue.agent.prompts import in_own_words
from segue.models.untrusted import unfenced
from tests.support.patience import PATIENCE_S
from tests.support.plans import planned
from tests.support.provider import Provider, Reply, calls, raw, says
from tests.support.service import Client
from tests.support.site import Site

PLANS = ("primo", "secondo", "terzo", "quarto", "quinto")
ASKED = 5  # cases that stand before the model
STUCK = {
    "burn burnt",
    "stamp stamped",
    "paint painted",
    "engrave carved",
    "engrave quinto",
    "post posted",
    "get parallel",
    "look parallel",
    "burn parallel",
    "look steered",
    "look primo",
    "stamp secondo",
    "burn quarto",
}


@dataclass(slots=True)
class Silence:
    """A model that never answers, or not before everything stands where it is to be killed."""

    never: asyncio.Event = field(default_factory=asyncio.Event)
    moment: asyncio.Event = field(default_factory=asyncio.Event)
    by_all: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    def _count(self) -> None:
        self.asked += 1
        if self.asked == ASKED:
            self.by_all.set()

    async def for_ever(self, _: dict[str, Any]) -> Response:
        self._count()
        await self.never.wait()
        return says("too late")

    async def for_too_long(self, _: dict[str, Any]) -> Response:
        self._count()
        await self.moment.wait()
        return says("never stored")


@dataclass(frozen=True, slots=True)
class Cases:
    """The sessions that were cut off, each by the word its messages and its things are known by; the Redis keys that
    were left, and those of them without a TTL.
    """

    site: Site
    client: Client
    sessions: dict[str, str]
    left: list[str]
    everlasting: list[str]

    async def turns(self, word: str) -> list[dict[str, Any]]:
        return await self.client.turns(self.sessions[word])

    async def calls(self, word: str) -> dict[str, str]:
        """The status of each tool's one call."""
        items = (await self.client.get(f"/sessions/{self.sessions[word]}/tool-results"))["items"]
        made = {call["tool_name"].removeprefix("mcp_"): call["status"] for call in items}
        assert len(made) == len(items)
        return made

    def effects(self, word: str) -> list[str]:
        return [effect.partition(" ")[0] for effect in self.site.shelf.effects if word in effect]

    def told(self, word: str) -> list[str]:
        """What became of the calls, as the last request about them showed it."""
        results = [each for each in self.site.provider.about(word)[-1]["messages"] if each["role"] == "tool"]
        return [orjson.loads(unfenced(result["content"])).get("status", "whole") for result in results]

    def asked(self, word: str) -> list[bytes]:
        """The requests about it."""
        return [orjson.dumps(request) for request in self.site.provider.about(word)]

    def thought(self, word: str) -> str:
        """What came with the first calls, as it was sent back."""
        calling = [each for each in self.site.provider.about(word)[-1]["messages"] if each.get("tool_calls")]
        return str(calling[0]["reasoning_content"])

    async def are_unharmed(self, word: str) -> None:
        await self.site.is_unharmed(self.client, self.sessions[word])


def steps(word: str) -> list[dict[str, Any]]:
    """Four steps, the second of which needs a yes; the one that the word counts gets stuck, and of the last the second,
    whose tool has a check.
    """
    stuck = PLANS.index(word) + 1
    second = {2: "stamp_item", 5: "engrave_item"}.get(stuck, "delete_item")
    item = {"item_id": word}
    return [
        {"id": 1, "description": "Look", "tool": f"mcp_{'look_up' if stuck == 1 else 'get_item'}", "args": item},
        {
            "id": 2,
            "description": "Stamp",
            "tool": f"mcp_{second}",
            "args": item,
            "requires_confirmation": True,
        },
        {"id": 3, "description": "Write a note", "tool": None},
        {"id": 4, "description": "End", "tool": f"mcp_{'burn_item' if stuck == 4 else 'find_items'}", "args": item}
        | ({} if stuck == 4 else {"args": {"query": word}}),
    ]


def script_before(provider: Provider, silence: Silence) -> None:
    def call(word: str, *tools: str) -> None:
        answer = orjson.loads(calls(*((f"mcp_{tool}", {"item_id": word}) for tool in tools)).body)
        answer["choices"][0]["message"]["reasoning_content"] = f"Hm, {word}."
        provider.will_to(word, raw(answer))

    provider.will_to("silent", silence.for_ever)
    provider.will_to("queued", silence.for_ever)
    provider.will_to("answered", silence.for_too_long)
    call("burnt", "burn_item")
    call("stamped", "stamp_item")
    call("painted", "paint_item")
    call("carved", "engrave_item")
    call("posted", "post_item")
    call("parallel", "get_item", "look_up", "burn_item")
    call("steered", "look_up")
    for word in PLANS:
        provider.will_to(word, planned(steps(word)))
    provider.will_to("terzo", silence.for_ever)
    provider.will_to("quarto", says("The note."))


async def steer(client: Client, session: str, message: str) -> None:
    response = await client.send(session, message, on_busy="steer", background=True)
    assert response.status_code == 202, response.text


def steered_first(client: Client, session: str) -> Reply:
    async def answer(_: dict[str, Any]) -> Response:
        await steer(client, session, "And of what is said.")
        return calls(("mcp_get_item", {"item_id": "heard"}))

    return answer


def script_after(provider: Provider) -> None:
    again = calls(("mcp_burn_item", {"item_id": "burnt"}))
    provider.will_to("silent", says("Here after all."))
    provider.will_to("queued", says("one"), says("two"), says("three"))
    provider.will_to("answered", says("Answered again."))
    provider.will_to("burnt", again, says("Whether it burnt is unknown. Shall it be tried again?"))
    provider.will_to("stamped", says("Whether it was stamped is unknown."))
    provider.will_to("painted", says("Painted."))
    provider.will_to("carved", says("Carved."))
    provider.will_to("posted", says("Posted."))
    provider.will_to("quinto", says("The note."), says("All done."))
    provider.will_to("parallel", says("Two of three."))
    provider.will_to("steered", says("Steered."))
    provider.will_to("heard", says("Heard."))
    provider.will_to("secondo", says("Whether it was stamped is unknown."))
    provider.will_to("terzo", says("The note."), says("All done."))
    provider.will_to("quarto", says("Whether it burnt is unknown."))


async def started(client: Client, words: list[str]) -> tuple[dict[str, str], list[asyncio.Task[httpx2.Response]]]:
    """A session for each case and the request that will be cut off in it; of the plans the last three have been asked
    for, and what is cut off is the yes.
    """
    sessions = {word: await client.new_session() for word in words}
    await client.send(sessions["queued"], "queued first", background=True)
    asked = {word: f"The case of what is {word}" for word in words}
    asked |= {word: f"Look at {word}, then stamp it, after that write a note and finally end it" for word in PLANS}
    for word in PLANS[1:]:
        assert (await client.chat(sessions[word], asked[word]))["plan"]["status"] == "waiting"
        asked[word] = "yes"
    cut_off = [asyncio.create_task(post(client, sessions[word], asked[word], key=word)) for word in words]
    await client.send(sessions["queued"], "queued last", background=True)
    return sessions, cut_off


async def post(client: Client, session: str, message: str, *, key: str) -> httpx2.Response:
    headers = {"Idempotency-Key": key}
    return await client.http.post(f"/sessions/{session}/chat", json={"message": message}, headers=headers)


async def all_stand_where_they_are_killed(site: Site, sessions: dict[str, str], silence: Silence) -> None:
    await site.shelf.wait_for(*STUCK)
    async with asyncio.timeout(PATIENCE_S):
        await silence.by_all.wait()
    async with site.stores() as stores:
        ended = "SELECT count(*) > 0 FROM tool_calls WHERE session_id = $1 AND status = 'succeeded'"
        await stores.until(ended, sessions["parallel"])
        await stores.until("SELECT count(*) >= 3 FROM turns WHERE session_id = $1", sessions["queued"])


@pytest.fixture(scope="module")
def site(site: Site) -> Site:
    """Where a call that is stuck stays so until all are, however slow the machine is."""
    return replace(site, environment={**site.environment, "TOOL_TIMEOUT_S": "250"})


@pytest.fixture(scope="module")
async def cases(site: Site) -> AsyncIterator[Cases]:
    """Postgres is out of reach just before, so that what the model and the tools say last is heard but not stored."""
    assert not site.processes, "another process would take the turns over"
    silence = Silence()
    words = [
        "silent",
        "queued",
        "answered",
        "burnt",
        "stamped",
        "painted",
        "carved",
        "posted",
        "parallel",
        "steered",
        *PLANS,
    ]
    script_before(site.provider, silence)
    async with site.apart() as (accepts, works, client):
        sessions, cut_off = await started(client, words)
        sessions["heard"] = session = await client.new_session()
        site.provider.will_to("heard", steered_first(client, session), silence.for_ever)
        cut_off.append(asyncio.create_task(post(client, session, "The case of what is heard", key="heard")))
        await all_stand_where_they_are_killed(site, sessions, silence)
        await steer(client, sessions["steered"], "It is to be steered.")
        await site.postgres.begin("freezes")
        silence.moment.set()
        site.shelf.go.set()
        site.kill(accepts, works)
        for lost in await asyncio.gather(*cut_off, return_exceptions=True):
            assert isinstance(lost, httpx2.TransportError), lost
    await site.postgres.begin("hangs_up")
    await site.postgres.open()
    async with site.stores() as stores:
        left, everlasting = await stores.keys(""), await stores.everlasting()
        await stores.redis.flushall()
    script_after(site.provider)
    async with site.serving() as (_, client):
        for session in sessions.values():
            await client.ended(session)
        silence.never.set()
        yield Cases(site, client, sessions, left, everlasting)
    site.shelf.go.clear()


@pytest.mark.sweep
async def test_whatever_a_crash_leaves_in_redis_expires_the_queue_included(cases: Cases) -> None:
    assert {key.partition(":")[0] for key in cases.left} == {"segue"}
    assert cases.everlasting == []


@pytest.mark.parametrize(("word", "said"), [("silent", "Here after all."), ("answered", "Answered again.")])
async def test_a_turn_without_a_stored_answer_is_answered_and_its_key_finds_the_answer(
    cases: Cases, word: str, said: str
) -> None:
    [turn] = await cases.turns(word)
    assert (turn["status"], turn["attempts"]) == ("completed", 2)
    assert turn["answer"]["message"]["content"] == said
    again = await post(cases.client, cases.sessions[word], f"The case of what is {word}", key=word)
    assert again.json() == turn["answer"]
    assert [row["role"] for row in await cases.client.messages(cases.sessions[word])] == ["user", "assistant"]
    await cases.are_unharmed(word)


async def test_the_request_that_was_cut_off_is_asked_again_byte_for_byte(cases: Cases) -> None:
    first, again, *_ = cases.asked("silent")
    assert first == again


async def test_what_waited_behind_it_runs_after_it_in_order(cases: Cases) -> None:
    turns = await cases.turns("queued")
    assert [turn["answer"]["message"]["content"] for turn in turns] == ["one", "two", "three"]
    assert [turn["attempts"] for turn in turns] == [2, 1, 1]
    await cases.are_unharmed("queued")


@pytest.mark.parametrize("word", ["burnt", "stamped"])
async def test_an_effect_that_may_not_be_repeated_is_unknown_happens_once_and_the_user_is_told(
    cases: Cases, word: str
) -> None:
    [turn] = await cases.turns(word)
    assert "unknown" in turn["answer"]["message"]["content"]
    assert [call["status"] for call in turn["answer"]["tool_calls"]] == ["unknown"]
    assert list((await cases.calls(word)).values()) == ["unknown"]
    assert len(cases.effects(word)) == 1
    assert set(cases.told(word)) == {"unknown"}
    assert cases.thought(word) == f"Hm, {word}."
    rows = await cases.client.messages(cases.sessions[word])
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
    await cases.are_unharmed(word)


async def test_an_effect_that_may_be_repeated_is_and_its_call_stays_one(cases: Cases) -> None:
    [turn] = await cases.turns("painted")
    assert turn["answer"]["message"]["content"] == "Painted."
    assert await cases.calls("painted") == {"paint_item": "succeeded"}
    assert cases.effects("painted") == ["paint", "paint"]
    await cases.are_unharmed("painted")


async def test_an_effect_whose_tool_has_a_check_is_settled_before_the_model_is_asked_and_happens_once(
    cases: Cases,
) -> None:
    [turn] = await cases.turns("carved")

    assert turn["answer"]["message"]["content"] == "Carved."
    checked, carved = (await cases.client.get(f"/sessions/{cases.sessions['carved']}/tool-results"))["items"]
    assert (carved["status"], carved["settled_by"]) == ("succeeded", checked["tool_call_id"])
    assert (checked["tool_name"], checked["status"], checked["settled_by"]) == ("mcp_engraving_of", "succeeded", None)
    assert cases.effects("carved") == ["engrave", "check"]
    assert len(cases.asked("carved")) == 2
    assert cases.told("carved") == ["whole"]
    await cases.are_unharmed("carved")


async def test_a_tool_that_takes_a_key_gets_the_id_of_the_call_and_the_same_when_it_runs_again(cases: Cases) -> None:
    [turn] = await cases.turns("posted")
    [call] = turn["answer"]["tool_calls"]
    assert (call["status"], call["args"]) == ("succeeded", {"item_id": "posted"})
    assert cases.site.shelf.posted == {call["tool_call_id"]: ["posted", "posted"]}
    offered = {each["function"]["name"]: each["function"] for each in cases.site.provider.about("posted")[0]["tools"]}
    assert offered["mcp_post_item"]["parameters"]["properties"].keys() == {"item_id"}
    await cases.are_unharmed("posted")


async def test_a_plan_killed_in_a_step_that_a_check_settles_goes_on(cases: Cases) -> None:
    turn = (await cases.turns("quinto"))[1]
    assert [step["status"] for step in turn["answer"]["plan"]["steps"]] == ["complete"] * 4
    assert cases.effects("quinto") == ["get", "engrave", "check"]
    await cases.are_unharmed("quinto")


async def test_of_three_parallel_calls_one_stays_done_one_runs_again_and_one_is_unknown(cases: Cases) -> None:
    [turn] = await cases.turns("parallel")
    assert turn["answer"]["message"]["content"] == "Two of three."
    assert await cases.calls("parallel") == {"get_item": "succeeded", "look_up": "succeeded", "burn_item": "unknown"}
    assert sorted(cases.effects("parallel")) == ["burn", "get", "look", "look"]
    assert sorted(cases.told("parallel")) == ["unknown", "whole", "whole"]
    await cases.are_unharmed("parallel")


async def test_a_plan_killed_in_a_step_that_reads_does_it_again_and_asks_for_the_next(cases: Cases) -> None:
    [turn] = await cases.turns("primo")
    assert [step["status"] for step in turn["answer"]["plan"]["steps"]] == ["complete", "waiting", "pending", "pending"]
    cases.site.provider.will_to("primo", says("The note."), says("All done."))
    answer = await cases.client.chat(cases.sessions["primo"], "yes")
    assert answer["plan"]["status"] == "completed"
    assert cases.effects("primo") == ["look", "look", "delete"]
    await cases.are_unharmed("primo")


async def test_a_plan_killed_in_an_approved_step_does_not_know_and_does_not_go_on(cases: Cases) -> None:
    turn = (await cases.turns("secondo"))[1]
    assert [step["status"] for step in turn["answer"]["plan"]["steps"]] == ["complete", "unknown", "skipped", "skipped"]
    assert turn["answer"]["plan"]["status"] == "failed"
    cases.site.provider.will_to("secondo", says("There is nothing to go on with."))
    assert (await cases.client.chat(cases.sessions["secondo"], "yes"))["plan"] is None
    assert cases.effects("secondo") == ["get", "stamp"]
    await cases.are_unharmed("secondo")


async def test_a_plan_killed_in_a_step_of_words_goes_on_with_the_yes_it_had(cases: Cases) -> None:
    turn = (await cases.turns("terzo"))[1]
    assert turn["answer"]["plan"]["status"] == "completed"
    assert turn["answer"]["message"]["content"] == "All done."
    assert cases.effects("terzo") == ["get", "delete"]
    await cases.are_unharmed("terzo")


async def test_a_plan_killed_in_its_last_step_does_not_know_and_keeps_what_it_had_done(cases: Cases) -> None:
    turn = (await cases.turns("quarto"))[1]
    assert [step["status"] for step in turn["answer"]["plan"]["steps"]] == ["complete"] * 3 + ["unknown"]
    assert cases.effects("quarto") == ["get", "delete", "burn"]
    await cases.are_unharmed("quarto")


@pytest.mark.parametrize(
    ("word", "came", "effects"),
    [("steered", "It is to be steered.", ["look", "look"]), ("heard", "And of what is said.", ["get"])],
)
async def test_what_was_said_to_a_turn_is_read_once_whether_it_was_killed_before_or_after_that(
    cases: Cases, word: str, came: str, effects: list[str]
) -> None:
    [turn] = await cases.turns(word)
    assert turn["answer"]["message"]["content"] == f"{word.title()}."
    asked = [in_own_words(str(each["content"])) for each in cases.site.provider.about(word)[-1]["messages"]]
    assert asked.count(came) == 1
    rows = await cases.client.messages(cases.sessions[word])
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "user", "assistant"]
    assert (rows[3]["content"], rows[3]["metadata"]) == (came, {"steered": True})
    assert cases.effects(word) == effects
    await cases.are_unharmed(word)
