"""The graph of a turn, readable as a picture:

START → detect_acknowledgement → plan ─┬→ tool_loop ─┬→ respond → knowledge → END
                                       └─────────────┘  where the plan was cancelled, has expired or asks again
"""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from segue.agent.context import TurnContext
from segue.agent.nodes.detect_acknowledgement import detect_acknowledgement
from segue.agent.nodes.knowledge import knowledge
from segue.agent.nodes.plan import plan
from segue.agent.nodes.respond import respond
from segue.agent.nodes.tool_loop import tool_loop
from segue.agent.state import TurnInput, TurnState, Update
from segue.domain.events import PlanChanged, StepFinished, StepStarted

Graph = CompiledStateGraph[TurnState, TurnContext, TurnInput, TurnState]
Node = Callable[[TurnState, Runtime[TurnContext]], Awaitable[Update]]


class Told(Protocol):
    """A node as LangGraph calls it."""

    async def __call__(self, state: TurnState, runtime: Runtime[TurnContext]) -> Update: ...


def build_graph() -> Graph:
    graph = StateGraph(TurnState, context_schema=TurnContext, input_schema=TurnInput)
    graph.add_node("detect_acknowledgement", _told("detect_acknowledgement", detect_acknowledgement))
    graph.add_node("plan", _told("plan", plan))
    graph.add_node("tool_loop", _told("tool_loop", tool_loop))
    graph.add_node("respond", _told("respond", respond))
    graph.add_node("knowledge", _told("knowledge", knowledge))
    graph.add_edge(START, "detect_acknowledgement")
    graph.add_edge("detect_acknowledgement", "plan")
    graph.add_conditional_edges("plan", _unless_answered)
    graph.add_edge("tool_loop", "respond")
    graph.add_edge("respond", "knowledge")
    graph.add_edge("knowledge", END)
    return graph.compile()


def _told(name: str, node: Node) -> Told:
    """The node, telling when it starts, when it ends, and what has become of the plan by then."""

    async def run(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
        emit = runtime.context.emit
        emit(StepStarted(name))
        with runtime.context.span(name):
            update = await node(state, runtime)
        if touched := update.get("touched_plan"):
            emit(PlanChanged(touched.plan))
        emit(StepFinished(name))
        return update

    return run


async def _unless_answered(state: TurnState) -> Literal["tool_loop", "respond"]:
    """Async, or LangGraph would hand it to a thread."""
    return "tool_loop" if state.get("answer") is None else "respond"
