"""What is sent is valid for the strictest endpoint, whatever became of the turns before, and begins as it did before.

If `mistral-common` is installed (150 MB, so it is no dependency) its validators judge each request too.
"""

import importlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import hypothesis
import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from segue.agent import prompts
from segue.agent.render_messages import SessionContent, add_result, assistant_message, build_prompt
from segue.domain.session import Message, RequestedCall, Role
from segue.memory.history_window import WindowLimits, estimate, provider_valid
from segue.models.normal_form import (
    ANY_MODEL,
    CARRY_ON,
    NO_ANSWER,
    NO_WORDS,
    RESULTS_NOTED,
    WireForm,
    form_of,
    normal_form,
    sent_ids,
    short_id,
)
from segue.models.reply import OPAQUE
from tests.support.request_forms import invalid_in_form

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2")) * 20
AT = datetime(2026, 1, 1, tzinfo=UTC)
ONE_CALL, NO_TEXT, NO_SYSTEM = (
    WireForm(one_call_per_message=True),
    WireForm(no_text_beside_calls=True),
    WireForm(no_system_role=True),
)
# As they are once an endpoint has refused a message with opaque parts.
REFUSED = {ONE_CALL: replace(ONE_CALL, opaque_too=True), NO_TEXT: replace(NO_TEXT, opaque_too=True)}
FORMS = (ANY_MODEL, ONE_CALL, NO_TEXT, NO_SYSTEM)
NAMED_IDS, DESCRIBED = WireForm(call_id="functions.{name}:{before}"), WireForm(describes_parameters=True)
HAS_MISTRAL = importlib.util.find_spec("mistral_common") is not None
MISTRAL_VERSIONS = {
    NO_TEXT: ("v2", "v3", "v7", "v11", "v13"),
    ANY_MODEL: ("v7", "v11", "v13", "v15"),
    ONE_CALL: ("v7",),
}


