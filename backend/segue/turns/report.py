"""What a turn says of itself, read off its state. Pure."""

from segue.agent.state import TurnInput, TurnState, acknowledgement_report, web_search_report
from segue.domain.session import MemoryReport, TurnReport, Usage


def turn_report(state: TurnState, usage: Usage, *, model: str) -> TurnReport:
    touched = state["touched_plan"]
    return TurnReport(
        acknowledgement=acknowledgement_report(state),
        plan=touched.plan if touched else None,
        web_search=web_search_report(state),
        memory_used=memory_report(state),
        usage=usage,
        model=model,
    )


def memory_report(snapshot: TurnInput) -> MemoryReport:
    return MemoryReport(
        short_term=snapshot["memory"] is not None,
        long_term=len(snapshot["facts"]),
        history_messages=len(snapshot["prompt"]) - 2,  # beside the system message and the running one
        tool_results=len(snapshot["earlier_results"]),
    )
