"""What a finished turn says of itself, read off its final state. Pure."""

from backend.agent.model import MeteredModel
from backend.agent.state import TurnState, acknowledgement_report, web_search_report
from backend.domain.session import MemoryReport, TurnReport, Usage


def turn_report(state: TurnState, model: MeteredModel, *, duration_ms: int) -> TurnReport:
    memory = state["memory"]
    touched = state["touched_plan"]
    return TurnReport(
        acknowledgement=acknowledgement_report(state),
        plan=touched.plan if touched else None,
        web_search=web_search_report(state),
        memory_used=MemoryReport(
            short_term=memory is not None,
            long_term=len(state["facts"]),
            history_messages=len(state["history"]) - 1,
            tool_results=len(state["earlier_results"]),
        ),
        usage=Usage(
            llm_calls=model.llm_calls,
            input_tokens=model.input_tokens,
            output_tokens=model.output_tokens,
            duration_ms=duration_ms,
        ),
        model=model.name,
    )
