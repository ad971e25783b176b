"""Providers with protocols of their own: turns with tools and thinking, what is counted, what becomes of errors."""

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from types import ModuleType
from typing import Any

import orjson
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from pydantic import SecretStr
from starlette.responses import RedirectResponse, Response, StreamingResponse
from structlog.testing import capture_logs

from segue.agent.render_messages import image_message
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.identity import Charge
from segue.domain.telemetry import unobserved, untraced
from segue.domain.tool import ToolSpec
from segue.models.chat_model import ChatModel
from segue.models.open_models import open_model
from segue.models.reply import READING
from segue.models.streamed_answer import Listener
from segue.models.traced_call import response
from segue.tools.normalize import BinaryPart
from tests.support import gemini_api, messages_api, responses_api
from tests.support.native_api import KEY, Given, NativeApi, event, scripted_api
from tests.support.service import Client, running
from tests.support.streams import streamed
from tests.support.toolbox import PIXEL

pytestmark = pytest.mark.in_turns

ASKED = [SystemMessage("Answer."), HumanMessage("What is it?")]
SILENT = Listener(lambda _: None, lambda: None)
NOON = ("current_time", {"timezone": "Europe/Rome"})
ROME = ("current_time", {"timezone": "Europe/Paris"})
CLOCK = ToolSpec("current_time", "The time.", {"type": "object", "properties": {"timezone": {"type": "string"}}})
WAYS = pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])


@dataclass(frozen=True, slots=True)
class Native:
    """A provider: how it is set up, its protocol, and what its settings are called."""

    model: str
    key: str
    base_url: str
    path: str
    protocol: ModuleType
    later: int = 3  # how many plain messages after a turn with tools


NATIVE = {
    "anthropic": Native("anthropic:claude-sonnet-5", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "", messages_api),
    "gemini": Native("google_genai:gemini-3-flash", "GOOGLE_API_KEY", "GOOGLE_BASE_URL", "", gemini_api, later=12),
    "responses": Native("openai:gpt-5.6", "OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1", responses_api),
}


@pytest.fixture(params=NATIVE.values(), ids=list(NATIVE))
def native(request: pytest.FixtureRequest) -> Native:
    found: Native = request.param
    return found


@pytest.fixture
async def api(native: Native) -> AsyncIterator[NativeApi]:
    async with scripted_api(native.protocol.api()) as served:
        yield served


@pytest.fixture
def settings_of(native: Native, api: NativeApi, settings: Settings) -> Settings:
    changed = {
        "openai_base_url": None,
        "llm_model": native.model,
        native.key.lower(): SecretStr(KEY),
        native.base_url.lower(): api.url + native.path,
        "history_limit": 100,
        "llm_api": "responses",
    }
    return settings.model_copy(update=changed)


@pytest.fixture
async def model(settings_of: Settings) -> AsyncIterator[ChatModel]:
    async with AsyncExitStack() as stack:
        yield await open_model(stack, settings_of, settings_of.llm_model, observe=unobserved, span=untraced)


async def failure(model: ChatModel, *, as_stream: bool = False) -> AppError:
    with pytest.raises(AppError) as failed:
        await model.reply(ASKED, [CLOCK], listener=SILENT if as_stream else None)
    return failed.value


async def answered(client: Client, session: str, message: str, *, as_stream: bool) -> str:
    if not as_stream:
        return str((await client.chat(session, message))["message"]["content"])
    sent = await streamed(client, session, message)
    return "".join(each.event["delta"] for each in sent if each.type == "TEXT_MESSAGE_CONTENT")


# Where a provider takes a PDF: the parts of what the user says, and the one that it is.
PDFS: dict[str, tuple[Callable[[Any], Any], Callable[[str, str], dict[str, Any]]]] = {
    "anthropic": (
        lambda body: body["messages"][-1]["content"],
        lambda data, _: {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": data},
        },
    ),
    "google_genai": (
        lambda body: body["contents"][-1]["parts"],
        lambda data, _: {"inlineData": {"data": data, "mime_type": "application/pdf"}},
    ),
    "openai": (
        lambda body: body["input"][-1]["content"],
        lambda data, name: {
            "type": "input_file",
            "filename": name,
            "file_data": f"data:application/pdf;base64,{data}",
        },
    ),
}


