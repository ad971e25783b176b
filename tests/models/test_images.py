"""Images of results go to a model that takes them, in the turn that made them, and are learned to be left out."""

import base64
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

from segue.agent.render_messages import assistant_message, image_message
from segue.agent.turn_calls import MAX_IMAGES_BYTES
from segue.around.replay.request_rules import invalid_history
from segue.config import Settings
from segue.domain.session import RequestedCall
from segue.models.normal_form import NO_IMAGES, WireForm, normal_form, takes_images
from segue.tools.normalize import BinaryPart
from tests.support.plans import planned
from tests.support.provider import Provider, calls, fails, says
from tests.support.results import use_toolbox
from tests.support.service import running
from tests.support.sweeps import first
from tests.support.toolbox import PIXEL

URL = f"data:image/png;base64,{PIXEL}"
PHOTO = ("photo", {"of": "Rossi"})


@pytest.fixture
def settings(settings: Settings) -> Settings:
    use_toolbox(settings)
    return settings.model_copy(update={"llm_model": "gpt-4o"})


def images(provider: Provider, request: int = -1) -> list[str]:
    """The images in a request, in order; only the user's messages may have any."""
    parts = (part for message in provider.requests[request]["messages"] for part in _parts_of(message))
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def _parts_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if message["role"] == "user" and isinstance(content, list) else []


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_an_image_is_shown_behind_its_result_in_its_turn_only(
    settings: Settings, provider: Provider, *, stream: bool
) -> None:
    async with running(settings) as client:
        session = await client.new_session()
        provider.will(calls(PHOTO), calls(("echo", {"n": 1})), says("A pixel."), says("It was a pixel."))
        response = await client.send(session, "What does the photo show?", stream=stream)
        assert response.status_code == 200
        roles = [message["role"] for message in provider.requests[1]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        await client.chat(session, "And what was it?")
    assert [images(provider, request) for request in range(4)] == [[], [URL], [URL], []]
    assert all(PIXEL not in str(message) for message in provider.messages(role="tool"))


async def test_a_plan_shows_the_images_of_its_steps(settings: Settings, provider: Provider) -> None:
    steps = [
        {"id": 1, "description": "Load the photo", "tool": "photo", "args": {"of": "Rossi"}},
        {"id": 2, "description": "Say what it shows", "tool": None},
    ]
    async with running(settings) as client:
        session = await client.new_session()
        provider.will(planned(steps), says("A pixel."), says("The photo shows a pixel."))
        await client.chat(session, "Load the photo first, then say what it shows.")
    assert [images(provider, request) for request in range(3)] == [[], [URL], [URL]]


async def test_a_model_that_is_not_known_to_take_images_is_told_their_type_and_size(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings.model_copy(update={"llm_model": "scripted"})) as client:
        provider.will(calls(PHOTO), says("I cannot see it."))
        await client.chat(await client.new_session(), "What does the photo show?")
    assert images(provider) == []
    assert '"mime_type":"image/png","part":0,"size_bytes":70' in provider.messages(role="tool")[-1]["content"]


@pytest.mark.parametrize(
    ("status", "said", "again"),
    first(
        2,
        [
            (400, "Invalid content type. image_url is only supported by certain models.", []),
            (404, "No endpoints found that support image input", []),
            (500, "image input is not supported - hint: you may need to provide the mmproj", []),
            (422, "unknown variant `image_url`, expected `text`", []),
            (400, "Could not process image", [URL]),
        ],
    ),
)
async def test_an_endpoint_that_refuses_images_gets_none_and_none_again(
    settings: Settings, provider: Provider, status: int, said: str, again: list[str]
) -> None:
    refused = fails(status, body=f'{{"error": {{"message": "{said}"}}}}')
    async with running(settings) as client:
        for _ in range(2):
            provider.will(calls(PHOTO), *([refused] if again or not provider.requests else []), says("done"))
            await client.chat(await client.new_session(), "What does the photo show?")
    assert (images(provider, 1), images(provider, 2)) == ([URL], [])
    assert images(provider, 4) == again
    [shown] = [message["content"] for message in provider.messages(2, role="user") if NO_IMAGES in message["content"]]
    assert shown.startswith("Images in the result of call_")


async def test_a_refusal_for_another_reason_is_told(settings: Settings, provider: Provider) -> None:
    async with running(settings) as client:
        bad = fails(400, body='{"error": {"message": "The request is bad."}}')
        provider.will(calls(PHOTO), bad, bad)
        session = await client.new_session()
        await client.chat(session, "What does the photo show?")
        [turn] = await client.turns(session)
    assert "The request is bad." in turn["error"]["detail"]


async def test_no_more_than_so_many_bytes_of_images_are_shown_in_a_turn(settings: Settings, provider: Provider) -> None:
    drawn = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(MAX_IMAGES_BYTES - 50)).decode()
    async with running(settings) as client:
        provider.will(calls(("drawing", {"n_bytes": MAX_IMAGES_BYTES - 50})), calls(PHOTO), says("done"))
        await client.chat(await client.new_session(), "What do they show?")
    assert [len(url) for url in images(provider)] == [len(f"data:image/png;base64,{drawn}")]


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (
            "gpt-4o-mini gpt-5.4 openai/o3 claude-sonnet-4-5 google/gemini-2.5-flash gemma-3-27b-it pixtral-12b-2409",
            True,
        ),
        ("Qwen/Qwen2.5-VL-7B llama-3.2-11b-vision llava Llama-4-Scout mistral-small-latest", True),
        ("gpt-3.5-turbo o3-mini o1-preview deepseek-chat qwen3 llama-3.3-70b gemma-3-1b-it mixtral", False),
        ("gpt-oss-120b offline scripted", False),
    ],
)
def test_the_models_that_take_images_are_known_by_name(names: str, *, known: bool) -> None:
    assert {name for name in names.split() if takes_images(name) is not known} == set()


def test_images_keep_the_history_valid_wherever_they_stand() -> None:
    request = RequestedCall("call_1", "photo", {})
    part = BinaryPart("image/png", PIXEL, "image/png")
    shown = image_message({"call_1": [part]})
    talk = [
        SystemMessage("You are."),
        HumanMessage("Look."),
        assistant_message("", [request]),
        ToolMessage("a photo", tool_call_id="call_1"),
        shown,
        SystemMessage("Answer now."),
        HumanMessage("Well?"),
    ]
    for form, with_images in ((WireForm(), False), (WireForm(), True), (WireForm(no_system_role=True), True)):
        for end in range(4, len(talk) + 1):
            sent = normal_form(talk[:end], form, with_images=with_images)
            roles = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
            wire = [{"role": roles[each.type], "content": each.content} for each in sent]
            assert (URL in str(wire)) == (with_images and end > 4)
            assert normal_form(sent, form, with_images=with_images) == sent
    assert invalid_history([{"role": "system", "content": "x"}, {"role": "user", "content": shown.content}]) is None
