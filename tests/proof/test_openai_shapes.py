"""What the doors for OpenAI's clients answer, held strictly against the types of OpenAI's own SDK, which itself takes
any JSON.

CI holds a conversation in each way against them; `make proof-openai` all that the tests of the doors hear.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import Conversation, ConversationDeletedResource
from openai.types.conversations.conversation_item import ConversationItem
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item import ResponseItem
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter, ValidationError

from tests.support.openai_client import RECORDS, openai_client
from tests.support.provider import Provider, calls, says
from tests.support.service import Client

HEARD = os.environ.get("OPENAI_HEARD", "")
[EVENTS, *_] = get_args(ResponseStreamEvent)
TYPES: dict[str, Any] = {
    "chat.completion": ChatCompletion,
    "chat.completion.chunk": ChatCompletionChunk,
    "conversation": Conversation,
    "conversation.deleted": ConversationDeletedResource,
    "model": Model,
    "response": Response,
    **{get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(EVENTS)},
}
ITEMS = {"/v1/conversations/": ConversationItem, "/v1/responses/": ResponseItem}
UNTYPED = ("response.deleted",)  # the SDK returns None
EFFECTS = (
    ("ChatCompletion", "effects"),
    ("ChatCompletionChunk", "effects"),
    ("Response", "effects"),
    ("ResponseCompletedEvent", "response.effects"),
)
OURS = (  # what clients are promised beside OpenAI's own: docs/proof.md
    "Model has no name",
    "Model has no description",
    "ChatCompletionChunk has no choices.delta.reasoning_content",
    *(f"{each} has no {name}" for each, name in EFFECTS),
    "error.code",  # of a response that failed: ours, as everywhere
)


def shapes(record: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The type and the JSON of each object in an answer, a list's one by one."""
    if record["streamed"]:
        frames = record["body"].split("\n\n")[:-1]
        lines = [line.removeprefix("data: ") for frame in frames for line in frame.split("\n") if line[:6] == "data: "]
        yield from (typed(json.loads(line)) for line in lines if line != "[DONE]")
    elif (body := json.loads(record["body"])).get("object") == "list":
        item = next((of for path, of in ITEMS.items() if record["path"].startswith(path)), Model)
        yield from ((item, each) for each in body["data"])
    elif body.get("object") not in UNTYPED:
        yield typed(body)


def typed(body: dict[str, Any]) -> tuple[Any, Any]:
    if isinstance(body.get("error"), dict) and "object" not in body:
        return ErrorObject, body["error"]
    return TYPES[body.get("object") or body["type"]], body


def faults(record: dict[str, Any], seen: Counter[str]) -> Iterator[str]:
    for of, body in shapes(record):
        name = of.__name__ if of in TYPES.values() or of is ErrorObject else "items"
        seen[name] += 1
        try:
            read = TypeAdapter(of).validate_json(json.dumps(body), strict=True)
        except ValidationError as error:
            wrong = [f"{name} {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        else:
            wrong = [f"{name} has no {extra}" for extra in extras(read)]
        yield from (fault for fault in wrong if not any(known in fault for known in OURS))


def extras(read: Any, path: str = "") -> Iterator[str]:
    """The members that the SDK's types do not know, at any depth."""
    if isinstance(read, BaseModel):
        yield from (f"{path}{name}" for name in read.model_extra or ())
        for name in type(read).model_fields:
            yield from extras(getattr(read, name), f"{path}{name}.")
    elif isinstance(read, list):
        for each in read:
            yield from extras(each, path)


def heard(file: Path) -> tuple[list[str], Counter[str]]:
    seen = Counter[str]()
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    found = [f"{fault}: {record['path']}" for record in records for fault in faults(record, seen)]
    return sorted(set(found)), seen


async def test_what_each_door_of_openai_answers_has_the_types_of_its_sdk(
    client: Client, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORDS, str(tmp_path / "heard"))
    asking: Any = {"model": "segue", "messages": [{"role": "user", "content": "What time is it?"}]}
    responding: Any = {"model": "segue", "input": "What time is it?"}
    for _ in range(4):
        provider.will(calls(("current_time", {})), says("Noon."))
    async with openai_client(client) as ai:
        await ai.chat.completions.create(**asking, extra_headers={"X-Session-Id": "a"})
        chunks = await ai.chat.completions.create(
            **asking, extra_headers={"X-Session-Id": "b"}, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk async for chunk in chunks]
        made = await ai.responses.create(**responding, store=True)
        events = await ai.responses.create(**responding, previous_response_id=made.id, stream=True)
        assert [event async for event in events]
        await ai.responses.input_items.list(made.id)
        await ai.models.list()
    found, seen = heard(tmp_path / "heard")
    assert not found, "\n".join(found)
    assert seen.keys() >= {"ChatCompletion", "ChatCompletionChunk", "Response", "ResponseCompletedEvent", "Model"}


def test_a_shape_that_is_wrong_or_has_more_than_the_sdk_knows_is_told() -> None:
    model = {"id": "segue", "object": "model", "created": "1", "owned_by": "segue", "nice": True, "name": "Segue"}
    record = {"path": "/v1/models/segue", "streamed": False, "body": json.dumps(model)}
    [wrong] = faults(record, Counter())
    assert "created" in wrong
    [more] = faults({**record, "body": json.dumps({**model, "created": 1})}, Counter())
    assert more.endswith("Model has no nice")


@pytest.mark.skipif(not HEARD, reason="it reads what the tests of the doors heard: make proof-openai")
def test_all_that_the_doors_of_openai_answer_has_the_types_of_its_sdk(capsys: pytest.CaptureFixture[str]) -> None:
    found, seen = heard(Path(HEARD))
    with capsys.disabled():
        print(f"\n{dict(seen)}")  # noqa: T201 (the table)
    assert not found, "\n".join(found)
