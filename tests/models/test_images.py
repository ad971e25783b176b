"""Images of results, and PDFs of the user's, go to a model that takes them, in the turn that they came in, and are
learned to be left out.
"""

import base64
from typing import Any

import orjson
import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

from segue.agent.render_messages import assistant_message, image_message
from segue.agent.turn_calls import MAX_IMAGES_BYTES
from segue.around.replay.request_rules import invalid_history
from segue.config import Settings
from segue.domain.session import RequestedCall
from segue.models.normal_form import MEDIA, NO_FILES, NO_IMAGES, WireForm, media_of, normal_form
from segue.tools.attachment_store import MAX_SHOWN_PAGES
from segue.tools.normalize import BinaryPart
from tests.support.files import PNG, pdf
from tests.support.plans import planned
from tests.support.provider import Provider, calls, completion, fails, says
from tests.support.results import use_toolbox
from tests.support.service import running
from tests.support.streams import streamed
from tests.support.sweeps import first
from tests.support.toolbox import PIXEL
from tests.support.uploads import uploaded

pytestmark = pytest.mark.in_turns

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
        {"id": 3, "description": "Look it up", "tool": "echo", "args": {"n": 1}},
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


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("status", "said", "again"),
    first(
        2,
        [
            (413, "Request Entity Too Large", [URL]),
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


@pytest.mark.sweep
async def test_no_more_than_so_many_bytes_of_images_are_shown_in_a_turn(settings: Settings, provider: Provider) -> None:
    drawn = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(MAX_IMAGES_BYTES - 50)).decode()
    async with running(settings) as client:
        provider.will(calls(("drawing", {"n_bytes": MAX_IMAGES_BYTES - 50})), calls(PHOTO), says("done"))
        await client.chat(await client.new_session(), "What do they show?")
    assert [len(url) for url in images(provider)] == [len(f"data:image/png;base64,{drawn}")]


RENT = pdf("The rent is 900 euros.")
DATA_URL = f"data:application/pdf;base64,{base64.b64encode(RENT).decode()}"


def pdfs(provider: Provider, request: int = -1) -> list[str]:
    parts = (part for message in provider.requests[request]["messages"] for part in _parts_of(message))
    return [part["file"]["file_data"] for part in parts if part["type"] == "file"]


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_pdf_goes_to_a_model_that_reads_it_in_its_turn_only_and_its_text_to_all(
    settings: Settings, provider: Provider, *, stream: bool
) -> None:
    async with running(settings.model_copy(update={"llm_pdf": "native"})) as client:
        session = await client.new_session()
        file = await uploaded(client, session, RENT, "rent.pdf")
        image = await uploaded(client, session, PNG)
        provider.will(calls(("echo", {"n": 1})), says("900 euros."), says("900, as I said."))
        sent = await client.send(session, "How much is it?", attachments=[file, image], stream=stream)
        assert sent.status_code == 200
        await client.chat(session, "Again?")
    assert [pdfs(provider, request) for request in range(3)] == [[DATA_URL], [DATA_URL], []]
    assert [len(images(provider, request)) for request in range(3)] == [1, 1, 0]
    [text] = [said["content"] for said in provider.messages(0, role="tool") if "900 euros" in said["content"]]
    assert "base64" not in text


async def test_a_pdf_is_text_for_an_endpoint_that_is_not_known_to_read_it_and_if_the_setting_says_so(
    settings: Settings, provider: Provider
) -> None:
    for setting in ("auto", "text"):
        async with running(settings.model_copy(update={"llm_pdf": setting})) as client:
            session = await client.new_session()
            file = await uploaded(client, session, RENT, "rent.pdf")
            provider.will(says("900 euros."))
            await client.chat(session, "How much is it?", attachments=[file])
        assert pdfs(provider) == []


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("status", "said", "again"),
    first(
        2,
        [
            (400, "Invalid Value: 'file'. This model does not support file content types.", []),
            (400, "The PDF specified was not valid.", [DATA_URL]),
            (400, "This model's maximum context length is 8192 tokens.", [DATA_URL]),
            (404, "No endpoints found that support file input", []),
            (422, "messages.1.content: input should be a valid string", []),
            (400, "A maximum of 100 PDF pages may be provided.", [DATA_URL]),
        ],
    ),
)
async def test_an_endpoint_that_refuses_a_pdf_is_asked_again_without_and_learned_from(
    settings: Settings, provider: Provider, status: int, said: str, again: list[str]
) -> None:
    refused = fails(status, body=orjson.dumps({"error": {"message": said}}).decode())
    async with running(settings.model_copy(update={"llm_pdf": "native"})) as client:
        for _ in range(2):
            session = await client.new_session()
            file = await uploaded(client, session, RENT)
            provider.will(*([refused] if again or not provider.requests else []), says("900 euros."))
            await client.chat(session, "How much is it?", attachments=[file])
    assert (pdfs(provider, 0), pdfs(provider, 1), pdfs(provider, 2)) == ([DATA_URL], [], again)
    assert NO_FILES in str(provider.requests[1])


