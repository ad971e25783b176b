"""Every form of an answer that endpoints give, as JSON and as a stream: what it means is the same."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from starlette.responses import StreamingResponse
from structlog.testing import capture_logs

from segue.domain.errors import AppError
from segue.domain.tool import ToolSpec
from segue.models.chat_model import ChatModel
from segue.models.reply import ModelCall, Reply
from segue.models.streamed_answer import AT_ONCE, Listener
from tests.support.loop_lag import loop_kept_free
from tests.support.patience import PATIENCE_S
from tests.support.provider import OpenModel, Provider, completion, delta, raw, says, sse, streams

ASKED = [SystemMessage("Answer."), HumanMessage("What is it?")]
USED = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@dataclass
class Heard:
    """What a listener was told: the words that stand, and those that were withdrawn."""

    text: str = ""
    withdrawn: list[str] = field(default_factory=list)

    @property
    def listener(self) -> Listener:
        return Listener(self._add, self._withdraw)

    def _add(self, text: str) -> None:
        self.text += text

    def _withdraw(self) -> None:
        self.withdrawn.append(self.text)
        self.text = ""


async def asked(model: ChatModel, *, as_stream: bool) -> Reply:
    """A reply, after checking that a listener has heard what it says."""
    heard = Heard()
    reply = await model.reply(ASKED, listener=heard.listener if as_stream else None)
    if as_stream:
        assert heard.text == reply.text
    return reply


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


@dataclass(frozen=True)
class Row:
    """A whole message, the same as deltas (or each character of the content as one), and what it means."""

    message: dict[str, Any]
    deltas: tuple[dict[str, Any], ...] = ()
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any] | None], ...] = ()
    finish_reason: str | None = None

    @property
    def reason(self) -> str:
        return self.finish_reason or ("tool_calls" if self.calls else "stop")

    @property
    def pieces(self) -> tuple[dict[str, Any], ...]:
        rest = {name: value for name, value in self.message.items() if name != "content"}
        return self.deltas or (*({"content": each} for each in self.message["content"] or ()), rest)


def calling(arguments: Any, meant: dict[str, Any] | None, name: str = "search") -> Row:
    return Row({"content": None, "tool_calls": [call(name, arguments)]}, calls=(("search", meant),))


WRITTEN = '{"name": "search", "arguments": {"q": "1"}}'

CALLED: dict[str, dict[str, Any]] = {
    "parameters": {"function": {"name": "search", "parameters": {"q": 1}}},
    "input": {"name": "search", "input": {"q": 1}},
    "parameters beside none": {"function": {"name": "search", "arguments": "", "parameters": '{"q": 1}'}},
    "arguments beside the function": {"function": {"name": "search"}, "arguments": '{"q": 1}'},
}

ANSWERS = {
    "words": Row({"content": "It is 42."}, text="It is 42."),
    "reasoning_content": Row(
        {"content": "42", "reasoning_content": "Let me see."},
        ({"reasoning_content": "Let me"}, {"reasoning_content": " see.", "content": None}, {"content": "42"}),
        text="42",
        reasoning="Let me see.",
    ),
    "reasoning": Row(
        {"content": "42", "reasoning": "Let me see."},
        ({"reasoning": "Let me", "content": ""}, {"reasoning": " see."}, {"content": "42"}),
        text="42",
        reasoning="Let me see.",
    ),
    "reasoning twice": Row(
        {"content": "42", "reasoning": "Let me see.", "reasoning_content": "Let me see."},
        text="42",
        reasoning="Let me see.",
    ),
    "parts with thinking": Row(
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]},
                {"type": "text", "text": "42"},
            ]
        },
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Let me"}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " see."}]}]},
            {"content": "4"},
            {"content": [{"type": "text", "text": "2"}]},
        ),
        text="42",
        reasoning="Let me see.",
    ),
    "parts with reasoning": Row(
        {
            "content": [
                {"type": "reasoning", "summary": [{"text": "Let me see."}]},
                {"type": "output_text", "text": "42"},
            ]
        },
        ({"content": [{"type": "reasoning", "text": "Let me see."}]}, {"content": [{"type": "text", "text": "42"}]}),
        text="42",
        reasoning="Let me see.",
    ),
    "parts without a type": Row(
        {"content": ["It ", {"text": "is 42."}]},
        ({"content": ["It "]}, {"content": [{"text": "is 42."}]}),
        text="It is 42.",
    ),
    "reasoning in details alone": Row(
        {"content": "42", "reasoning_details": [{"type": "reasoning.text", "text": "Let me see.", "index": 0}]},
        text="42",
        reasoning="Let me see.",
    ),
    "reasoning_text": Row({"content": "42", "reasoning_text": "Let me see."}, text="42", reasoning="Let me see."),
    "thinking in the text": Row(
        {"content": "<think>\nLet me see.\n</think>\n\nIt is <b>42</b>."},
        text="It is <b>42</b>.",
        reasoning="Let me see.",
    ),
    "thinking in Mistral's text": Row(
        {"content": "[THINK]Let me see.[/THINK]It is 42."}, text="It is 42.", reasoning="Let me see."
    ),
    "thinking in the middle": Row(
        {"content": "It is <think>Let me see.</think>42."}, text="It is 42.", reasoning="Let me see."
    ),
    "thinking without an end after words": Row(
        {"content": "It is 42. <think>Or is it? {}"}, text="It is 42.", reasoning="Or is it? {}"
    ),
    "thinking that began in the prompt": Row(
        {"content": "Let me see. < no.\n</think>\nIt is 42."}, text="It is 42.", reasoning="Let me see. < no."
    ),
    "tags that are spoken of": Row(
        {"content": "Write `<think>` or\n```\n<think>x</think>\n```\nso."},
        text="Write `<think>` or\n```\n<think>x</think>\n```\nso.",
    ),
    "thinking as a thought": Row({"content": "<thought>Let me see.</thought>42"}, text="42", reasoning="Let me see."),
    "thinking in Gemma's channel": Row(
        {"content": "<|channel>thought\nLet me see.\n<channel|>42"}, text="42", reasoning="Let me see."
    ),
    "channels of gpt-oss": Row(
        {
            "content": "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|> It is 42.<|return|>"
        },
        text="So. It is 42.",
        reasoning="Let me see.",
    ),
    "a channel without its end": Row(
        {"content": "<|channel|>analysis<|message|>Let me see.<|start|>assistant<|channel|>final<|message|>42"},
        text="42",
        reasoning="Let me see.",
    ),
    "channels without their marks": Row(
        {"content": "analysisLet me see. <b>assistantfinalIt is <|return|>42."},
        text="It is 42.",
        reasoning="Let me see. <b>",
    ),
    "an analysis": Row({"content": "analysis of 42"}, text="analysis of 42"),
    "an analysis without more": Row({"content": "analysis"}, text="analysis"),
    "an analysis of its own": Row({"content": "analysis: 42"}, text="analysis: 42"),
    "an answer in a box": Row({"content": "It is <|begin_of_box|>42<|end_of_box|>."}, text="It is 42."),
    "marks that are spoken of": Row(
        {"content": "Write `<|end|>` or\n```\n<|begin_of_box|>\n```"},
        text="Write `<|end|>` or\n```\n<|begin_of_box|>\n```",
    ),
    "a call that nobody may make": Row({"content": f"[TOOL_CALLS]{WRITTEN}"}, text=f"[TOOL_CALLS]{WRITTEN}"),
    "a new reason to stop": Row({"content": "It is 42."}, text="It is 42.", finish_reason="eos_token"),
    "thinking before a call": Row(
        {"content": "<think>Let me see.</think>", "tool_calls": [call("search", '{"q": 1}')]},
        calls=(("search", {"q": 1}),),
        reasoning="Let me see.",
    ),
    "no arguments": calling("", {}),
    "null arguments": calling(None, {}),
    "null as text": calling("null", {}),
    "JSON in JSON": calling(orjson.dumps('{"q": "x"}').decode(), {"q": "x"}),
    "an object for arguments": calling({"q": "x"}, {"q": "x"}),
    "broken arguments": calling('{"q": ', None),
    "a list for arguments": calling("[1]", None),
    "an empty list for arguments": calling("[]", {}),
    "a call without a function": Row(
        {"content": None, "tool_calls": [{"id": "c1", "name": "search", "arguments": {"q": 1}}]},
        calls=(("search", {"q": 1}),),
    ),
    **{
        f"arguments called {key}": Row(
            {"content": None, "tool_calls": [{"id": "c1", "type": "function", **more}]},
            ({"tool_calls": [{"id": "c1", "index": 0, "type": "function", **more}]},),
            calls=(("search", {"q": 1}),),
        )
        for key, more in CALLED.items()
    },
    "a name with a prefix": calling('{"q": 1}', {"q": 1}, name="functions.search"),
    "a name with Gemini's prefix": calling('{"q": 1}', {"q": 1}, name="default_api.search"),
    "a name with another prefix": calling('{"q": 1}', {"q": 1}, name=" tools.search\n"),
    "arguments in a code block": calling('```json\n{"q": 1}\n```', {"q": 1}),
    "arguments with a template's end": calling('{"q": 1}\n</tool_call><|im_end|>', {"q": 1}),
    "arguments behind an empty object": calling('{}{"q": 1}', {"q": 1}),
    "empty arguments that come twice": calling("{}{}", {}),
    "arguments that come twice": calling('{"q": 1}{"q": 1}', {"q": 1}),
    "arguments that come twice, written otherwise": calling('{"q":1} {"q": 1}', {"q": 1}),
    "two kinds of arguments": calling('{"q": 1}{"q": 2}', None),
    "arguments that grow in every delta": Row(
        {"content": None, "tool_calls": [call("search", '{"q": {"q": 1}}')]},
        tuple({"tool_calls": [call("search", '{"q": {"q": 1}}'[:n], index=0)]} for n in (2, 6, 10, 15)),
        calls=(("search", {"q": {"q": 1}}),),
    ),
    "arguments whose pieces are alike": Row(
        {"content": None, "tool_calls": [call("search", '{"q": {"q": 1}}')]},
        (
            {"tool_calls": [call("search", '{"q": ', index=0)]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"q": 1}}'}}]},
        ),
        calls=(("search", {"q": {"q": 1}}),),
    ),
    "a whole call that comes twice": Row(
        {"content": None, "tool_calls": [call("search", '{"q": 1}')]},
        tuple({"tool_calls": [call("search", '{"q": 1}', index=0)]} for _ in range(2)),
        calls=(("search", {"q": 1}),),
    ),
    "a call at several indices, whole at the last": Row(
        {"content": None, "tool_calls": [call("search", '{"q": 1}')]},
        tuple(
            {"tool_calls": [call("search", arguments, index=at)]}
            for at, arguments in enumerate(("", '{"q": 1}', '{"q": 1}'))
        ),
        calls=(("search", {"q": 1}),),
    ),
    "two calls with one id": Row(
        {"content": None, "tool_calls": [call("search", f'{{"q": {n}}}') for n in (1, 2)]},
        tuple({"tool_calls": [call("search", f'{{"q": {n}}}', index=n)]} for n in (1, 2)),
        calls=(("search", {"q": 1}), ("search", {"q": 2})),
    ),
    "a call in pieces that comes again whole": Row(
        {"content": None, "tool_calls": [call("search", '{"q": 1}')]},
        (
            {"tool_calls": [call("search", "", index=0)]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"q"'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
            {"tool_calls": [call("search", '{"q": 1}', index=0)]},
        ),
        calls=(("search", {"q": 1}),),
    ),
    "a name in the second delta": Row(
        {"content": None, "tool_calls": [call("search", '{"q": 1}')]},
        (
            {"tool_calls": [{"index": 0, "id": "c1", "type": "function"}]},
            {"tool_calls": [{"index": 0, "function": {"name": "search", "arguments": '{"q"'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        ),
        calls=(("search", {"q": 1}),),
    ),
    "a name with a template's marks": calling('{"q": 1}', {"q": 1}, name="search<|channel|>json"),
    "a name in every delta": Row(
        {"tool_calls": [call("search", '{"q": 1}')], "content": ""},
        (
            {"tool_calls": [call("search", '{"q"', index=0)]},
            {"tool_calls": [call("search", ": 1}", index=0)]},
            {"tool_calls": [call("search", "", index=0)]},
        ),
        calls=(("search", {"q": 1}),),
    ),
    "a name in every delta, and no id": Row(
        {"tool_calls": [call("search", '{"q": 1}', id=None)], "content": ""},
        (
            {"tool_calls": [call("search", "", index=0, id=None)]},
            {"tool_calls": [call("search", '{"q"', index=0, id=None)]},
            {"tool_calls": [call("search", ": 1}", index=0, id=None)]},
        ),
        calls=(("search", {"q": 1}),),
    ),
    "two calls with one index and no id": Row(
        {"content": None, "tool_calls": [call("search", f'{{"q": {n}}}', id="", index=0) for n in (1, 2)]},
        tuple({"tool_calls": [call("search", f'{{"q": {n}}}', id="", index=0)]} for n in (1, 2)),
        calls=(("search", {"q": 1}), ("search", {"q": 2})),
    ),
    "two calls with one index, no id and two names": Row(
        {"content": None, "tool_calls": [call(name, "{}", id="", index=0) for name in ("search", "find")]},
        (
            {"tool_calls": [call("search", "{", id="", index=0)]},
            {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
            {"tool_calls": [call("find", "{}", id="", index=0)]},
        ),
        calls=(("search", {}), ("find", {})),
    ),
    "two calls side by side": Row(
        {"content": None, "tool_calls": [call("search", '{"q": 1}'), call("find", '{"q": 2}', id="c2")]},
        (
            {"tool_calls": [call("search", "", index=0), call("find", "", index=1, id="c2")]},
            {"tool_calls": [{"index": 1, "function": {"arguments": '{"q": 2}'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"q": 1}'}}]},
        ),
        calls=(("search", {"q": 1}), ("find", {"q": 2})),
    ),
    "two calls by their ids, without an index": Row(
        {"content": None, "tool_calls": [call("search", '{"q": 1}'), call("find", '{"q": 2}', id="c2")]},
        (
            {"tool_calls": [call("search", "", id="c1")]},
            {"tool_calls": [call("find", "", id="c2")]},
            {"tool_calls": [{"id": "c1", "function": {"arguments": '{"q": 1}'}}]},
            {"tool_calls": [{"id": "c2", "function": {"arguments": '{"q": 2}'}}]},
        ),
        calls=(("search", {"q": 1}), ("find", {"q": 2})),
    ),
    "an index of each piece": Row(
        {"content": None, "tool_calls": [call("search", '{"q": 1}')]},
        (
            {"tool_calls": [call("search", "", index=0)]},
            {"tool_calls": [{"index": 1, "function": {"arguments": '{"q"'}}]},
            {"tool_calls": [{"index": 2, "id": "c1", "function": {"arguments": ": 1}"}}]},
        ),
        calls=(("search", {"q": 1}),),
    ),
    "a call in its old form too": Row(
        {"tool_calls": [call("search", "{}")], "function_call": {"name": "search", "arguments": "{}"}, "content": ""},
        calls=(("search", {}),),
    ),
    "the old form of a call": Row(
        {"content": None, "function_call": {"name": "search", "arguments": '{"q": 1}'}},
        ({"function_call": {"name": "search", "arguments": ""}}, {"function_call": {"arguments": '{"q": 1}'}}),
        calls=(("search", {"q": 1}),),
        finish_reason="function_call",
    ),
    "a refusal": Row({"content": None, "refusal": "I will not."}, text="I will not."),
    "a refusal in a part": Row(
        {"content": [{"type": "refusal", "refusal": "I will not."}]},
        ({"refusal": "I will"}, {"refusal": " not."}),
        text="I will not.",
    ),
    "words up to the length limit": Row({"content": "Once upon a"}, text="Once upon a", finish_reason="length"),
}


@pytest.mark.parametrize("row", ANSWERS.values(), ids=list(ANSWERS))
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_an_answer_is_read_for_what_it_means(
    model: ChatModel, provider: Provider, row: Row, *, as_stream: bool
) -> None:
    message = {"role": "assistant", **row.message}
    provider.will(streams(*row.pieces, finish_reason=row.reason) if as_stream else completion(message, row.reason))
    reply = await asked(model, as_stream=as_stream)
    assert (reply.text, reply.reasoning) == (row.text, row.reasoning)
    assert tuple((call.name, call.args) for call in reply.calls) == row.calls
    assert (reply.input_tokens, reply.output_tokens, reply.estimated) == (11, 7, False)


async def test_words_that_turn_out_to_be_thinking_are_withdrawn_and_the_next_answer_waits(
    model: ChatModel, provider: Provider
) -> None:
    for _ in range(2):
        provider.will(streams("Let me ", "see.", "</think>", "It is ", "42."))
    first, second = Heard(), Heard()
    assert (await model.reply(ASKED, listener=first.listener)).text == first.text == "It is 42."
    assert (await model.reply(ASKED, listener=second.listener)).text == second.text == "It is 42."
    assert (first.withdrawn, second.withdrawn) == (["Let me see."], [])


async def test_a_model_known_to_begin_inside_its_thinking_is_never_heard_thinking(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(name="deepseek-r1:8b")
    provider.will(
        streams("Let me see.", "</think>", "42"), streams("No thinking ", "this time."), streams("One", " two")
    )
    for expected in ("42", "No thinking this time.", "One two"):
        heard = Heard()
        assert (await model.reply(ASKED, listener=heard.listener)).text == heard.text == expected
        assert heard.withdrawn == []


EMPTY = {
    "null": Row({"content": None}, ({"content": None},)),
    "blank": Row({"content": " \n"}),
    "only thinking": Row({"content": "<think>Let me see."}),
    "only reasoning": Row({"content": "", "reasoning_content": "Let me see."}),
}


@pytest.mark.parametrize("row", EMPTY.values(), ids=list(EMPTY))
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_an_empty_answer_is_asked_for_once_more_and_then_told(
    model: ChatModel, provider: Provider, row: Row, *, as_stream: bool
) -> None:
    def empty() -> Any:
        return streams(*row.pieces) if as_stream else completion({"role": "assistant", **row.message}, "stop")

    provider.will(empty(), says("Here I am."), empty(), empty())
    reply = await asked(model, as_stream=as_stream)
    assert reply.text == "Here I am."
    with pytest.raises(AppError, match="empty answer") as failed, capture_logs() as logs:
        await asked(model, as_stream=as_stream)
    assert failed.value.code == "model_unavailable"
    assert [line["event"] for line in logs] == ["model_answer_empty", "model_answer_empty", "model_failed"]
    assert all("reasoning_chars" in line for line in logs[:2])


CUT = {
    "error": ("stop here", "error", True),
    "content_filter": ("stop here", "content_filter", False),
    "length before a word": ("", "length", False),
    "length in a call": (None, "length", False),
    "Mistral's length in a call": (None, "model_length", False),
    "Zhipu's length before a word": ("", "model_context_window_exceeded", False),
    "a length in capitals": (None, "LENGTH", False),
    "watsonx's limit": (None, "token_limit", False),
    "watsonx's end": ("stop here", "CANCELLED", True),
    "Bedrock's filter": ("stop here", "guardrail_intervened", False),
    "Zhipu's filter": ("stop here", "sensitive", False),
    "Google's filter": ("stop here", "content_filter: PROHIBITED_CONTENT", False),
    "a call that Google could not read": ("stop here", "function_call_filter: MALFORMED_FUNCTION_CALL", True),
    "DeepSeek's resources": ("stop here", "insufficient_system_resource", True),
}


@pytest.mark.parametrize(("text", "reason", "again"), CUT.values(), ids=list(CUT))
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_an_answer_that_broke_off_is_none_and_only_an_error_is_asked_again(
    model: ChatModel, provider: Provider, text: str | None, reason: str, *, again: bool, as_stream: bool
) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if text is None:
        message["tool_calls"] = [call("search", '{"q": "half')]
    provider.will(completion(message, reason))
    with pytest.raises(AppError) as failed:
        await asked(model, as_stream=as_stream)
    assert (failed.value.code, failed.value.retryable) == ("model_unavailable", again)


async def test_an_answer_without_a_reason_to_stop_is_one_if_it_is_whole(model: ChatModel, provider: Provider) -> None:
    message = {"role": "assistant", "content": "42"}
    provider.will(completion(message, None), sse(delta(content="42"), "data: [DONE]\n\n"), sse(delta(content="4")))
    assert (await asked(model, as_stream=False)).text == "42"
    assert (await asked(model, as_stream=True)).text == "42"
    with pytest.raises(AppError, match="broke off in the middle"):
        await asked(model, as_stream=True)


async def test_a_stream_with_a_reason_to_stop_needs_no_last_word(model: ChatModel, provider: Provider) -> None:
    provider.will(sse(delta(content="42"), delta("stop")))
    assert (await asked(model, as_stream=True)).text == "42"


@pytest.mark.parametrize("begun", ["", 'data: {"usage": {"prompt_to'], ids=["before its usage", "within it"])
async def test_a_stream_that_is_cut_behind_its_reason_to_stop_is_whole(
    model: ChatModel, provider: Provider, begun: str
) -> None:
    async def cut(_: dict[str, Any]) -> StreamingResponse:
        return StreamingResponse(written(), media_type="text/event-stream")

    async def written() -> AsyncIterator[str]:
        yield f"data: {orjson.dumps(delta(content='42')).decode()}\n\n"
        yield f"data: {orjson.dumps(delta('stop')).decode()}\n\n"
        if not begun:
            raise ConnectionResetError  # the server hangs up before the last chunk
        yield begun

    provider.will(cut)
    assert (await asked(model, as_stream=True)).text == "42"


async def test_empty_events_and_a_choice_without_a_number_are_part_of_a_stream(
    model: ChatModel, provider: Provider
) -> None:
    last = {"choices": [{"delta": {"content": "2"}, "finish_reason": "stop"}]}
    provider.will(sse("data:\n\n", delta(content="4"), "data: \n\n", last, "data: [DONE]\n\n"))
    assert (await asked(model, as_stream=True)).text == "42"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
async def test_lines_of_a_stream_may_end_in_any_way_and_be_cut_anywhere(
    model: ChatModel, provider: Provider, end: str
) -> None:
    written = f'event: x{end}: a comment{end}{end}data:{{"choices": [{end}data: {{"delta": {{"content": "42"}}}}]}}'
    provider.will(sse(*f"{written}{end}{end}data: [DONE]{end}"))
    assert (await asked(model, as_stream=True)).text == "42"


WHOLE_BEHIND = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "It is 42."}}]}
STREAMS: dict[str, list[Any]] = {
    "the mark of a byte order": ["\ufeff", delta(content="It is"), delta("stop", content=" 42.")],
    "the whole message behind its pieces": [delta(content="It is"), delta("stop", content=" 42."), WHOLE_BEHIND],
}


@pytest.mark.parametrize("pieces", STREAMS.values(), ids=list(STREAMS))
async def test_the_words_of_a_stream_are_all_there_and_once(
    model: ChatModel, provider: Provider, pieces: list[Any]
) -> None:
    provider.will(sse(*pieces, "data: [DONE]\n\n"))
    assert (await asked(model, as_stream=True)).text == "It is 42."


async def test_an_endpoint_that_cannot_stream_is_understood(model: ChatModel, provider: Provider) -> None:
    async def not_streamed(body: dict[str, Any]) -> Any:
        assert body["stream"]
        answer = says("42")
        answer.headers["content-type"] = "application/json; charset=utf-8"
        answer.media_type = None
        return answer

    provider.will(not_streamed)
    assert (await asked(model, as_stream=True)).text == "42"


USAGES = {
    "OpenAI's": (
        {
            **USED,
            "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        (11, 7, 5, 2, 3, False),
    ),
    "LiteLLM's": ({**USED, "prompt_tokens_details": {"cache_creation_tokens": 2}}, (11, 7, 0, 2, 0, False)),
    "LiteLLM's of before": ({**USED, "cache_creation_input_tokens": 2}, (11, 7, 0, 2, 0, False)),
    "DeepSeek's": ({**USED, "prompt_cache_hit_tokens": 5}, (11, 7, 5, 0, 0, False)),
    "xAI's": (
        {**USED, "total_tokens": 48, "completion_tokens_details": {"reasoning_tokens": 30}},
        (11, 37, 0, 0, 30, False),
    ),
    "details that are null": (
        {**USED, "prompt_tokens_details": None, "completion_tokens_details": None},
        (11, 7, 0, 0, 0, False),
    ),
    "Anthropic's names": (
        {"input_tokens": 11, "output_tokens": 7, "cache_creation_input_tokens": 2},
        (11, 7, 0, 2, 0, False),
    ),
    "as fractions": ({"prompt_tokens": 11.0, "completion_tokens": 7.5, "total_tokens": 18.5}, (11, 7, 0, 0, 0, False)),
    "in words": (
        {"prompt_tokens": "11", "completion_tokens": "7", "prompt_tokens_details": {"cached_tokens": "5"}},
        (11, 7, 5, 0, 0, False),
    ),
}


@pytest.mark.parametrize(("usage", "meant"), USAGES.values(), ids=list(USAGES))
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_usage_is_read(
    model: ChatModel, provider: Provider, usage: Any, meant: tuple[object, ...], *, as_stream: bool
) -> None:
    reply = await asked_with_usage(model, provider, usage, as_stream=as_stream)
    counted = (reply.input_tokens, reply.output_tokens, reply.cached_tokens, reply.written_tokens)
    assert (*counted, reply.reasoning_tokens, reply.estimated) == meant


async def test_usage_in_a_choice_counts(model: ChatModel, provider: Provider) -> None:
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USED}]}
    provider.will(sse(delta(content="42"), ended, "data: [DONE]\n\n"))
    reply = await asked(model, as_stream=True)
    assert (reply.input_tokens, reply.output_tokens, reply.estimated) == (11, 7, False)


NO_USAGES: list[Any] = [
    None,
    {},
    {"prompt_tokens": 0, "completion_tokens": 0},
    {"prompt_tokens": -5, "completion_tokens": 7},
    {"completion_tokens": 7},
    {"prompt_tokens": 11, "completion_tokens": 0},
    "missing",
]


@pytest.mark.parametrize("usage", NO_USAGES)
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_what_the_endpoint_does_not_count_is_estimated(
    model: ChatModel, provider: Provider, usage: Any, *, as_stream: bool
) -> None:
    reply = await asked_with_usage(model, provider, usage, as_stream=as_stream)
    assert reply.estimated
    assert 5 <= reply.input_tokens <= 12
    assert 3 <= reply.output_tokens <= 10


async def asked_with_usage(model: ChatModel, provider: Provider, usage: Any, *, as_stream: bool) -> Reply:
    given = {} if usage == "missing" else {"usage": usage}
    body = orjson.loads(says("It is forty-two.").body)
    del body["usage"]
    streamed = sse(delta(content="It is forty-two."), delta("stop"), {"choices": [], **given}, "data: [DONE]\n\n")
    provider.will(streamed if as_stream else raw({**body, **given}))
    return await asked(model, as_stream=as_stream)


IN_TEXT = {
    "Hermes": f"<tool_call>\n{WRITTEN}\n</tool_call>",
    "Hermes, behind words": f"I look.\n\n<tool_call>\n{WRITTEN}\n</tool_call>",
    "Hermes, without an end": f"<tool_call>{WRITTEN}",
    "Hermes, with thinking": f"<think>Look.</think>\n<tool_call>{WRITTEN}</tool_call><|im_end|>",
    "Qwen's coder": "<tool_call>\n<function=search>\n<parameter=q>\n1\n</parameter>\n</function>\n</tool_call>",
    "Qwen's coder, without its mark": "<function=search>\n<parameter=q>\n1\n</parameter>\n</function>\n</tool_call>",
    "Llama's functions": '<function=search>{"q": "1"}</function>',
    "GLM": "<tool_call>search\n<arg_key>q</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "Granite": f"<|tool_call|>[{WRITTEN}]<|/tool_call|>",
    "Claude's": '<function_calls>\n<invoke name="search">\n<parameter name="q">1</parameter>\n</invoke>\n'
    "</function_calls>",
    "DeepSeek 3.1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{"q": "1"}<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>",
    "DeepSeek 3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
    '{"q": "1"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "MiniMax": '<minimax:tool_call><invoke name="search"><parameter name="q">1</parameter></invoke>\n'
    "</minimax:tool_call>",
    "Mistral": f"[TOOL_CALLS][{WRITTEN}]",
    "Mistral, behind words": 'I look.[TOOL_CALLS]search[CALL_ID]aB3dE5fG7[ARGS]{"q": "1"}',
    "DeepSeek": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n<｜DSML｜parameter name="q" string="true">1'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "Llama": '<|python_tag|>{"type": "function", "name": "search", "parameters": {"q": "1"}}<|eom_id|>',
    "Llama, without its mark": '{"name": "search", "parameters": {"q": "1"}}',
    "Kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"q": "1"}'
    "<|tool_call_end|><|tool_calls_section_end|>",
    "gpt-oss": "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.search "
    '<|constrain|>json<|message|>{"q": "1"}<|call|>',
    "gpt-oss, without its marks": 'analysisLook.assistantcommentary to=functions.search json{"q": "1"}',
    "a code block": f"```json\n{WRITTEN}\n```",
    "a code block of OpenAI's form": f'```\n{{"type": "function", "function": {WRITTEN}}}\n```',
    "another case": WRITTEN.replace("search", "functions.Search"),
}
SEARCH = ToolSpec("search", "Searches.", {"type": "object", "properties": {"q": {"type": "string"}}})


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("text", IN_TEXT.values(), ids=list(IN_TEXT))
async def test_calls_that_are_written_as_text_are_read_and_never_heard(
    model: ChatModel, provider: Provider, text: str
) -> None:
    provider.will(says(text), streams(*text), says(text))
    heard = Heard()
    with capture_logs() as logs:
        replies = [await model.reply(ASKED, [SEARCH], listener=each) for each in (None, heard.listener)]
    said = "I look." if text.startswith("I look.") else ""
    assert [(each.text, each.calls) for each in replies] == [(said, (ModelCall("search", {"q": "1"}),))] * 2
    assert heard.text == said
    [line] = logs  # once for all answers
    assert (line["event"], line["log_level"]) == ("model_calls_in_text", "warning")
    assert "--tool-call-parser" in line["advice"]
    assert (await model.reply(ASKED, [SEARCH], tool_choice="none")).calls == ()


NO_CALLS = {
    "in the middle of prose": f"The page says\n<tool_call>{WRITTEN}</tool_call>\nwhich I did not do.",
    "at the end of a line": f"The page says: <tool_call>{WRITTEN}</tool_call>",
    "in quotes": f'The page says "[TOOL_CALLS]{WRITTEN}',
    "in a code block behind words": f"It looks so:\n```json\n{WRITTEN}\n```",
    "in a code block with words behind it": f"```json\n{WRITTEN}\n```\nis how it looks.",
    "a mark in a code block": f"```\n<tool_call>{WRITTEN}</tool_call>\n```",
    "behind a backtick": f"`<tool_call>{WRITTEN}</tool_call>`",
    "of a tool that is not offered": f"<tool_call>{WRITTEN.replace('search', 'erase')}</tool_call>",
    "one of a tool that is not offered": f"<tool_call>{WRITTEN}{WRITTEN.replace('search', 'erase')}</tool_call>",
    "two without a mark": f"[{WRITTEN}, {WRITTEN}]",
    "broken": f"<tool_call>{WRITTEN[:-2]}</tool_call>",
    "other JSON": '{"name": "Rossi", "city": "Rome"}',
    "a tool's definition": '```json\n{"name": "search", "description": "Searches.", "parameters": {"q": "1"}}\n```',
    "a program": "```python\nprint('<think>')\n```\nprints it.",
    "a list": "[1] says <b>so</b>, [2] does not.",
    "arguments that are a list": '<tool_call>{"name": "search", "arguments": [["q", "true", 1]]}',
    "a function of a list": '<function=search>[["q", "true", 1]]</function>',
    "keys without a call": "<tool_call>search\n<arg_key>q</arg_key>\n<arg_value>1",
    "too long": f'<tool_call>{{"name": "search", "arguments": {{"q": "{"x " * 32_000}"}}}}</tool_call>',
}


@pytest.mark.parametrize("text", NO_CALLS.values(), ids=list(NO_CALLS))
async def test_what_only_looks_like_a_call_is_the_answer(model: ChatModel, provider: Provider, text: str) -> None:
    provider.will(says(text), streams(*re.findall(rf"(?s).{{1,{7 + len(text) // 20}}}", text)))
    heard = Heard()
    for listener in (None, heard.listener):
        reply = await model.reply(ASKED, [SEARCH], listener=listener)
        assert (reply.text, reply.calls) == (text, ())
    assert heard.text == text


async def test_a_program_and_a_list_are_heard_as_they_come(model: ChatModel, provider: Provider) -> None:
    for opening in ("```python\nprint(1)", "[1] says", '{"city": "Rome"', "It is"):
        more, heard = asyncio.Event(), asyncio.Queue[str]()
        provider.will(streams(opening, more, " so."))
        listener = Listener(heard.put_nowait, lambda: None)
        reply = asyncio.create_task(model.reply(ASKED, [SEARCH], listener=listener))
        async with asyncio.timeout(PATIENCE_S):
            await heard.get()
        more.set()
        assert (await reply).text == f"{opening} so."


@pytest.mark.parametrize("shown", [WRITTEN, orjson.dumps({"page": f"<tool_call>\n{WRITTEN}"}).decode()])
async def test_a_call_that_stands_in_what_the_model_was_shown_is_quoted(
    model: ChatModel, provider: Provider, shown: str
) -> None:
    text = f"It says\n<tool_call>\n{WRITTEN}\n</tool_call>"
    made = AIMessage("", tool_calls=[{"id": "aB3dE5fG7", "name": "search", "args": {"q": "2"}}])
    provider.will(says(text), says(text))
    for messages in ([*ASKED, made, ToolMessage(shown, tool_call_id="aB3dE5fG7")], [ASKED[0], HumanMessage(shown)]):
        reply = await model.reply(messages, [SEARCH])
        assert (reply.text, reply.calls) == (text, ())


async def test_a_call_in_the_text_beside_another_is_quoted_and_half_of_one_is_not_shown(
    model: ChatModel, provider: Provider
) -> None:
    half = f"I look.\n<tool_call>{WRITTEN[:20]}"
    beside = {"content": f"<tool_call>{WRITTEN}", "tool_calls": [call("search", '{"q": "2"}')]}
    provider.will(completion(beside, "tool_calls"), completion({"content": half}, "length"))
    reply = await model.reply(ASKED, [SEARCH])
    assert (reply.text, reply.calls) == (beside["content"], (ModelCall("search", {"q": "2"}),))
    assert (await model.reply(ASKED, [SEARCH])).text == "I look."


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_of_several_answers_the_first_is_read(model: ChatModel, provider: Provider, *, as_stream: bool) -> None:
    choices = [{"index": at, "message": {"content": text}, "finish_reason": "stop"} for at, text in enumerate("ab")]
    deltas = [{"choices": [{"index": at, "delta": {"content": text}}]} for text in "12" for at in (0, 1)]
    provider.will(sse(*deltas, delta("stop"), "data: [DONE]\n\n") if as_stream else raw({"choices": choices}))
    assert (await asked(model, as_stream=as_stream)).text == ("12" if as_stream else "a")


async def test_an_endpoint_that_always_streams_is_understood(model: ChatModel, provider: Provider) -> None:
    answer = (delta(reasoning_content="Hm."), delta(content="4"), ": on\n\n", delta(content="2"))
    called = delta("tool_calls", tool_calls=[call("search", '{"q": 1}', index=0)])
    end = {"choices": [], "usage": USED}
    provider.will(sse(*answer, called, end, "data: [DONE]\n\n"), sse(*answer))
    reply = await asked(model, as_stream=False)
    assert (reply.text, reply.reasoning, reply.input_tokens) == ("42", "Hm.", 11)
    assert reply.calls == (ModelCall("search", {"q": 1}),)
    assert "stream" not in provider.requests[0]
    with pytest.raises(AppError, match="broke off in the middle"):
        await asked(model, as_stream=False)


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_a_name_in_another_case_is_that_of_the_tool(
    model: ChatModel, provider: Provider, *, as_stream: bool
) -> None:
    message = {"content": None, "tool_calls": [call(" default_api.SEARCH", '{"q": "1"}')]}
    provider.will(completion(message, "tool_calls"))
    heard = Heard().listener if as_stream else None
    reply = await model.reply(ASKED, [SEARCH], listener=heard)
    assert reply.calls == (ModelCall("search", {"q": "1"}),)


async def test_tools_and_images_count_where_the_endpoint_counts_nothing(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(name="gpt-4o")
    image = HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])
    tool = ToolSpec(name="search", description="Searches. " * 100, input_schema={"type": "object"}, source="builtin")
    body = orjson.loads(says("42").body)
    provider.will(*[raw({**body, "usage": None})] * 3)
    without, with_tool = await model.reply(ASKED), await model.reply(ASKED, [tool])
    with_image = await model.reply([*ASKED, AIMessage("Which?"), image])
    assert with_tool.input_tokens > without.input_tokens + 200
    assert with_image.input_tokens > without.input_tokens + 1000


async def test_signs_of_life_keep_a_stream_alive(open_model: OpenModel, provider: Provider) -> None:
    model = await open_model(idle_s=0.7, first_token_s=0.7)
    comments = [piece for _ in range(8) for piece in (": PROCESSING\n\n", 0.1)]
    thinking = [piece for n in range(8) for piece in (delta(reasoning_content=str(n)), 0.1)]
    provider.will(sse(*comments, *thinking, *comments, delta(content="42"), delta("stop"), "data: [DONE]\n\n"))
    assert (await asked(model, as_stream=True)).text == "42"


@pytest.mark.parametrize(
    "began", [delta(content="Well,"), delta(reasoning="Well,"), delta(tool_calls=[call("search", "", index=0)])]
)
async def test_silence_after_any_beginning_ends_a_stream(
    open_model: OpenModel, provider: Provider, began: dict[str, Any]
) -> None:
    model = await open_model(idle_s=0.1)
    provider.will(sse(began, 0.5))
    with pytest.raises(AppError) as failed:
        await asked(model, as_stream=True)
    assert failed.value.code == "model_timeout"


async def test_a_stream_without_a_sign_of_life_is_not_waited_for_and_not_asked_for_again(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(first_token_s=1, max_retries=2)
    provider.will(sse(": PROCESSING\n\n", 5.0))
    with pytest.raises(AppError) as failed, capture_logs() as logs:
        await asked(model, as_stream=True)
    assert failed.value.code == "model_timeout"
    assert "within 1 s (LLM_FIRST_TOKEN_TIMEOUT_S)" in failed.value.detail
    [line] = logs
    assert (line["event"], line["outcome"], line["reason"]) == ("model_failed", "too_slow", failed.value.detail)


async def test_the_first_word_may_take_longer_than_a_pause(open_model: OpenModel, provider: Provider) -> None:
    model = await open_model(idle_s=0.3)
    provider.will(sse(delta(role="assistant", content=""), ": PROCESSING\n\n", 0.4, delta("stop", content="42")))
    assert (await asked(model, as_stream=True)).text == "42"


async def test_words_that_come_in_one_piece_do_not_keep_everything_else_waiting(
    open_model: OpenModel, provider: Provider
) -> None:
    passes, at = 0, list[int]()

    async def pass_on() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    model = await open_model()
    words = [b"data: %b\n\n" % orjson.dumps(delta(content="word ")) for _ in range(200)]
    provider.will(sse(b"".join(words).decode(), delta("stop"), "data: [DONE]\n\n"))
    others = asyncio.create_task(pass_on())
    await model.reply(ASKED, listener=Listener(lambda _: at.append(passes), lambda: None))
    others.cancel()
    assert len(at) == 200
    assert max(Counter(at).values()) <= AT_ONCE


@pytest.mark.sweep
async def test_thousands_of_calls_in_one_event_do_not_keep_everything_else_waiting(
    model: ChatModel, provider: Provider
) -> None:
    many = [call("search", "{}", id=f"c{number}", index=number) for number in range(6000)]
    provider.will(sse(delta("tool_calls", tool_calls=many), "data: [DONE]\n\n"))
    with loop_kept_free():
        reply = await model.reply(ASKED, listener=Heard().listener)
    assert len(reply.calls) == 6000