@pytest.mark.sweep
@WAYS
async def test_a_pdf_goes_as_the_provider_takes_it_and_not_again_once_it_is_refused(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    parts_in, part_of = PDFS[native.model.partition(":")[0]]
    said, file = "Files in the result of call_1.", BinaryPart("application/pdf", "JVBERi0=", "application/pdf")
    refusal = api.error(400, "This model does not support PDF input.")
    api.will(native.protocol.says("900."), refusal, *[native.protocol.says("900.")] * 2)
    async with AsyncExitStack() as stack:
        reading = settings_of.model_copy(update={"llm_pdf": "native"})
        model = await open_model(stack, reading, native.model, observe=unobserved, span=untraced)
        for _ in range(3):
            asked = [*ASKED, image_message({"call_1": [file]})]
            assert (await model.reply(asked, listener=SILENT if as_stream else None)).text == "900."
    shown = part_of("JVBERi0=", "call_1.pdf")
    assert [shown in list(parts_in(body)) for body in api.requests] == [True, True, False, False]
    assert [said in str(body) for body in api.requests] == [True, True, True, False]


DRAWN = {
    "openai": {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL},
    "google_genai": {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
}


@pytest.mark.in_turns(1)
@WAYS
@pytest.mark.parametrize("native", [NATIVE["gemini"], NATIVE["responses"]], ids=["gemini", "responses"], indirect=True)
async def test_an_image_that_the_provider_makes_is_apart_from_the_words_and_does_not_go_back(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    made = native.protocol.says("A pixel.")
    api.will(replace(made, parts=(DRAWN[native.model.partition(":")[0]], *made.parts)), native.protocol.says("Black."))
    async with running(settings_of) as client:
        session = await client.new_session()
        assert await answered(client, session, "Draw a pixel.", as_stream=as_stream) == "A pixel."
        assert await answered(client, session, "What colour is it?", as_stream=as_stream) == "Black."
        rows = await client.messages(session)
        made_by = next(row["tool_call_id"] for row in rows if row["role"] == "tool")
        loaded = await client.http.get(f"/sessions/{session}/tool-results/{made_by}", params={"part": 0})
    assert (loaded.headers["content-type"], base64.b64encode(loaded.content).decode()) == ("image/png", PIXEL)
    assert PIXEL not in str(rows) + str(api.requests)


@pytest.mark.parametrize("as_stream", [False, True])
async def test_what_a_client_asks_of_sampling_is_sent_by_its_name_there(
    model: ChatModel, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    api.will(native.protocol.says("Noon."))
    sampling = {"temperature": 0.25, "max_tokens": 77}
    await model.reply(ASKED, [CLOCK], listener=SILENT if as_stream else None, sampling=sampling)
    body = api.requests[-1]
    sent = body.get("generationConfig", body)
    names = ("max_tokens", "max_output_tokens", "maxOutputTokens")
    assert [sent[name] for name in names if name in sent] == [77]
    assert sent.get("temperature") == (None if native.protocol is responses_api else 0.25)  # gpt-5 takes none


@pytest.mark.in_turns(1)
async def test_a_turn_with_tools_and_thinking_is_answered_and_those_after_it(
    settings_of: Settings, native: Native, api: NativeApi
) -> None:
    """Two such turns, one as JSON and one as a stream; those after them take turns."""
    played = native.protocol
    tools = played.calls(NOON, ROME, before=played.THOUGHTS), played.calls(("current_time", {}))
    api.will(*(*tools, played.says("Noon.")) * 2, *(played.says(f"Answer {number}.") for number in range(native.later)))
    async with running(settings_of) as client:
        session = await client.new_session()
        for as_stream in (False, True):
            assert await answered(client, session, "What time is it?", as_stream=as_stream) == "Noon."
        for number in range(native.later):
            said = await answered(client, session, f"And {number}?", as_stream=number % 2 == 0)
            assert said == f"Answer {number}."
        rows = await client.messages(session)
    assert "Let me see" not in orjson.dumps(rows).decode()
    assert [row["role"] for row in rows].count("tool") == 6


@pytest.mark.in_turns(1)
async def test_arguments_are_shown_as_they_come_and_are_what_is_recorded(
    settings_of: Settings, native: Native, api: NativeApi
) -> None:
    played = native.protocol
    api.will(played.calls(NOON, ROME, before=played.THOUGHTS), played.says("Noon."))
    async with running(settings_of) as client:
        session = await client.new_session()
        sent = [each.event for each in await streamed(client, session, "What time is it?")]
        [*_, asks, _, _, _] = await client.messages(session)
    for call in asks["tool_calls"]:
        own = [event for event in sent if event.get("toolCallId") == call["id"]]
        pieces = [event["delta"] for event in own if event["type"] == "TOOL_CALL_ARGS"]
        assert "".join(pieces) == orjson.dumps(call["args"]).decode()
        assert len(pieces) > 1
        assert [own[0]["type"], own[-2]["type"]] == ["TOOL_CALL_START", "TOOL_CALL_END"]


@pytest.mark.parametrize("native", [NATIVE["anthropic"]], ids=["anthropic"])
async def test_the_borders_of_a_prompt_are_marked_for_the_cache(settings_of: Settings, api: NativeApi) -> None:
    api.will(messages_api.says("One."), messages_api.says("Two."))
    async with running(settings_of) as client:
        session = await client.new_session()
        await client.chat(session, "First?")
        await client.chat(session, "Second?")
    sent = api.requests[-1]
    assert sent["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert ["cache_control" in str(message["content"]) for message in sent["messages"]] == [False, True, True]


@WAYS
async def test_words_thinking_calls_and_tokens_are_read(
    model: ChatModel, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    played = native.protocol
    api.will(played.calls(NOON, before=(*played.THOUGHTS, *played.says("I look.").parts)))
    heard: list[str] = []
    listener = Listener(heard.append, lambda: None) if as_stream else None
    reply = await model.reply(ASKED, [CLOCK], listener=listener, tool_choice="required")
    assert (reply.text, reply.reasoning) == ("I look.", "Let me see.")
    assert "".join(heard) == ("I look." if as_stream else "")
    [call] = reply.calls
    assert (call.name, call.args) == NOON
    counted = (reply.input_tokens, reply.cached_tokens, reply.output_tokens, reply.estimated)
    assert counted == (41, 30, 7, False)
    assert model.id == native.model.partition(":")[2]
    assert response(reply, Charge(""))["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert reply.response_id == ("resp_1" if played is responses_api else "")  # which the other packages do not tell


@pytest.mark.parametrize("kind", ["too long", "no quota", "a wrong key", "no such model", "busy", "overloaded", "odd"])
async def test_an_error_is_told_for_what_it_means_and_names_the_providers_settings(
    model: ChatModel, native: Native, api: NativeApi, kind: str
) -> None:
    refusal, told, again = native.protocol.ERRORS[kind]
    api.will(refusal)
    with capture_logs() as logs:
        error = await failure(model)
    assert (error.code, error.retryable) == ("model_unavailable", again)
    assert f"HTTP {refusal.status_code}" in error.detail
    assert told.format(key=native.key, base_url=native.base_url) in error.detail
    assert "OPENAI" not in error.detail.replace(native.key, "")
    assert "It said: " in error.detail
    assert KEY not in error.detail
    assert error.extra["provider_code"]
    assert [line["reason"] for line in logs if line["event"] == "model_failed"] == [error.detail]


async def test_an_error_in_the_stream_is_that_error(model: ChatModel, native: Native, api: NativeApi) -> None:
    api.will(native.protocol.FAILS_IN_STREAM)
    error = await failure(model, as_stream=True)
    assert "HTTP 5" in error.detail
    assert "Overloaded" in error.detail
    assert error.retryable


@WAYS
async def test_an_error_in_place_of_an_answer_is_that_error(
    model: ChatModel, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    refusal, *_ = native.protocol.ERRORS["overloaded"]
    api.will(Response(refusal.body, media_type="application/json"))
    error = await failure(model, as_stream=as_stream)
    assert "overloaded" in error.detail.partition("It said: ")[2].lower()


async def test_a_stream_that_breaks_off_is_no_answer(model: ChatModel, native: Native, api: NativeApi) -> None:
    for after in (2, 4):
        api.will(native.protocol.says("A long answer.", "Another.", broken_after=after))
        assert "broke off" in (await failure(model, as_stream=True)).detail


@WAYS
async def test_an_answer_that_was_stopped_is_told_for_why(
    model: ChatModel, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    played = native.protocol
    api.will(played.calls(NOON, reason=played.LENGTH), played.says("Well", reason=played.LENGTH))
    assert "length limit" in (await failure(model, as_stream=as_stream)).detail
    reply = await model.reply(ASKED, listener=SILENT if as_stream else None)
    assert reply.text == "Well"
    for stopped in played.FILTERED:
        api.will(stopped)
        error = await failure(model, as_stream=as_stream)
        assert "content filter" in error.detail
        assert not error.retryable


@pytest.mark.parametrize("native", [NATIVE["gemini"]], ids=["gemini"], indirect=True)
async def test_an_answer_that_ends_in_too_many_calls_of_its_own_broke_off(api: NativeApi, model: ChatModel) -> None:
    api.will(gemini_api.says("It is", reason="TOO_MANY_TOOL_CALLS"), gemini_api.calls(NOON, reason="CONTINUATION"))
    assert "broke the answer off" in (await failure(model)).detail
    assert "length limit" in (await failure(model)).detail


@WAYS
@pytest.mark.parametrize("native", [NATIVE["anthropic"]], ids=["anthropic"], indirect=True)
async def test_a_request_whose_tokens_are_not_counted_with_the_answers_is_estimated(
    api: NativeApi, model: ChatModel, *, as_stream: bool
) -> None:
    api.will(replace(messages_api.says("It is noon."), usage={"output_tokens": 7}))
    reply = await model.reply(ASKED, listener=SILENT if as_stream else None)
    assert (reply.input_tokens > 0, reply.output_tokens, reply.estimated) == (True, 7, True)


def bodies_of(protocol: ModuleType, given: Given | None = None) -> list[dict[str, Any]]:
    """The events of a streamed answer."""
    given = given or protocol.says("It is noon.")
    return [orjson.loads(each.partition("data: ")[2]) for each in protocol.api().events(given)]


def as_events(*bodies: dict[str, Any], before: str = "", behind: str = "") -> Response:
    written = "".join(event(body, body.get("type")) for body in bodies)
    return Response(f"{before}{written}{behind}", media_type="text/event-stream")


def counts(first: Any, *later: Any) -> Response:
    """An answer of Anthropic's, whose first event counts the first of these, and an event at its end each other."""
    begun, *told, ended, stopped = bodies_of(messages_api)
    begun["message"]["usage"] = first
    return as_events(begun, *told, *({**ended, "usage": usage} for usage in later), stopped)


def counts_in_tier(tier: str) -> Response:
    *told, ended = bodies_of(responses_api)
    details = {"cached_tokens": 30, "cache_write_tokens": 5}
    ended["response"] |= {
        "service_tier": tier, "usage": {**responses_api.USAGE, "input_tokens": 46, "input_tokens_details": details},
    }  # fmt: skip
    return as_events(*told, ended)


WRITTEN = {**messages_api.USAGE, "cache_creation_input_tokens": 5}
LASTING = {**WRITTEN, "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3}}
COUNTS = {
    "once": ("anthropic", counts(WRITTEN, WRITTEN)),
    "again and again": ("anthropic", counts(WRITTEN, {**WRITTEN, "output_tokens": 3}, WRITTEN)),
    "the input in the first event only": ("anthropic", counts(WRITTEN, {"output_tokens": 7})),
    "the input more exactly at the end": ("anthropic", counts({**WRITTEN, "input_tokens": 2}, WRITTEN)),
    "by how long the cache lasts": ("anthropic", counts(WRITTEN, LASTING)),
    "in the usual tier": ("responses", counts_in_tier("default")),
    "in another tier": ("responses", counts_in_tier("flex")),
}


@pytest.mark.parametrize(
    ("native", "given"),
    [(NATIVE[name], given) for name, given in COUNTS.values()],
    ids=list(COUNTS),
    indirect=["native"],
)
async def test_tokens_read_from_a_cache_and_written_to_it_are_told_from_the_rest_of_the_input(
    model: ChatModel, api: NativeApi, given: Response
) -> None:
    api.will(given)
    reply = await model.reply(ASKED, listener=SILENT)
    counted = (reply.input_tokens, reply.cached_tokens, reply.written_tokens, reply.output_tokens, reply.estimated)
    assert counted == (46, 30, 5, 7, False)


@pytest.mark.parametrize("native", [NATIVE["anthropic"]], ids=["anthropic"], indirect=True)
async def test_an_output_that_is_not_counted_is_estimated_beside_an_input_that_is(
    model: ChatModel, api: NativeApi
) -> None:
    api.will(counts(WRITTEN, None))
    reply = await model.reply(ASKED, listener=SILENT)
    assert (reply.input_tokens, reply.output_tokens > 2, reply.estimated) == (46, True, True)


async def test_a_stream_may_begin_with_the_mark_of_a_byte_order(
    model: ChatModel, native: Native, api: NativeApi
) -> None:
    api.will(as_events(*bodies_of(native.protocol), before="\ufeff"))
    assert (await model.reply(ASKED, listener=SILENT)).text == "It is noon."


@pytest.mark.parametrize("native", [NATIVE["gemini"]], ids=["gemini"], indirect=True)
@pytest.mark.parametrize(("status", "again"), [(400, False), (429, True), (503, True)])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "first"])
async def test_an_error_within_a_stream_of_gemini_is_a_refusal(
    settings_of: Settings, api: NativeApi, status: int, *, again: bool, begun: bool
) -> None:
    refused = event({"error": {"code": status, "message": "No.", "status": "ODD"}})
    api.will(as_events(*bodies_of(gemini_api)[:1] if begun else (), behind=refused))
    async with AsyncExitStack() as stack:
        settings = settings_of.model_copy(update={"llm_max_retries": 0})
        model = await open_model(stack, settings, settings.llm_model, observe=unobserved, span=untraced)
        error = await failure(model, as_stream=True)
    assert (error.code, error.retryable, f"HTTP {status}." in error.detail) == ("model_unavailable", again, True)


async def test_comments_in_a_stream_are_no_part_of_its_answer(model: ChatModel, api: NativeApi, native: Native) -> None:
    written = (event(body, body.get("type")) for body in bodies_of(native.protocol))
    commented = "".join(f": PING\n\n{each.replace('data: ', 'data:')}" for each in written)
    api.will(Response(f"{commented}: PING\n\n", media_type="text/event-stream"))
    assert (await model.reply(ASKED, listener=SILENT)).text == "It is noon."


SIGNS_OF_LIFE = {
    messages_api: event({"type": "ping"}, "ping"),
    responses_api: event({"type": "keepalive", "sequence_number": 3}, "keepalive"),
}


@pytest.mark.parametrize(
    "native", [NATIVE["anthropic"], NATIVE["responses"]], ids=["anthropic", "openai"], indirect=True
)
async def test_signs_of_life_keep_a_stream_alive_before_its_first_word_and_after_it(
    settings_of: Settings, native: Native, api: NativeApi
) -> None:
    async def written() -> AsyncIterator[str]:
        signs = [": keepalive\n\n", SIGNS_OF_LIFE[native.protocol]] * 4
        begun = False
        for each in native.protocol.api().events(native.protocol.says("It is noon.")):
            is_first_word, begun = not begun and "delta" in each, begun or "delta" in each
            for sign in signs if is_first_word else ():
                yield sign
                await asyncio.sleep(0.1)
            yield each
            for sign in signs if is_first_word else ():
                yield sign
                await asyncio.sleep(0.1)

    api.will(StreamingResponse(written(), media_type="text/event-stream"))
    short = settings_of.model_copy(update={"llm_first_token_timeout_s": 0.7, "llm_idle_timeout_s": 0.7})
    async with AsyncExitStack() as stack:
        model = await open_model(stack, short, short.llm_model, observe=unobserved, span=untraced)
        assert (await model.reply(ASKED, listener=SILENT)).text == "It is noon."


@pytest.mark.parametrize("native", [NATIVE["anthropic"], NATIVE["gemini"]], ids=["anthropic", "gemini"], indirect=True)
async def test_an_api_that_is_asked_for_streams_only_is_not_asked_again_if_it_may_not_stream(
    model: ChatModel, native: Native, api: NativeApi
) -> None:
    api.will(native.protocol.fails(400, "invalid_request_error", "You may not stream this model."))
    assert "You may not stream" in (await failure(model, as_stream=True)).detail


@pytest.mark.parametrize("native", [NATIVE["responses"]], ids=["responses"], indirect=True)
async def test_a_stream_of_the_responses_api_may_end_as_one_of_chat_completions(
    model: ChatModel, api: NativeApi
) -> None:
    api.will(as_events(*bodies_of(responses_api), behind="data: [DONE]\n\n"))
    assert (await model.reply(ASKED, listener=SILENT)).text == "It is noon."


@pytest.mark.parametrize("native", [NATIVE["responses"]], ids=["responses"], indirect=True)
@pytest.mark.parametrize(
    ("first", "last"), [([], ["done"]), ([""], ["done"]), ([], [])], ids=["no piece", "an empty piece", "in their item"]
)
async def test_arguments_that_come_whole_only_are_those_of_their_call(
    model: ChatModel, api: NativeApi, first: list[str], last: list[str]
) -> None:
    kind, bodies = "response.function_call_arguments", list[dict[str, Any]]()
    for body in bodies_of(responses_api, responses_api.calls(NOON, ROME)):
        if body["type"] == "response.output_item.done":
            at = {"output_index": body["output_index"], "item_id": body["item"]["id"]}
            bodies += ({**at, "type": f"{kind}.delta", "delta": piece} for piece in first)
            bodies += ({**at, "type": f"{kind}.{end}", "arguments": body["item"]["arguments"]} for end in last)
        if body["type"] != f"{kind}.delta":
            bodies.append(body)
    api.will(as_events(*bodies))
    reply = await model.reply(ASKED, [CLOCK], listener=SILENT)
    assert [(call.name, call.args) for call in reply.calls] == [NOON, ROME]


@pytest.mark.parametrize("native", [NATIVE["anthropic"]], ids=["anthropic"], indirect=True)
async def test_arguments_that_come_with_their_block_and_in_pieces_are_read_once(
    model: ChatModel, api: NativeApi
) -> None:
    bodies = bodies_of(messages_api, messages_api.calls(NOON))
    for body in bodies:
        if body["type"] == "content_block_start":
            body["content_block"]["input"] = NOON[1]
    api.will(as_events(*bodies))
    reply = await model.reply(ASKED, [CLOCK], listener=SILENT)
    assert [(call.name, call.args) for call in reply.calls] == [NOON]


@pytest.mark.parametrize("native", [NATIVE["anthropic"]], ids=["anthropic"], indirect=True)
async def test_an_error_in_words_within_a_stream_is_told_and_may_be_asked_again(
    model: ChatModel, api: NativeApi
) -> None:
    api.will(as_events(*bodies_of(messages_api)[:2], behind="event: error\ndata: Upstream is overloaded\n\n"))
    error = await failure(model, as_stream=True)
    assert ("Upstream is overloaded" in error.detail, error.retryable) == (True, True)


IN_PHASES = Given(
    tuple(
        {"type": "message", "id": f"msg_{at}", "status": "completed", "role": "assistant", "phase": phase,
         "content": [{"type": "output_text", "text": text, "annotations": []}]}
        for at, (phase, text) in enumerate([("commentary", "I look."), ("final_answer", "It is noon.")])
    ), "", responses_api.USAGE,
)  # fmt: skip
WORDS_STAND = {
    "a refusal to go on": ("anthropic", messages_api.says("It is noon.", reason="refusal"), "It is noon."),
    "a new reason to stop": ("gemini", gemini_api.says("It is noon.", reason="OTHER"), "It is noon."),
    "words in phases": ("responses", IN_PHASES, "I look. It is noon."),
}


@pytest.mark.parametrize(
    ("native", "given", "said"),
    [(NATIVE[name], *row) for name, *row in WORDS_STAND.values()],
    ids=list(WORDS_STAND),
    indirect=["native"],
)
async def test_words_stand_however_an_answer_ends(
    model: ChatModel, native: Native, api: NativeApi, given: Given, said: str
) -> None:
    api.will(given, given)
    for listener in (None, SILENT):
        assert (await model.reply(ASKED, listener=listener)).text == said, native.model


@WAYS
async def test_an_answer_is_read_no_further_than_its_bound(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    api.will(native.protocol.says(*["x" * 5000] * 4))
    async with AsyncExitStack() as stack:
        bounded = settings_of.model_copy(update={"llm_max_answer_bytes": 10_000})
        model = await open_model(stack, bounded, bounded.llm_model, observe=unobserved, span=untraced)
        error = await failure(model, as_stream=as_stream)
    assert "LLM_MAX_ANSWER_BYTES=10000" in error.detail
    assert not error.retryable


@WAYS
async def test_a_provider_that_cannot_be_reached_is_told(
    settings_of: Settings, native: Native, *, as_stream: bool
) -> None:
    nowhere = {native.base_url.lower(): f"http://127.0.0.1:1{native.path}", "llm_max_retries": 0}
    async with AsyncExitStack() as stack:
        unreached = settings_of.model_copy(update=nowhere)
        model = await open_model(stack, unreached, unreached.llm_model, observe=unobserved, span=untraced)
        error = await failure(model, as_stream=as_stream)
    assert error.detail == f"The model provider cannot be reached: check {native.base_url}."
    assert error.retryable


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (RedirectResponse("http://127.0.0.1:1/", 307), "It redirects, which is not followed: set {base_url}"),
        (Response(gzip.compress(b"{}"), headers={"content-encoding": "gzip"}), "packed its answer"),
    ],
    ids=["a redirect", "a packed answer"],
)
async def test_what_would_go_elsewhere_or_past_the_bound_is_refused(
    model: ChatModel, native: Native, api: NativeApi, reply: Response, told: str
) -> None:
    api.will(reply)
    error = await failure(model)
    assert told.format(base_url=native.base_url) in error.detail
    assert not error.retryable


async def test_an_event_without_end_is_read_no_further_than_the_bound(model: ChatModel, api: NativeApi) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"data: "
        while True:
            await asyncio.sleep(0)  # or the client, in the same thread, would never come to read
            yield b"x" * 100_000

    api.will(StreamingResponse(endless(), media_type="text/event-stream"))
    assert "LLM_MAX_ANSWER_BYTES=1000000" in (await failure(model, as_stream=True)).detail


async def test_an_answer_is_utf_8_whatever_it_is_said_to_be(model: ChatModel, native: Native, api: NativeApi) -> None:
    api.will(native.protocol.says("È mezzogiorno."))
    api.charset = "punycode"
    assert (await model.reply(ASKED, listener=SILENT)).text == "È mezzogiorno."


TUNED = {
    "anthropic": [(("temperature",), 0.5), (("max_tokens",), 99), (("output_config", "effort"), "low")],
    "gemini": [
        (("generationConfig", "temperature"), 0.5),
        (("generationConfig", "maxOutputTokens"), 99),
        (("generationConfig", "thinkingConfig", "thinking_level"), "low"),
    ],
    "responses": [(("max_output_tokens",), 99), (("reasoning", "effort"), "low")],
}


@pytest.mark.parametrize(
    ("native", "expected"), [(NATIVE[name], TUNED[name]) for name in NATIVE], ids=list(NATIVE), indirect=["native"]
)
async def test_what_is_set_goes_under_the_providers_own_names(
    settings_of: Settings, native: Native, api: NativeApi, expected: list[tuple[tuple[str, ...], object]]
) -> None:
    tuned = {
        "llm_temperature": 0.5,
        "llm_max_output_tokens": 99,
        "llm_reasoning_effort": "low",
        "llm_extra_body": {"seed": 7},
        "llm_extra_headers": {"X-Title": SecretStr("Segue")},
    }
    api.will(native.protocol.says("42"))
    async with AsyncExitStack() as stack:
        changed = settings_of.model_copy(update=tuned)
        model = await open_model(stack, changed, changed.llm_model, observe=unobserved, span=untraced)
        await model.reply(ASKED, [CLOCK], tool_choice="required")
    [body], [headers] = api.requests, api.headers
    for path, value in [*expected, (("seed",), 7)]:
        found: Any = body
        for name in path:
            assert name in found, body
            found = found[name]
        assert (found.lower() if isinstance(found, str) else found) == value, path
    assert headers["x-title"] == "Segue"


DEAD = {
    messages_api: messages_api.fails(
        400, "invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block"
    ),
    gemini_api: gemini_api.fails(400, "INVALID_ARGUMENT", "Corrupted thought signature."),
    responses_api: responses_api.fails(
        400, "invalid_encrypted_content", "The encrypted content gAAA could not be verified. Reason: it was not ours."
    ),
}


@pytest.mark.in_turns(1)
@WAYS
async def test_what_can_no_longer_be_verified_is_sent_no_more_also_by_another_instance(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    """As after a change of the key or the region: every later message of the session was a 502."""
    played = native.protocol
    api.will(played.calls(NOON, before=played.THOUGHTS), played.says("Noon."), DEAD[played], played.says("Two."))
    async with running(settings_of) as client:
        session = await client.new_session()
        assert await answered(client, session, "What time is it?", as_stream=as_stream) == "Noon."
        assert await answered(client, session, "And then?", as_stream=as_stream) == "Two."
    api.will(played.says("Three."))
    async with running(settings_of) as client:
        assert await answered(client, session, "And now?", as_stream=as_stream) == "Three."
    signed = [b"ignature" in body or b'encrypted_content":' in body for body in map(orjson.dumps, api.requests)]
    assert signed == [False, True, True, False, False]


NOT_KEPT = "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false. Remove it."


@WAYS
@pytest.mark.parametrize("native", [NATIVE["responses"]], ids=["responses"], indirect=True)
async def test_an_item_that_the_endpoint_does_not_find_is_sent_no_more(
    settings_of: Settings, api: NativeApi, *, as_stream: bool
) -> None:
    refusal = responses_api.fails(404, None, NOT_KEPT, param="input")
    noon, good = responses_api.says("Noon."), responses_api.says("Good.")
    api.will(responses_api.calls(NOON, before=responses_api.THOUGHTS), noon, refusal, good)
    async with running(settings_of) as client:
        session = await client.new_session()
        assert await answered(client, session, "What time is it?", as_stream=as_stream) == "Noon."
        assert await answered(client, session, "Thanks", as_stream=as_stream) == "Good."
    assert [b'encrypted_content":' in body for body in map(orjson.dumps, api.requests)] == [False, True, True, False]


@pytest.mark.in_turns(1)
@WAYS
async def test_a_turn_whose_tools_ran_ends_in_words_whatever_the_provider_gives_instead(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    played = native.protocol
    async with running(settings_of.model_copy(update={"llm_max_retries": 0})) as client:
        for reply in (played.says(), replace(played.says(), parts=played.THOUGHTS), played.says(reason=played.LENGTH)):
            session = await client.new_session(title="Noon")  # in which nothing can be left out for a filter
            api.will(played.calls(NOON), reply, played.says("Noon."))
            assert await answered(client, session, "What time is it?", as_stream=as_stream) == "Noon."
        for reply in (*played.FILTERED, played.ERRORS["overloaded"][0]):
            api.will(played.calls(NOON), reply, reply)
            session = await client.new_session(title="Noon")
            told = await answered(client, session, "What time is it?", as_stream=as_stream)
            assert "\n\n✓ current time: Current time: Europe/Rome — utc: " in told
            assert (await client.messages(session))[-1]["metadata"]["written_by"] == "service"
        api.will(played.says("Good."))
        assert await answered(client, session, "And now?", as_stream=as_stream) == "Good."


TOO_MUCH = {
    messages_api: messages_api.fails(400, "invalid_request_error", "max_tokens: 100000 > 8192, which is the maximum"),
    gemini_api: gemini_api.fails(
        400,
        "INVALID_ARGUMENT",
        "maxOutputTokens value of 100000 but the range is from 1 (inclusive) to 8193 (exclusive)",
    ),
    responses_api: responses_api.fails(
        400,
        "integer_above_max_value",
        "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 8192, but got 100000 instead.",
        param="max_output_tokens",
    ),
}
MOST = {
    messages_api: ["max_tokens"],
    gemini_api: ["generationConfig", "maxOutputTokens"],
    responses_api: ["max_output_tokens"],
}


@pytest.mark.in_turns(1)
@WAYS
async def test_how_long_an_answer_may_be_is_learned_as_a_number(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    played = native.protocol
    api.will(TOO_MUCH[played], played.says("One."), played.says("Two."))
    async with AsyncExitStack() as stack:
        changed = settings_of.model_copy(update={"llm_max_output_tokens": 100_000})
        model = await open_model(stack, changed, changed.llm_model, observe=unobserved, span=untraced)
        for text in ("One.", "Two."):
            assert (await model.reply(ASKED, [CLOCK], listener=SILENT if as_stream else None)).text == text
    most: list[Any] = [reduce(getitem, MOST[played], body) for body in api.requests]
    assert most == [100_000, 8192, 8192]


# What is set beside an effort and a schema, where it goes, and what stands there with it.
BESIDE = {
    messages_api: ({"output_config": {"verbose": True}}, ["output_config"], {"effort": "low", "verbose": True}),
    gemini_api: ({"generationConfig": {"seed": 7}}, ["generationConfig", "thinkingConfig"], {"thinking_level": "LOW"}),
    responses_api: (
        {"text": {"verbosity": "low"}, "reasoning": {"summary": "auto"}},
        ["reasoning"],
        {"effort": "low", "summary": "auto"},
    ),
}


@pytest.mark.in_turns(1)
@WAYS
async def test_extras_go_into_the_objects_of_a_request_and_leave_the_rest_of_them(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    extra, path, expected = BESIDE[native.protocol]
    api.will(native.protocol.says("{}"))
    async with AsyncExitStack() as stack:
        changed = settings_of.model_copy(update={"llm_extra_body": extra, "llm_reasoning_effort": "low"})
        model = await open_model(stack, changed, changed.llm_model, observe=unobserved, span=untraced)
        await model.reply(ASKED, listener=SILENT if as_stream else None, schema=READING)
    [sent] = api.requests
    assert reduce(getitem, path, sent) == expected
    if native.protocol is responses_api:
        assert (sent["text"]["verbosity"], sent["text"]["format"]["name"]) == ("low", READING["name"])


WAIT = {
    messages_api: messages_api.fails(
        429, "rate_limit_error", "Please try again in 3000s.", headers={"retry-after": "0"}
    ),
    gemini_api: gemini_api.fails(
        429, "RESOURCE_EXHAUSTED", "Quota.", details=[{"@type": "RetryInfo", "retryDelay": "3000s"}]
    ),
    responses_api: responses_api.fails(429, "rate_limit_exceeded", "Limit 3. Please try again in 50m0s."),
}


@WAYS
async def test_the_time_that_an_error_asks_for_is_read(
    settings_of: Settings, native: Native, api: NativeApi, *, as_stream: bool
) -> None:
    """It is longer than the deadline, so that nothing waits for it."""
    api.will(WAIT[native.protocol])
    async with AsyncExitStack() as stack:
        changed = settings_of.model_copy(update={"llm_max_retries": 2})
        model = await open_model(stack, changed, changed.llm_model, observe=unobserved, span=untraced)
        assert "HTTP 429" in (await failure(model, as_stream=as_stream)).detail


@pytest.mark.parametrize("native", [NATIVE["anthropic"]], ids=["anthropic"], indirect=True)
async def test_what_was_counted_of_an_answer_that_broke_off_is_charged(model: ChatModel, api: NativeApi) -> None:
    class Taken:
        session_id, agent = "ses_1", ""

        async def reserve(self, _: object) -> None:
            """There is no cap."""

        def add(self, charge: Any) -> None:
            charges.append(charge)

    charges: list[Any] = []
    begun, *told = bodies_of(messages_api, messages_api.says("It is noon."))[:4]
    begun["message"]["usage"] = {**WRITTEN, "output_tokens": 1}
    api.will(as_events(begun, *told))
    with pytest.raises(AppError):
        await model.reply(ASKED, listener=SILENT, account=Taken())  # type: ignore[arg-type]
    assert {(each.input_tokens, each.cached_tokens) for each in charges} == {(46, 30)}
