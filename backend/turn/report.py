"""What a finished turn says of itself, read off its final state. Pure."""

from backend.agent.state import TurnState
from backend.domain.session import AcknowledgementReport, MemoryReport, TurnReport, Usage, WebSearchReport


def turn_report(state: TurnState, *, model: str, duration_ms: int) -> TurnReport:
    acknowledgement = state["acknowledgement"]
    memory = state["memory"]
    return TurnReport(
        acknowledgement=AcknowledgementReport(
            verdict=acknowledgement.verdict, rule=acknowledgement.rule, language=acknowledgement.language
        ),
        web_search=WebSearchReport(
            requested=state["force_web_search"],
            performed=any(call.tool_name == "web_search" for call in state["tool_calls"]),
            reason=state["search"].reason,
        ),
        memory_used=MemoryReport(
            short_term=memory is not None,
            history_messages=len(state["history"]) - 1,
            tool_results=len(memory.results) if memory else 0,
        ),
        usage=Usage(
            llm_calls=state["llm_calls"],
            input_tokens=state["input_tokens"],
            output_tokens=state["output_tokens"],
            duration_ms=duration_ms,
        ),
        model=model,
    )
