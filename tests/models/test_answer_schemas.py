"""Answers that Segue reads: held to a schema where an endpoint takes one, and read the same way where it does not."""

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from starlette.responses import Response

from segue.config import Settings
from segue.models.reply import FACTS, PLAN, READING, AnswerSchema
from segue.plans.plan_parser import parse_plan
from tests.support.facts import all_taken_in, fact, known, notes
from tests.support.plans import planned
from tests.support.provider import GZIP, OpenModel, Provider, fails, packed, raw, says
from tests.support.service import running

ASKED = [SystemMessage("Answer."), HumanMessage("What is it?")]
STEP = {"id": 1, "description": "Look", "tool": "current_time", "args": "{}", "requires_confirmation": True}


def objects_in(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects_in(part)


@pytest.mark.parametrize("schema", [PLAN, READING, FACTS], ids=lambda schema: schema["name"])
def test_a_schema_is_one_that_strict_endpoints_take(schema: AnswerSchema) -> None:
    assert (schema["strict"], schema["schema"]["type"]) == (True, "object")
    for each in objects_in(schema["schema"]):
        assert (each["required"], each["additionalProperties"]) == (list(each["properties"]), False)


ARGS = {"id": 2, "from": {"$from": 1, "path": "items[0]"}}


@pytest.mark.parametrize(
    ("written", "read"),
    [(json.dumps(ARGS), ARGS), ('\n{"id": 2,}', {"id": 2}), ("null", None), ("", None)],
)
def test_arguments_may_come_as_the_text_of_an_object(written: str, read: dict[str, Any] | None) -> None:
    steps = [{**STEP, "id": number, "args": args} for number, args in ((1, "{}"), (2, written))]
    assert [step.args for step in parse_plan(json.dumps({"steps": steps}), tools=["current_time"])] == [{}, read]


@pytest.mark.parametrize("written", ["id=2", "[1]", "{" * 3000, '{"id": ' * 80 + "1" + "}" * 80])
def test_arguments_that_are_the_text_of_no_object_make_the_plan_unusable(written: str) -> None:
    assert parse_plan(json.dumps({"steps": [{**STEP, "args": written}]}), tools=["current_time"]) == ()


@pytest.mark.parametrize(
    ("structured", "schemas"),
    [("auto", ["plan", None, "facts", "plan", "reading", "plan", None]), ("off", [None] * 7)],
)
async def test_plans_readings_and_facts_are_asked_for_by_a_schema_unless_it_is_off(
    settings: Settings, provider: Provider, structured: str, schemas: list[str | None]
) -> None:
    given = settings.model_copy(update={"planning": "always", "llm_structured_output": structured})
    provider.will(planned([]), says("Va bene."), notes(fact("L'utente è allergico alle noci")))
    async with running(given) as client:
        await client.chat(await client.new_session(), "Sono allergico alle noci, tienilo presente")
        await all_taken_in(given)
        assert await known(client) == ["L'utente è allergico alle noci"]
        provider.will(planned([STEP]), says('{"verdict": "question"}'), planned([]), says("It tells the time."))
        session = await client.new_session()
        assert (await client.chat(session, "What time is it?"))["plan"]["status"] == "waiting"
        answer = await client.chat(session, "what would that do")
        assert answer["message"]["content"].startswith("It tells the time.")
    formats = [request.get("response_format") for request in provider.requests]
    assert [each and each["json_schema"]["name"] for each in formats] == schemas


NO_PLANS = {
    "refuses": fails(500),
    "garbage": raw("<html>It works!</html>"),
    "without an end": Response(packed(2), headers=GZIP, media_type="application/json"),
}


async def test_what_comes_instead_of_a_plan_fails_its_turn_and_leaves_the_session_usable(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings.model_copy(update={"planning": "always"})) as client:
        session = await client.new_session()
        for kind, reply in NO_PLANS.items():
            provider.will(reply)
            assert (await client.send(session, "Look")).json()["code"] == "model_unavailable", kind
        provider.will(planned([]), says("Here I am."))
        assert (await client.chat(session, "hello?"))["message"]["content"] == "Here I am."


REFUSALS = {
    "by its name": "This response_format type is unavailable now",
    "in other words": "Structured outputs are not supported by this model.",
}


@pytest.mark.parametrize("said", REFUSALS.values(), ids=list(REFUSALS))
async def test_an_endpoint_that_takes_no_schema_is_asked_in_words_from_then_on(
    open_model: OpenModel, provider: Provider, said: str
) -> None:
    model = await open_model()
    provider.will(fails(400, body=orjson.dumps({"error": {"message": said}}).decode()), says("{}"), says("{}"))
    for _ in range(2):
        assert (await model.reply(ASKED, schema=READING)).text == "{}"
    assert ["response_format" in request for request in provider.requests] == [True, False, False]


async def test_a_refusal_that_has_another_reason_does_not_cost_the_schema(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model()
    provider.will(says("{}"), fails(400, body='{"error": {"message": "maximum context length is 8"}}'), says("{}"))
    await model.reply(ASKED, schema=READING)
    with pytest.raises(Exception, match="model_unavailable"):
        await model.reply(ASKED, schema=READING)
    await model.reply(ASKED, schema=READING)
    assert all("response_format" in request for request in provider.requests)
