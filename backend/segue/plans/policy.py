"""Whether a message gets a web search or a plan, and whether a tool asks the user before it runs.

Pure: no model, no storage; knows nothing of graphs and HTTP. The words for searches are `search.toml`.
"""

from dataclasses import dataclass
from typing import Final, assert_never

from segue.domain.plan import Confirm, Planning
from segue.domain.session import Verdict
from segue.domain.tool import ToolSpec
from segue.language.lexicon import kinds_of, languages_of, parse_lexicon
from segue.language.utterance import parse_utterance
from segue.language.word_lists import load_toml
from segue.plans.multistep_detector import LONGEST_READ, asks_for_several_steps

SHORTEST_FORCED_SEARCH: Final = 15  # characters

SEARCH_WORD_KINDS: Final = frozenset({"request", "search", "web", "topic"})
SEARCH_LEXICON: Final = parse_lexicon(load_toml("search.toml"), kinds=SEARCH_WORD_KINDS | {"earlier"})


@dataclass(frozen=True, slots=True)
class SearchDecision:
    """`reason` is one of acknowledgement, asked_for, earlier_results, forced, not_asked, too_short, unavailable."""

    search: bool
    reason: str


def should_search_web(message: str, *, force: bool, verdict: Verdict) -> SearchDecision:
    """`verdict` is what the message is as an acknowledgement, `force` the client's toggle.

    A yes with a change may ask for a search in words; a plain yes or no never starts one, toggle or not.
    """
    found = _search_kinds(message)
    if verdict in {"confirm", "reject"} or (verdict == "amend" and found.isdisjoint(SEARCH_WORD_KINDS)):
        return SearchDecision(search=False, reason="acknowledgement")
    if "request" in found or {"search", "web"} <= found:
        return SearchDecision(search=True, reason="asked_for")
    if "earlier" in found and "search" not in found:
        return SearchDecision(search=False, reason="earlier_results")
    if not force:
        return SearchDecision(search=False, reason="not_asked")
    if len(message.strip()) < SHORTEST_FORCED_SEARCH and found.isdisjoint(SEARCH_WORD_KINDS):
        return SearchDecision(search=False, reason="too_short")
    return SearchDecision(search=True, reason="forced")


def should_plan(message: str, *, mode: Planning, verdict: Verdict) -> bool:
    """Returns whether the model is asked for a plan. A yes or a no asks for nothing new."""
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
    """Returns whether the user is asked before the tool runs. A tool's own configuration overrides its effect.

    Under `always` every tool that has a row in the ledger asks, under `never` none does.
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
    """Returns the kinds of search words in the message, in every language that uses most of its words."""
    words = parse_utterance(message[:LONGEST_READ]).words
    return {
        kind for language in languages_of(words, SEARCH_LEXICON) for kind in kinds_of(words, language, SEARCH_LEXICON)
    }
