"""What a finished turn says of itself, read off its final state. Pure."""

from backend.agent.model import MeteredModel
from backend.agent.state import TurnState
from backend.domain.session import AcknowledgementReport, MemoryReport, TurnReport, Usage, WebSearchReport


def turn_report(state: TurnState, model: MeteredModel, *, duration_ms: int) -> TurnReport:
    acknowledgement = state["acknowledgement"]
    memory = state["memory"]
    plan_id, plan_version = state.get("replied_to") or (None, None)
    touched = state["touched_plan"]
    return TurnReport(
        acknowledgement=AcknowledgementReport(
            verdict=acknowledgement.verdict,
            rule=acknowledgement.rule,
            language=acknowledgement.language,
            plan_id=plan_id,
            plan_version=plan_version,
        ),
        plan=touched.plan if touched else None,
        web_search=WebSearchReport(
            requested=state["force_web_search"],
            performed=any(call.tool_name == "web_search" for call in state.get("tool_calls", [])),
            reason=state["search"].reason,
        ),
        memory_used=MemoryReport(
            short_term=memory is not None,
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
