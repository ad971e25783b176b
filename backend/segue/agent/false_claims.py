"""False claims in an answer, and their correction: an effect that no call had, a promise that nothing keeps."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from langchain_core.messages import AIMessage

from segue.agent import plan_messages, prompts
from segue.agent.planner import ask_reader
from segue.agent.state import TurnContext, TurnState, language_of, running_plan
from segue.domain.errors import AppError
from segue.domain.session import MAKE_IMAGE, READ_ATTACHMENT
from segue.domain.tool import PROPOSE_MANDATE, Tool
from segue.language.detect_language import detect_language
from segue.language.lexicon import WordList, kinds_of, parse_lexicon, phrases_of
from segue.language.shown_call import translate
from segue.language.utterance import own_words, parse_utterance, sentences_of, words_of
from segue.language.written_values import without_dates
from segue.log import log
from segue.models.refusals import gave_no_answer
from segue.plans.policy import without_forbidden
from segue.tools.builtin import BUILTIN
from segue.tools.builtin.builtin_tools import PROMISE
from segue.tools.results import calls_that_ran

MAX_CLAIM_CHARS: Final = 500  # of a sentence that a model is asked about
LONGEST_PROMISE: Final = 500  # characters of an answer that are looked at: every turn pays for it
LONGEST_CLAIM: Final = 500  # characters at each end of an answer that are looked at
LONGEST_HEADLINE: Final = 4  # words of a claim without a subject: `Email sent`, `Payment of $184 completed`
_LABELLED: Final = re.compile(r"[:：|]\W*\w+(?:\s\w+)?\W*$")  # `Invoice status: paid`, a row of a table
_READS: Final = frozenset({READ_ATTACHMENT, MAKE_IMAGE})  # calls of the engine's own, of no tool
PROMISE_KINDS: Final = frozenset({"promise", "later", "none", "of", "of_before"})
CLAIM_KINDS: Final = frozenset(
    {"cue", "passive", "did", "soft", "skip", "sure", "whole", "alone", "state", "maybe", "none"}
)
PROMISES: Final = WordList("promises.toml", partial(parse_lexicon, kinds=PROMISE_KINDS), share=True)
CLAIMS: Final = WordList("claims.toml", partial(parse_lexicon, kinds=CLAIM_KINDS), share=True)
_APART: Final = {"de": 14, "zh": 14, "ja": 14, "ko": 14}  # words that may stand between a cue and what was done
# Behind a quotation mark, a line that ends so, or within a list there may be words that are another's, as a letter's.
_FOR_ANOTHER: Final = re.compile(r"[\"“„«「『]|[:：,，،]\s*$|```|^\s*[>*-]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ClaimedEffect:
    """The sentences that claim effects: if one `is_sure`, no second reader is needed; `Done.` alone `is_bare`."""

    sentence: str
    is_sure: bool
    is_bare: bool = False


async def without_false_claims(
    context: TurnContext, state: TurnState, answer: str, *, was_heard: bool
) -> tuple[str, list[str]]:
    """Returns the answer, or a new one if it had to be asked for, and lines in the user's language that correct it."""
    answer, corrections = await _checked(context, state, answer, was_heard=was_heard)
    if _is_unkept(context, state, answer):
        corrections.append(translate("not_promised", language_of(state)))
    return answer, corrections


def _is_unkept(context: TurnContext, state: TurnState, answer: str) -> bool:
    """Returns whether an answer promises what no call has set up: neither `promise` nor one with an effect."""
    tools = context.guard.tools()
    if PROMISE.name not in tools or not state["approves"] or not says_promise(answer):
        return False
    kept = (each.tool_name == PROMISE.name for each in state["earlier_results"])
    done = (each.tool_name for each in state.get("tool_calls", ()) if each.status == "succeeded")
    return not any(kept) and all(name in tools and tools[name].spec.effect == "read_only" for name in done)


async def _checked(context: TurnContext, state: TurnState, answer: str, *, was_heard: bool) -> tuple[str, list[str]]:
    """Returns the answer, and its corrections if it claims an effect that no call of the session had. The model is
    asked once more, with its calls in view, unless its words were emitted already: those cannot be taken back. Of a
    turn that has changed something, only an answer after a failure is checked.
    """
    conversation = state.get("conversation")  # without one the answer is the engine's own
    claimed = claimed_effect(answer) if conversation else None
    has_worked = state["plan_runs"] or bool(state.get("tool_calls"))  # which `Done.` is about
    if conversation is None or claimed is None or (claimed.is_bare and has_worked):
        return answer, []
    tools = context.guard.tools()
    reads = {*_READS, *(name for name, tool in tools.items() if tool.spec.effect == "read_only")}
    failures = _failures(state, tools, {*reads, PROPOSE_MANDATE})  # a proposal is a question, whatever became of it
    unlisted = {name for name, tool in tools.items() if tool.spec.ephemeral}
    if not failures and _has_changed_something(state, unlisted, reads):
        return answer, []
    correction = failures or translate("nothing_changed", language_of(state))
    done = await context.transact(calls_that_ran, context.turn.session_id, but_of=reads)
    try:
        while claimed is not None and await _is_untrue(context, claimed, done):
            if was_heard:
                log.warning("false_claim")
                return answer, [correction]
            offered = context.guard.offered(without_forbidden(tools, state["search"]))
            known = {"you_said": claimed.sentence[:MAX_CLAIM_CHARS], "calls_that_changed": done}
            note = prompts.fenced_json(prompts.TEXTS["nothing_done"], known)
            messages = prompts.with_instruction([*conversation, AIMessage(answer)], note)
            answer = (await context.model.reply(messages, offered, tool_choice="none")).text or answer
            claimed, was_heard = claimed_effect(answer), True
    except AppError as error:
        if not gave_no_answer(error):
            raise
        return answer, [correction] if claimed is not None and claimed.is_sure and not done else []
    return answer, []