@pytest.mark.sweep
async def test_more_than_so_many_pages_are_read_by_their_text(settings: Settings, provider: Provider) -> None:
    async with running(settings.model_copy(update={"llm_pdf": "native"})) as client:
        for pages, shown in ((MAX_SHOWN_PAGES, 1), (MAX_SHOWN_PAGES + 1, 0)):
            session = await client.new_session()
            file = await uploaded(client, session, pdf(*["A page."] * pages))
            provider.will(says("So many."))
            await client.chat(session, "How many pages?", attachments=[file])
            assert len(pdfs(provider)) == shown
        files = [await uploaded(client, session, pdf(*["A page."] * pages)) for pages in (20, 11, 10)]
        provider.will(says("So many."))
        await client.chat(session, "How many pages?", attachments=files)
        assert len(pdfs(provider)) == 2


PART = {"type": "image_url", "image_url": {"url": URL}}
MADE = {
    "beside the words": ({"role": "assistant", "content": "A pixel.", "images": [PART]}, "A pixel."),
    "without words": ({"role": "assistant", "content": "", "images": [PART, PART]}, "✓ make_image: image/png, 0.1 kB"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(("message", "words"), MADE.values(), ids=list(MADE))
async def test_an_image_that_a_model_makes_is_a_file_of_the_turn_and_never_text(
    settings: Settings, provider: Provider, message: dict[str, Any], words: str, *, stream: bool
) -> None:
    async with running(settings) as client:
        session = await client.new_session()
        provider.will(completion(message, "stop"), says("It is black."))
        if stream:
            sent = await streamed(client, session, "Draw a pixel.")
            assert PIXEL not in str(sent)
            answer = sent[-1].event["result"]
        else:
            answer = await client.chat(session, "Draw a pixel.")
        [call] = answer["tool_calls"]
        loaded = await client.http.get(f"/sessions/{session}/tool-results/{call['tool_call_id']}", params={"part": 0})
        await client.chat(session, "What colour is it?")
        rows = await client.messages(session)
    assert answer["message"]["content"] == words
    assert (call["tool_name"], call["metadata"]["summary"]) == ("make_image", "image/png, 0.1 kB")
    assert (loaded.status_code, loaded.headers["content-type"], loaded.content) == (200, "image/png", PNG)
    assert PIXEL not in str(rows) + str(provider.requests[1])
    assert call["tool_call_id"] in str(rows)


async def test_images_among_the_parts_of_an_answer_with_calls_are_stored_and_do_not_go_back_as_they_came(
    settings: Settings, provider: Provider
) -> None:
    noon = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    said = {"role": "assistant", "content": [thought, PART], "tool_calls": [noon]}
    provider.will(completion(said, "tool_calls"), says("There."))
    async with running(settings) as client:
        answer = await client.chat(await client.new_session(), "Draw a pixel, then echo.")
    assert [call["tool_name"] for call in answer["tool_calls"]] == ["make_image", "echo"]
    assert images(provider) == [URL]
    assert not any(PIXEL in str(each["content"]) for each in provider.messages(role="assistant"))


async def test_what_is_no_image_is_no_file(settings: Settings, provider: Provider) -> None:
    page = base64.b64encode(b"<script>alert(1)</script>" * 20).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{page}"}}
    provider.will(completion({"role": "assistant", "content": "There.", "images": [part]}, "stop"))
    async with running(settings) as client:
        answer = await client.chat(await client.new_session(), "Draw a pixel.")
    assert (answer["message"]["content"], answer["tool_calls"]) == ("There.", [])


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ("gpt-4o gpt-5.4 openai/o3 claude-3-5-sonnet claude-sonnet-4-5 google/gemini-2.5-flash", True),
        ("gpt-3.5-turbo o3-mini claude-3-haiku qwen3 gemma-3-27b-it llava pixtral-12b scripted", False),
    ],
)
def test_the_models_that_read_pdfs_are_known_by_name(names: str, *, known: bool) -> None:
    assert {name for name in names.split() if ("file" in media_of(name)) is not known} == set()


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
    assert {name for name in names.split() if ("image_url" in media_of(name)) is not known} == set()


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
    for form, media in ((WireForm(), ()), (WireForm(), ("image_url",)), (WireForm(no_system_role=True), MEDIA)):
        for end in range(4, len(talk) + 1):
            sent = normal_form(talk[:end], form, media=media)
            roles = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
            wire = [{"role": roles[each.type], "content": each.content} for each in sent]
            assert (URL in str(wire)) == (bool(media) and end > 4)
            assert normal_form(sent, form, media=media) == sent
    assert invalid_history([{"role": "system", "content": "x"}, {"role": "user", "content": shown.content}]) is None
