"""What a turn knows and changes on its way through the graph: plain data, every key declared."""

from dataclasses import dataclass
from typing import Any, TypedDict

from langchain_core.messages import BaseMessage

from segue.agent.stream_reply import Spoken
from segue.domain.memory import Memory
from segue.domain.session import AcknowledgementReport, Message, WebSearchReport
from segue.domain.tool import Reference, ToolCall
from segue.memory.short_term import ShortTermMemory
from segue.plans.acknowledgement import Acknowledgement
from segue.plans.policy import SearchDecision
from segue.plans.store import StoredPlan
from segue.tools.results import RecordedCall


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """What is stored of a turn that was cut off: its calls, and the plan it has made, decided or amended."""

    calls: tuple[RecordedCall, ...]
    plan: StoredPlan | None


WEB_SEARCH = "web_search"


class TurnInput(TypedDict):
    """The snapshot a turn starts from.

    `history` ends with the user's message, or with what an `earlier` attempt has added to it; `message_id` is the
    message's id; `message_count` counts what is stored; `open_plan` is the session's; `decided_plan` is the one whose
    button was pressed where that, not words, is the message. `shown_plan` is the open plan and its version as the
    message came, `answered_turn_id` the turn that gave the last answer. `summary` tells what came before the history.
    `earlier_results` are references to the session's recent results, newest first. `shown_texts` is how each message of
    the history is written for the model, by `key_of`; `shown_briefly` are those that had to be shortened;
    `listed_results` are references as they stand beside it. `cut_off` is the seq of the last turn that is to go into
    the summary, where it is time for that. `facts` is what is known of the user and of use here, best first.
    """

    message: str
    message_id: str
    force_web_search: bool
    history: list[Message]
    memory: ShortTermMemory | None
    summary: str | None
    earlier_results: tuple[Reference, ...]
    facts: list[Memory]
    listed_results: tuple[str, ...]
    shown_texts: dict[str, str]
    shown_briefly: frozenset[str]
    cut_off: int | None
    message_count: int
    open_plan: StoredPlan | None
    decided_plan: StoredPlan | None
    shown_plan: tuple[str, int] | None
    answered_turn_id: str | None
    earlier: EarlierAttempt | None


class TurnState(TurnInput, total=False):
    """`replied_to` is the plan and version the message answered, `touched_plan` what this turn made, advanced or ended.

    `conversation` is what the model has been shown in this turn, `note` what the engine tells it beside; `answer` is
    None while nothing answers yet, `spoken` what of it has been told, `answer_id` the id it is told under; `postscript`
    is said after it.
    """

    acknowledgement: Acknowledgement
    search: SearchDecision
    replied_to: tuple[str, int] | None
    touched_plan: StoredPlan | None
    plan_runs: bool
    note: str | None
    conversation: list[BaseMessage]
    answer: str | None
    spoken: Spoken | None
    answer_id: str
    postscript: str | None
    tool_calls: list[ToolCall]
    references: list[Reference]


Update = dict[str, Any]


def acknowledgement_report(state: TurnState) -> AcknowledgementReport:
    """Once the plan node has seen what the message answers."""
    acknowledgement = state["acknowledgement"]
    plan_id, plan_version = state.get("replied_to") or (None, None)
    return AcknowledgementReport(
        verdict=acknowledgement.verdict,
        rule=acknowledgement.rule,
        language=acknowledgement.language,
        plan_id=plan_id,
        plan_version=plan_version,
    )


def web_search_report(state: TurnState) -> WebSearchReport:
    return WebSearchReport(
        requested=state["force_web_search"],
        performed=any(call.tool_name == WEB_SEARCH for call in state.get("tool_calls", [])),
        reason=state["search"].reason,
    )