def _failures(state: TurnState, tools: Mapping[str, Tool], reads: Container[str]) -> str:
    """Returns how the plan failed, and the calls that would have changed something and failed; empty if none did."""
    plan, language = running_plan(state), language_of(state)
    newest = {call.tool_name: call for call in state.get("tool_calls", ()) if call.tool_name not in reads}
    failed = [call for call in newest.values() if call.status == "failed" and (not plan or call.plan_id != plan.id)]
    lines = [plan_messages.ended(plan, language)] if plan and plan.status == "failed" else []
    return "\n".join([*lines, *(plan_messages.outcome_line(call, tools, language) for call in failed)])


def _has_changed_something(state: TurnState, unlisted: Container[str], reads: Container[str]) -> bool:
    """Returns whether a call of the turn may have changed something. Its messages show the calls that leave no row."""
    spoken = state.get("conversation", [])[len(state["prompt"]) :]
    called = [call["name"] for each in spoken if isinstance(each, AIMessage) for call in each.tool_calls]
    recorded = [each.tool_name for each in state.get("tool_calls", ()) if each.status != "failed"]
    return any(name not in reads for name in (*recorded, *filter(unlisted.__contains__, called)))


async def _is_untrue(context: TurnContext, claimed: ClaimedEffect, done: Sequence[str]) -> bool:
    """Returns whether no call of the session had the claimed effect: a model decides if the rules cannot."""
    if claimed.is_sure and not done:
        return True
    could = (tool.spec for tool in context.guard.tools().values() if tool.spec.name not in BUILTIN)
    if not done and all(spec.effect == "read_only" for spec in could):
        return False
    known = {"sentence": claimed.sentence[:MAX_CLAIM_CHARS], "done": done}
    return await ask_reader(context, prompts.TEXTS["claim_reader"], prompts.TEXTS["claim"], known) == "confirm"


def says_promise(answer: str) -> bool:
    """Returns whether an answer promises something: `I'll remind you tomorrow`, but no offer and no condition."""
    text = _FOR_ANOTHER.split(own_words(answer[:LONGEST_PROMISE]), maxsplit=1)[0]
    language, sentences = detect_language(text), sentences_of(text)
    for each, after in pairwise([*sentences, ""]):
        words = words_of(each)
        kinds = {*kinds_of(words, language, PROMISES.now)}
        is_one = "promise" in kinds and "none" not in kinds
        is_later = "later" in kinds or any(map(str.isdecimal, words))
        if is_one and is_later and not parse_utterance(each + after).asks:
            return True
    return False


def says_later(text: str, language: str, *, of_things: bool = True) -> bool:
    """Returns whether a text has another time than now (`tomorrow`, `at 8 pm`), also one `of_things` (`of Monday`)."""
    kinds = [kind for kind, _ in phrases_of(words_of(without_dates(text, " ⏲ ")), language, PROMISES.now)]
    of_thing = (kinds[at - 1 : at] == ["of"] or kinds[at + 1 : at + 2] == ["of_before"] for at in range(len(kinds)))
    return any(kind == "later" and (of_things or not tied) for kind, tied in zip(kinds, of_thing, strict=True))


def claimed_effect(answer: str) -> ClaimedEffect | None:
    """Returns the effects that an answer claims: `I have sent it`. An offer, a condition, a denial, what was earlier
    and words for another are none; of a passive, and of what may be done to a text, it is not sure.
    """
    if len(answer) > 2 * LONGEST_CLAIM:
        answer = f"{answer[:LONGEST_CLAIM]}\n{answer[-LONGEST_CLAIM:]}"
    text = _FOR_ANOTHER.split(own_words(answer), maxsplit=1)[0]
    language, sentences = detect_language(text), sentences_of(text)
    claims, is_bare = dict[str, bool](), True
    for each, after in pairwise([*sentences, ""]):
        kinds = kinds_of(words_of(each), language, CLAIMS.now)
        found = [] if "none" in kinds else list(_claims_in(kinds, each, language))
        if found and not parse_utterance(each + after).asks:
            claims[each.strip()], is_bare = any(found), is_bare and "alone" in kinds
    is_sure = any(claims.values())
    return ClaimedEffect(" ".join(claims), is_sure, is_bare and not is_sure) if claims else None


def _claims_in(kinds: Sequence[str], sentence: str, language: str) -> Iterator[bool]:
    """Yields, for each way in which a sentence of these kinds of words claims an effect, whether it is sure."""
    is_sure, telling = "sure" in kinds, [kind for kind in kinds if kind not in ("skip", "sure")]
    if "whole" in kinds:
        yield True
    if "maybe" in kinds or (telling and set(telling) == {"alone"}):
        yield False
    is_label = "alone" not in kinds and _LABELLED.search(sentence)
    is_headline = len(kinds) <= LONGEST_HEADLINE and "state" not in kinds and not is_label
    if is_headline and telling and telling[-1] in ("did", "soft"):
        yield is_sure
    for at, kind in enumerate(kinds):
        if kind in ("cue", "passive") and (did := _done_behind(kinds[at + 1 :], _APART.get(language, 0))):
            yield is_sure or (kind == "cue" and did == "did")


def _done_behind(kinds: Sequence[str], apart: int) -> str | None:
    for at, kind in enumerate(kinds):
        if kind in ("did", "soft"):
            return kind
        if kind not in ("skip", "sure", "cue", "passive") and at >= apart:
            return None
    return None
