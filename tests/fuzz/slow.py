"""Whether reading a text may take more than its share: texts as long as they may be, of a piece that is repeated."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from langchain_core.messages import HumanMessage, SystemMessage

from segue.api.schemas import MAX_CHANGE_CHARS
from segue.around.offline.offline_model import reply_to
from segue.domain.redaction import without_secrets
from segue.domain.tool import ToolSpec
from segue.language.detect_language import detect_language
from segue.language.utterance import own_words, parse_own_words
from segue.language.written_values import dates_in, numbers_in, times_in
from segue.memory.fact_cues import LONGEST_READ, index_words, is_correction, may_state_facts, search_words
from segue.memory.history_window import estimate
from segue.models.calls_in_text import read_calls
from segue.models.reply import AnswerPart, RequestOptions
from segue.models.streamed_answer import StreamedAnswer
from segue.models.untrusted import fenced
from segue.plans.acknowledgement import chosen_of, classify
from segue.plans.asked_words import Question, is_about, question_in, question_of
from segue.plans.multistep_detector import asks_for_several_steps
from segue.plans.plan_parser import MAX_TEXT_CHARS, parse_plan
from segue.plans.policy import should_search_web
from segue.tools.normalize import clean_text, described
from segue.tools.run import MAX_ERROR_CHARS, credentials_refused
from segue.tools.summaries import identifiers, preview, summarise, summarise_call
from tests.fuzz.draw import Draw

MOST_S: Final = 0.4  # what the fuzzer adds makes it four times as slow
A_RESULT: Final = 100_000  # characters: of a longer one the time is in proportion
PIECES: Final = (
    "a", " ", "\n", "\t", "1", "-", "_", ".", ",", "<", "[", "{", '"', "'", "\\", "/", "@", ":",
    "a ", " a", "a.", "a-1",
    "a1", "1)", "①", "> ", "yes ", "no ", "then ", "find ", "find a, ", "mine ", "```", "`", "«",
    "“a", "‘", "http://", "://",
    "://a:", "Bearer ", "key=", "token: ", "token is ", "sk-", "eyJaaaaaaaa.",
    "-----BEGIN PRIVATE KEY", "data:a/b;", ";base64,",
    "data:a/b;a=", "A", "aB", "AB", "你", "好 ", "ا", "क", "\u0301", "\u200b", "<u", "</", "<|", "[/",
    "<think>", "abc_1", "x@y.",
    "a/", "l'", "l’", "ſ", "İ", "..", "?", "? ", "!", ";", "|", "|-", "a\tb\n", "a,b\n", "  \n",
    "\r\n", "+1", ":)", "<3", "401 ",
    "HTTP 401", "invalid ", "untrusted", "0x", "%00", "＞", "💬", "👍", "{[", "}{", ",]", "remember ",
    "my ", "A" * 76 + "\n", "<source ", "</source>", "1 wrote:\n", "---- a", "From: a@b\n",
    "<tool_call>", "[TOOL_CALLS]", '{"name":"a","arguments":{}}', "a[ARGS]", "a ", "<function=a>", "</function>",
    "<parameter=a>", "</parameter>", "analysis", "assistantfinal", "<|channel|>analysis",
)  # fmt: skip


def _offline(text: str) -> None:
    reply_to([SystemMessage("You answer."), HumanMessage(text)], RequestOptions())


A: Final = ToolSpec("a", "", {})


def _streamed(text: str) -> None:
    shown = HumanMessage(text)
    answer = StreamedAnswer(read_calls=lambda text: read_calls(text, tools=[A], names={"a": "a"}, messages=[shown]))
    for at in range(0, len(text), 50):
        answer.add(AnswerPart(text[at : at + 50]))
    answer.reply()


# What reads a text, and how long a text it may be given.
READERS: Final[Mapping[str, tuple[Callable[[str], object], int]]] = {
    "classify": (classify, 1_000),
    "own_words": (parse_own_words, 1_000),
    "several_steps": (asks_for_several_steps, MAX_CHANGE_CHARS),
    "search_web": (lambda text: should_search_web(text, force=True, verdict="none"), MAX_CHANGE_CHARS),
    "facts": (lambda text: (may_state_facts(text), is_correction(text), search_words(text)), LONGEST_READ),
    "index": (index_words, 2_000),
    "language": (detect_language, MAX_CHANGE_CHARS),
    "question": (lambda text: question_of("delete_all", text, {"a": text}), MAX_CHANGE_CHARS),
    "offer": (lambda text: (question_in(f"{text}?"), is_about(text, "delete_all")), MAX_CHANGE_CHARS),
    "written": (lambda text: (dates_in(text), times_in(text), numbers_in(text)), MAX_TEXT_CHARS),
    "selection": (lambda text: chosen_of(text, dict.fromkeys((1, 2, 3), Question())), MAX_CHANGE_CHARS),
    "plan": (lambda text: parse_plan(text, tools=("a_b",)), MAX_TEXT_CHARS),
    "estimate": (estimate, A_RESULT),
    "fenced": (fenced, A_RESULT),
    "redacted": (without_secrets, A_RESULT),
    "clean": (clean_text, A_RESULT),
    "described": (lambda text: described({"mime_type": "image/png", "data": text, "text": f" {text}"}), A_RESULT),
    "identifiers": (lambda text: (identifiers(text), identifiers({"a": text[:300], text[:60]: 1})), A_RESULT),
    "summary": (lambda text: (summarise(text), summarise_call("a", {"a": text}, {}, text)), A_RESULT),
    "summary_of_keys": (lambda text: summarise([{text: text}, {"a": [text]}]), A_RESULT),
    "preview": (lambda text: preview(text, max_chars=500), A_RESULT),
    "credentials": (credentials_refused, MAX_ERROR_CHARS),
    "answer": (_streamed, A_RESULT),
    "offline": (_offline, MAX_CHANGE_CHARS),
    "said": (own_words, MAX_CHANGE_CHARS),
}


def slow(data: bytes) -> None:
    draw = Draw(data)
    name = draw.one_of(tuple(READERS))
    read, longest = READERS[name]
    before, after = _piece(draw), _piece(draw)
    again = "".join(_piece(draw) for _ in range(1 + draw.number(4))) or "a"
    text = (before + again * (longest // len(again)) + after)[:longest]
    took = seconds(read, text)
    if took > MOST_S:
        took = min(seconds(read, text) for _ in range(3))  # on a loaded machine the same takes longer now and then
    assert took <= MOST_S, (name, before, again, after, took)


def _piece(draw: Draw) -> str:
    return draw.text(8) if draw.number(5) == 4 else draw.one_of(("", *PIECES))


def seconds(read: Callable[[str], object], text: str) -> float:
    started = time.thread_time()
    read(text)
    return time.thread_time() - started
