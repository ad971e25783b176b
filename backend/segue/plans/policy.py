"""What a message may set in motion: pure rules, no model and no storage.

Knows nothing of graphs or HTTP; the nodes of `agent/` ask and obey. Words come from `search.toml`.
"""

from dataclasses import dataclass
from typing import Final, assert_never

from segue.domain.plan import Confirm, Planning
from segue.domain.session import Verdict
from segue.domain.tool import ToolSpec
from segue.language.phrase_matcher import kinds_of, languages_of, load_lexicon
from segue.language.utterance import hear
from segue.plans.multistep_detector import LONGEST_READ, asks_for_several_steps

SHORTEST_FORCED_SEARCH: Final = 15

SEARCH_WORD_KINDS: Final = frozenset({"request", "search", "web", "topic"})
SEARCH_LEXICON: Final = load_lexicon("search.toml", kinds=SEARCH_WORD_KINDS | {"earlier"})


@dataclass(frozen=True, slots=True)
class SearchDecision:
    """`reason` is one of acknowledgement, asked_for, earlier_results, forced, not_asked, too_short, unavailable."""

    search: bool
    reason: str


def should_search_web(message: str, *, force: bool, verdict: Verdict) -> SearchDecision:
    """`verdict` is how the message reads as an acknowledgement, `force` the client's toggle.

    A yes with a change may ask for a search in words; a bare yes or no never does, toggle or not.
    """
    said = _search_kinds(message)
    if verdict in {"confirm", "reject"} or (verdict == "amend" and said.isdisjoint(SEARCH_WORD_KINDS)):
        return SearchDecision(search=False, reason="acknowledgement")
    if "request" in said or {"search", "web"} <= said:
        return SearchDecision(search=True, reason="asked_for")
    if "earlier" in said and "search" not in said:
        return SearchDecision(search=False, reason="earlier_results")
    if not force:
        return SearchDecision(search=False, reason="not_asked")
    if len(message.strip()) < SHORTEST_FORCED_SEARCH and said.isdisjoint(SEARCH_WORD_KINDS):
        return SearchDecision(search=False, reason="too_short")
    return SearchDecision(search=True, reason="forced")


def should_plan(message: str, *, mode: Planning, verdict: Verdict) -> bool:
    """Whether the model is asked for a plan. A yes or a no asks for nothing new."""
    match mode:
        case "never":
            return False
        case "always":
            return verdict not in {"confirm", "reject"}
        case "auto":
            return verdict not in {"confirm", "reject"} and asks_for_several_steps(message)
        case _:
            assert_never(mode)


def needs_confirmation(tool: ToolSpec, mode: Confirm) -> bool:
    """Whether the user is asked before the tool runs; what its configuration says goes before its effect.

    Under `always` every tool that leaves a trace in the ledger asks, under `never` none does.
    """
    match mode:
        case "never":
            return False
        case "always":
            return not tool.ephemeral
        case "destructive":
            return tool.confirm if tool.confirm is not None else tool.effect == "destructive"
        case _:
            assert_never(mode)


def _search_kinds(message: str) -> set[str]:
    """What the message says of searching, in whichever languages its words are."""
    words = hear(message[:LONGEST_READ]).words
    return {
        kind for language in languages_of(words, SEARCH_LEXICON) for kind in kinds_of(words, language, SEARCH_LEXICON)
    }
