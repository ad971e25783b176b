"""Whether a message gets a web search or a plan, and whether a tool asks the user before it runs.

The operator's own rule over each call, BEFORE_CALL or `create_app(before_call=…)`, can only tighten: what waits for a
yes anyway still does. A rule that fails, or takes too long, denies.
"""

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, Literal

from anyio import to_thread

from segue.domain.plan import Confirm, Planning
from segue.domain.session import RequestedCall, Verdict
from segue.domain.tool import Effect, Tool, ToolContext, ToolSpec
from segue.language.lexicon import UNKNOWN, WordList, kinds_of, match_lists
from segue.language.utterance import own_words, parse_utterance, sentences_of, words_of
from segue.log import log
from segue.plans import multistep_detector
from segue.plans.acknowledgement import LEXICON

WEB_SEARCH: Final = "web_search"
SHORTEST_FORCED_SEARCH: Final = 15  # characters
SHORTEST_QUESTION: Final = 3  # words
LONGEST_QUERY: Final = 200  # characters; a longer message is more than a question
MAX_REASON_CHARS: Final = 500

_DENIALS: Final = frozenset({"no", "negator"})
_FILE: Final = re.compile(
    r"(?<![\w/.-])[\w-]{1,100}+\.(?:py|[jt]sx?|md|txt|pdf|docx?|xlsx?|pptx?|csv|json|toml|ya?ml|html?|png|jpe?g|eml|log|sh|go|rs)\b",
    re.IGNORECASE,
)
# Addresses, quotations, and whatever may be an id: a number of five digits, a word of letters and digits.
_IDENTIFYING: Final = re.compile(
    r"\S@\S|\w://|[<>＞]|\d{5}|(?<![A-Za-z0-9_-])(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z0-9_-]{5,}"
)

UNASKED: Final = WordList("unasked.toml", match_lists)
ASKING: Final = WordList("asking.toml", match_lists)