def as_sent(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The messages as chat completions have them."""
    roles = {SystemMessage: "system", HumanMessage: "user", AIMessage: "assistant", ToolMessage: "tool"}
    sent: list[dict[str, Any]] = []
    for message in messages:
        body: dict[str, Any] = {"role": roles[type(message)], "content": message.content}
        if isinstance(message, ToolMessage):
            body["tool_call_id"] = message.tool_call_id
        if isinstance(message, AIMessage) and message.tool_calls:
            body["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": orjson.dumps(call["args"]).decode()},
                }
                for call in message.tool_calls
            ]
        sent.append(body)
    return sent


def check_by_mistral(sent: list[dict[str, Any]], form: WireForm) -> None:
    """Raises what the validators of Mistral's tokenizers find wrong."""
    if not HAS_MISTRAL:
        return
    validator = importlib.import_module("mistral_common.protocol.instruct.validator")
    messages = importlib.import_module("mistral_common.protocol.instruct.messages")
    versions = importlib.import_module("mistral_common.tokens.tokenizers.base").TokenizerVersion
    kinds = {
        "system": messages.SystemMessage,
        "user": messages.UserMessage,
        "assistant": messages.AssistantMessage,
        "tool": messages.ToolMessage,
    }
    theirs = [kinds[message["role"]].from_openai(message) for message in sent]
    for version in MISTRAL_VERSIONS.get(form, ()):
        validator.get_validator(versions(version), validator.ValidationMode.serving).validate_messages(theirs)


def check(messages: Sequence[BaseMessage]) -> None:
    for form in FORMS:
        shown = normal_form(messages, REFUSED.get(form, form))
        sent = as_sent(shown)
        assert invalid_in_form(sent, form) is None, (form, outline(shown))
        assert signatures(shown) == signatures(messages)
        check_by_mistral(sent, form)


def signatures(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """What came with each call, by the id that the call goes out under."""
    found: dict[str, str] = {}
    for message in messages:
        opaque = message.additional_kwargs.get(OPAQUE)
        if isinstance(message, AIMessage) and opaque is not None:
            ids = [short_id(call["id"] or "") for call in message.tool_calls]
            found |= {call_id: parts["signature"] for call_id, parts in zip(ids, opaque["calls"], strict=True)}
    return found


def outline(messages: Sequence[BaseMessage]) -> str:
    """Who speaks, a letter each: `c` is a message with a call, `C` one with several, and a placeholder is marked."""
    letters = {"system": "s", "human": "u", "ai": "a", "tool": "t"}
    marks = {NO_ANSWER: "a-", RESULTS_NOTED: "a+", CARRY_ON: "u+", NO_WORDS: "u-"}
    return " ".join(
        ("C" if len(message.tool_calls) > 1 else "c")
        if isinstance(message, AIMessage) and message.tool_calls
        else marks.get(str(message.content), letters[message.type])
        for message in messages
    )


@dataclass(frozen=True, slots=True)
class Round:
    """What the assistant does: calls of tools, of which the last `lost` never end, or a text, as a step of a plan.

    Calls that are `signed` have opaque parts, which are stored and go out with them in every later request.
    """

    calls: int
    text: str = ""
    signed: bool = False
    lost: int = 0


rounds = st.lists(
    st.builds(Round, st.integers(1, 3), st.sampled_from(["", "Let me look."]), st.booleans())
    | st.builds(Round, st.just(0), st.just("A draft.")),
    max_size=4,
)
endings = st.sampled_from(["failed", "cancelled", "interrupted"])
notes = st.sampled_from([None, prompts.TEXTS["confirmed"], prompts.TEXTS["out_of_rounds"]])


class Session(RuleBasedStateMachine):
    """A session as the store, the prompt and the engine keep it; every request it makes is checked.

    Requests of one turn also have to begin with the request before, as long as the system message stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[Message] = []
        self.opaque: dict[str, dict[str, Any]] = {}
        self.summary: str | None = None
        self.turn = 0
        self.calls = 0
        self.conversation: list[BaseMessage] = []
        self.before: list[BaseMessage] = []

    @rule(rounds=rounds, note=notes)
    def answered(self, rounds: list[Round], note: str | None) -> None:
        self._begin("What is new?")
        self._go_through(rounds)
        self._answer("Nothing.", note)

    @rule(rounds=rounds, ending=endings, lost=st.integers(0, 2))
    def ended_without_an_answer(self, rounds: list[Round], ending: str, lost: int) -> None:
        """The last calls may be without results: their process died before it stored how they ended."""
        self._begin(f"This one will be {ending}.")
        self._go_through(rounds[:-1])
        for last in rounds[-1:]:
            self._go_through([replace(last, lost=min(lost, last.calls))])

    @precondition(lambda self: self.conversation)
    @rule(rounds=rounds)
    def resumed(self, rounds: list[Round]) -> None:
        """Another process goes on with the running turn, from what is stored."""
        open_calls = self._open_calls()
        self._render()
        for call in open_calls:
            self._store("tool", {"tool_call_id": call.id, "tool_name": call.name, "status": "unknown"}, call.id)
            add_result(self.conversation, call, "it is unknown")
        self.conversation = prompts.with_note(self.conversation, prompts.TEXTS["resumed"])
        self._ask()
        self._go_through(rounds)
        self._answer("Here it is.", None)

    @rule(first=rounds, second=rounds, reply=st.sampled_from(["yes", "no", "yes, but only the first"]))
    def planned(self, first: list[Round], second: list[Round], reply: str) -> None:
        """A plan runs to its question; the reply is read, the plan amended, and the rest of it runs."""
        self._begin("First look, then write, then send.")
        self._ask(prompts.TEXTS["planner"])
        self._go_through(first)
        self._store("assistant", "Shall I send it?")
        self._begin(reply)
        self._ask(prompts.TEXTS["reader"])
        self._ask(prompts.TEXTS["amender"])
        self._go_through(second)
        self._answer("It is done.", None)

    @precondition(lambda self: self.turn > 1)
    @rule(data=st.data())
    def summarised(self, data: st.DataObject) -> None:
        """Older turns go into the summary; the newest stays."""
        turns = [list(turn) for _, turn in groupby(self.stored, key=lambda message: message.turn_id)]
        kept = turns[data.draw(st.integers(0, len(turns) - 1)) :]
        self.stored, self.summary = [message for turn in kept for message in turn], "It was about news."
        self.conversation = []

    @invariant()
    def what_is_stored_can_be_sent(self) -> None:
        if self.stored:
            shown = self._prompt()[1:]
            check([SystemMessage(prompts.TEXTS["system"]), *shown])
            sendable = [call for each in self.stored if each.id in self.opaque for call in each.tool_calls]
            assert signatures(shown) == {short_id(call.id): f"of {call.id}" for call in sendable}

    def _begin(self, said: str) -> None:
        self.turn += 1
        self._store("user", said)
        self._render()
        self._ask()

    def _render(self) -> None:
        self.conversation, self.before = self._prompt(), []

    def _prompt(self) -> list[BaseMessage]:
        content = SessionContent(self.summary, [], AT, [], None, provider_valid(self.stored), [], {}, (), self.opaque)
        limits = WindowLimits(messages=1000, tokens=10**6, summarises=False)
        return build_prompt(content, limits, estimate).messages

    def _go_through(self, rounds: Sequence[Round]) -> None:
        for each in rounds:
            if each.calls:
                self._call(each)
            else:
                self._store("assistant", each.text)
                self.conversation.append(AIMessage(each.text))
            if not each.lost:
                self._ask()

    def _call(self, made: Round) -> None:
        ids = [f"call_{self.calls + number:026}" for number in range(made.calls)]
        calls = [RequestedCall(call_id, "look", {"id": call_id}) for call_id in ids]
        self.calls += made.calls
        self._store("assistant", made.text, calls=calls)
        opaque = None
        if made.signed:
            given = [{"signature": f"of {call.id}"} for call in calls]
            opaque = self.opaque[self.stored[-1].id] = {"by": "me", "message": {"reasoning": "Hm."}, "calls": given}
        for call in calls[: made.calls - made.lost]:
            self._store("tool", {"tool_call_id": call.id, "tool_name": "look", "status": "succeeded"}, call.id)
        answers = [ToolMessage("found", tool_call_id=call.id) for call in calls]
        self.conversation += [assistant_message(made.text, calls, opaque=opaque), *answers]

    def _answer(self, text: str, note: str | None) -> None:
        self._ask(note)
        self._store("assistant", text)
        self.conversation = []

    def _ask(self, note: str | None = None) -> None:
        check(prompts.with_note(self.conversation, note) if note else self.conversation)
        shown = normal_form(self.conversation)[1:]
        assert shown[: len(self.before)] == self.before
        self.before = shown

    def _open_calls(self) -> list[RequestedCall]:
        ended = {message.tool_call_id for message in self.stored}
        running = [message for message in self.stored if message.turn_id == f"turn_{self.turn}"]
        return [call for message in running for call in message.tool_calls if call.id not in ended]

    def _store(
        self,
        role: Role,
        content: str | dict[str, Any],
        call_id: str | None = None,
        calls: Sequence[RequestedCall] = (),
    ) -> None:
        seq = len(self.stored) + 1
        self.stored.append(
            Message(
                id=f"msg_{self.turn}_{seq}",
                seq=seq,
                turn_id=f"turn_{self.turn}",
                role=role,
                content=content,
                created_at=AT,
                tool_calls=tuple(calls),
                tool_call_id=call_id,
            )
        )


Session.TestCase.settings = hypothesis.settings(max_examples=EXAMPLES // 2, stateful_step_count=8)
TestSession = Session.TestCase


def calling(*ids: str, text: str = "", **more: Any) -> AIMessage:
    made = assistant_message(text, [RequestedCall(call_id, "look", {}) for call_id in ids])
    return made.model_copy(update=more)


SYSTEM, USER, AGAIN, ANSWER = SystemMessage("Be good."), HumanMessage("Hello"), HumanMessage("And?"), AIMessage("Well.")
A, B = ToolMessage("one", tool_call_id="call_a"), ToolMessage("two", tool_call_id="call_b")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([SYSTEM, USER, ANSWER, AGAIN], "s u a u", id="what is valid stays"),
        pytest.param([SYSTEM, USER, AGAIN], "s u a- u", id="an unanswered turn"),
        pytest.param([SYSTEM, USER, calling("call_a"), A, AGAIN], "s u c t a- u", id="a turn that failed after a call"),
        pytest.param([SYSTEM, USER, calling("call_a"), A], "s u c t", id="a running turn"),
        pytest.param([SYSTEM, USER, ANSWER], "s u a u+", id="the assistant last"),
        pytest.param(
            [SYSTEM, USER, ANSWER, calling("call_a"), A], "s u a u+ c t", id="a step of words and one of calls"
        ),
        pytest.param([SYSTEM, USER, calling("call_a"), A, SYSTEM], "s u c t a+ u", id="an instruction after a result"),
        pytest.param([SYSTEM, USER, SYSTEM], "s u", id="an instruction after the user"),
        pytest.param([SYSTEM, SYSTEM, USER], "s u", id="two system messages"),
        pytest.param([SYSTEM, ANSWER, USER], "s u+ a u", id="the assistant first"),
        pytest.param([SYSTEM, HumanMessage(" \n"), AIMessage(""), USER], "s u- a- u", id="nothing said"),
        pytest.param([SYSTEM, USER, calling("call_a", "call_b"), A, B], "s u C t t", id="two calls"),
        pytest.param([SYSTEM], "s u+", id="no message but the instructions"),
    ],
)
def test_user_and_assistant_take_turns(messages: list[BaseMessage], expected: str) -> None:
    assert outline(normal_form(messages)) == expected
    check(messages)


def test_a_normal_form_is_its_own() -> None:
    given = [SYSTEM, SYSTEM, ANSWER, USER, AGAIN, calling("call_a", "call_b", text="So."), A, B, SYSTEM, USER, ANSWER]
    for form in FORMS:
        shown = normal_form(given, form)
        assert invalid_in_form(as_sent(shown), form) is None
        assert normal_form(shown, form) == shown


def test_an_instruction_after_the_user_stands_in_the_users_message() -> None:
    assert normal_form([SYSTEM, USER, SystemMessage("Be brief.")])[1:] == [HumanMessage("Hello\n\nBe brief.")]


def test_calls_of_one_message_become_pairs_where_a_template_takes_one() -> None:
    shown = normal_form([SYSTEM, USER, calling("call_b", "call_a", text="Let me look."), A, B], ONE_CALL)
    assert outline(shown) == "s u c t c t"
    assert [message.text for message in shown[2:]] == ["Let me look.", "two", "", "one"]


def test_the_system_message_goes_into_the_first_message_of_the_user_where_there_is_no_role_for_it() -> None:
    shown = normal_form([SYSTEM, USER, ANSWER, AGAIN], NO_SYSTEM)
    assert shown == [HumanMessage("Be good.\n\nHello"), ANSWER, AGAIN]


def test_text_beside_calls_is_left_out_where_a_tokenizer_takes_one_of_them() -> None:
    shown = normal_form([SYSTEM, USER, calling("call_a", text="Let me look."), A], NO_TEXT)
    assert shown[2] == calling(short_id("call_a"))


def test_what_a_provider_wants_back_goes_back_but_for_the_ids() -> None:
    signed = {"additional_kwargs": {"reasoning_content": "Hm."}}
    thought = calling("call_a", "call_b", text="So.", **signed)
    expected = calling(short_id("call_a"), short_id("call_b"), text="So.", **signed)
    for form in FORMS[:3]:
        assert normal_form([SYSTEM, USER, thought, A, B], form)[2] == expected
    parts = AIMessage([{"type": "thinking", "thinking": "Hm.", "signature": "x"}])
    assert normal_form([SYSTEM, USER, parts, AGAIN])[2] == parts


def test_nothing_that_is_given_is_changed() -> None:
    given = [SYSTEM, USER, calling("call_a", "call_b", text="So."), A, B, USER, ANSWER, SYSTEM]
    copies = [message.model_copy(deep=True) for message in given]
    for form in FORMS:
        normal_form(given, form)
    assert given == copies


def test_an_id_is_nine_letters_and_digits_and_always_the_same_for_a_call() -> None:
    ids = [short_id(f"call_{number}") for number in range(2000)]
    assert len(set(ids)) == 2000
    assert all(len(each) == 9 and each.isascii() and each.isalnum() for each in ids)
    assert (short_id("call_0"), short_id("aB3dE5fG7")) == ("45jOvN4Qr", "aB3dE5fG7")


def test_two_calls_whose_ids_collide_get_two() -> None:
    sent = sent_ids([calling(*"alw")], ANY_MODEL, lambda call_id: f"{sum(map(ord, call_id)) % 11:09}")  # of one sum
    assert len(set(sent.values())) == 3
    assert list(sent) == [*"alw"]


@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(st.lists(st.sampled_from(["user", "says", 1, 2, 3]), max_size=12), st.data())
def test_a_conversation_begins_as_it_did_when_it_was_shorter(kinds: list[str | int], data: st.DataObject) -> None:
    groups = [list(_spoken(kind, place)) for place, kind in enumerate(kinds)]
    shorter = data.draw(st.integers(0, len(groups)))
    for form in (*FORMS, NAMED_IDS):
        before, after = (
            normal_form([SYSTEM, USER, *(message for group in said for message in group)], form)
            for said in (groups[:shorter], groups)
        )
        if before[-1].content == CARRY_ON:  # which is only said while nothing else follows
            before.pop()
        assert after[: len(before)] == before
        assert invalid_in_form(as_sent(after), form) is None


def _spoken(kind: str | int, place: int) -> Iterator[BaseMessage]:
    """What one rule of a conversation adds: a text, or calls with their results."""
    if isinstance(kind, str):
        yield HumanMessage(f"Hello {place}") if kind == "user" else AIMessage(f"Well {place}")
        return
    ids = [f"call_{place}_{number}" for number in range(kind)]
    yield calling(*ids, text="Let me look.")
    yield from (ToolMessage("found", tool_call_id=call_id) for call_id in ids)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gpt-5-mini", ANY_MODEL),
        ("meta-llama/Llama-3.1-8B-Instruct", ONE_CALL),
        ("llama3.3", ONE_CALL),
        ("codellama-34b", ANY_MODEL),
        ("Llama-4-Scout", ANY_MODEL),
        ("google/gemma-2-9b-it", NO_SYSTEM),
        ("gemma2:27b", NO_SYSTEM),
        ("gemma-3-27b-it", ANY_MODEL),
        ("open-mistral-nemo", NO_TEXT),
        ("mistralai/Mistral-7B-Instruct-v0.3", NO_TEXT),
        ("Mistral-Large-Instruct-2411", ANY_MODEL),
        ("mistral-small-2409", NO_TEXT),
        ("nvidia/nemotron-3", ANY_MODEL),
        ("mistral-medium-latest", ANY_MODEL),
        ("ibm-granite/granite-20b-functioncalling", NO_SYSTEM),
        ("granite3.3:8b", ANY_MODEL),
        ("c4ai-command-r-plus", DESCRIBED),
        ("moonshotai/Kimi-K2-Instruct", NAMED_IDS),
        ("MiniMaxAI/MiniMax-M2", WireForm(wants_thinking=True)),
        ("offline", ANY_MODEL),
    ],
)
def test_a_models_name_says_what_it_cannot_take(name: str, form: WireForm) -> None:
    assert form_of(name) == form