SearchReason = Literal[
    "acknowledgement", "asked_for", "earlier_results", "failed", "forbidden", "forced", "model",
    "not_asked", "offered", "plan", "private", "small_talk", "too_short", "unavailable",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchDecision:
    """`search` says that the web may help with the message; it does not say who writes the query."""

    search: bool
    reason: SearchReason


def should_search_web(message: str, *, force: bool, verdict: Verdict) -> SearchDecision:
    """`verdict` is what the message is as an acknowledgement, `force` the client's toggle. A yes with a change may ask
    for a search in words; a plain yes or no never starts one, toggle or not. What the user asks of their own mail,
    files, calendar, of the plan or of this conversation is not on the web.
    """
    own = own_words(message)
    request = _Request(own, multistep_detector.search_readings(own), force, verdict)
    reason: SearchReason | None = next((reason for reason, holds in _SEARCH_RULES if holds(request)), None)
    return SearchDecision(search=reason in {None, "asked_for"}, reason=reason or "forced")


def web_query(message: str) -> str | None:
    """Returns a message's question as an engine may be sent it; None if it leans on the user, or asks for more."""
    text = message.strip()
    if len(text) > LONGEST_QUERY or "\n" in text or _IDENTIFYING.search(text) or _FILE.search(text):
        return None
    question = multistep_detector.without_request(text)
    readings = multistep_detector.search_readings(question)
    whole = all(multistep_detector.QUERY_KINDS.issuperset(kinds) and UNKNOWN in kinds for kinds in readings)
    return question if whole and not multistep_detector.asks_for_several_steps(text) else None


def without_forbidden(tools: Mapping[str, Tool], search: SearchDecision) -> dict[str, Tool]:
    """Returns the tools that the turn may use: no search if the user does not want any."""
    return {name: tool for name, tool in tools.items() if name != WEB_SEARCH or search.reason != "forbidden"}


def should_plan(message: str, *, mode: Planning, verdict: Verdict) -> bool:
    """Returns whether the model is asked for a plan. A yes or a no asks for nothing new."""
    if mode == "never" or verdict in {"confirm", "reject"}:
        return False
    return mode == "always" or multistep_detector.asks_for_several_steps(message)


def gives_leave(message: str) -> bool:
    """Returns whether a message says that something may be done without asking; `never send it without asking` not."""
    for words in map(words_of, sentences_of(message[: multistep_detector.LONGEST_READ])):
        cues = {at: found for at in range(len(words)) if (found := UNASKED.now.longest_at(words, at))}
        cued = {at + offset for at, (length, _) in cues.items() for offset in range(length)}
        rest = tuple(word for at, word in enumerate(words) if at not in cued)  # none of which may deny it
        languages = {language for _, language in cues.values()}
        if any(_DENIALS.isdisjoint(kinds_of(rest, language, LEXICON.now)) for language in languages):
            return True
    return False


def speaks_of_asking(message: str) -> bool:
    """Returns whether a message may be about what the user wants to be asked about."""
    words = words_of(message[: multistep_detector.LONGEST_READ])
    return any(ASKING.now.longest_at(words, at) for at in range(len(words)))


def needs_confirmation(tool: ToolSpec, mode: Confirm) -> bool:
    """Returns whether the user is asked before the tool runs. A tool's own configuration overrides its effect."""
    match mode:
        case "never":
            return False
        case "always":
            return not tool.ephemeral
        case "destructive":
            return tool.effect == "destructive" if tool.confirm is None else bool(tool.confirm)


@dataclass(frozen=True, slots=True)
class _Request:
    """A message and the kinds of its words, in each language that it may be in."""

    message: str
    readings: Sequence[Sequence[str]]
    force: bool
    verdict: Verdict

    def has(self, *kinds: str) -> bool:
        return any(kind in reading for kind in kinds for reading in self.readings)

    @property
    def searches(self) -> bool:
        return self.has(*multistep_detector.SEARCH_WORD_KINDS)

    @property
    def is_private(self) -> bool:
        """Whether it is about the user's own things; a general question is not: `what is an email header?`."""
        own = self.has("own") and not self.has("general")
        before = {"greeting", "thanks", "lead"}
        opening = [next((kind for kind in kinds if kind not in before), "") for kinds in self.readings]
        return own or self.has("private") or _FILE.search(self.message) is not None or "deed" in opening

    @property
    def is_small_talk(self) -> bool:
        """Whether it is mere thanks or a greeting, or is about the conversation, as `are you sure?`, or a poem."""
        greets = self.has("greeting") and any(
            len(kinds) - kinds.count("greeting") - kinds.count("thanks") < SHORTEST_QUESTION for kinds in self.readings
        )
        thanks = self.has("thanks") and not parse_utterance(self.message[: multistep_detector.LONGEST_READ]).asks
        return not self.searches and (greets or thanks or self.has("aside"))

    @property
    def is_too_short(self) -> bool:
        utterance = parse_utterance(self.message[: multistep_detector.LONGEST_READ])
        asks = utterance.asks and len(utterance.words) >= SHORTEST_QUESTION
        return not asks and not self.searches and len(self.message.strip()) < SHORTEST_FORCED_SEARCH


# The first that holds decides; a message that none holds for is searched, since the toggle is on.
_SEARCH_RULES: Final[tuple[tuple[SearchReason, Callable[[_Request], bool]], ...]] = (
    ("forbidden", lambda r: r.has("forbid")),
    ("acknowledgement", lambda r: r.verdict in {"confirm", "reject"} or (r.verdict == "amend" and not r.searches)),
    ("asked_for", lambda r: any(map(multistep_detector.asks_for_the_web, r.readings))),
    ("earlier_results", lambda r: r.has("earlier") and not r.has("search")),
    ("not_asked", lambda r: not r.force),
    ("private", lambda r: r.is_private),
    ("too_short", lambda r: r.is_too_short),
    ("small_talk", lambda r: r.is_small_talk),
)


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call as it would run: its arguments fit the tool's schema."""

    name: str
    args: Mapping[str, Any]
    effect: Effect
    source: str


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run. The model and the user are told why."""

    reason: str


Ruling = Literal["allow", "ask"] | Deny
BeforeCall = Callable[[ProposedCall, ToolContext], object | Awaitable[object]]


async def rule(
    policy: BeforeCall, call: RequestedCall, tool: ToolSpec, who: ToolContext, *, timeout_s: float
) -> Ruling:
    """Returns the policy's ruling on a call. It is `allow`, `ask`, `deny` or a Deny; everything else denies."""
    proposed = ProposedCall(tool.name, copy.deepcopy(call.args), tool.effect, tool.source)
    try:
        async with asyncio.timeout(timeout_s):
            # In a thread, for a function that blocks; what an `async def` returns there is awaited here.
            answer = await to_thread.run_sync(policy, proposed, who, abandon_on_cancel=True)
            answer = await answer if isawaitable(answer) else answer
    except (Exception, SystemExit) as fault:
        log.warning("policy_failed", tool=tool.name, error=type(fault).__name__, exc_info=fault)
        return Deny("the rule that decides failed, or took too long")
    match answer:
        case "allow" | "ask":
            return answer
        case "deny":
            return Deny("no reason is given")
        case Deny():
            return Deny(" ".join(answer.reason.split())[:MAX_REASON_CHARS] or "no reason is given")
        case _:
            log.warning("policy_failed", tool=tool.name, error="NoRuling", said=type(answer).__name__)
            return Deny("the rule that decides gave no answer that is known")
