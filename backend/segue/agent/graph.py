"""The graph of a turn, readable as a picture:

START → detect_acknowledgement → plan ─┬→ tool_loop ─┬→ respond → knowledge → END
                                       └─────────────┘  if the plan node has answered already
"""

from functools import cache
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


class Node(Protocol):
    """A node as LangGraph calls it. It returns the keys of the state that it changes."""

    async def __call__(self, state: TurnState, runtime: Runtime[TurnContext]) -> Update: ...


@cache  # it holds no state, and to compile it takes milliseconds
def build_graph() -> Graph:
    # No checkpointer: what outlives a turn is rows, and a user's reply to a plan is a new turn.
    graph = StateGraph(TurnState, context_schema=TurnContext, input_schema=TurnInput)
    graph.add_node("detect_acknowledgement", _observed("detect_acknowledgement", detect_acknowledgement))
    graph.add_node("plan", _observed("plan", plan))
    graph.add_node("tool_loop", _observed("tool_loop", tool_loop))
    graph.add_node("respond", _observed("respond", respond))
    graph.add_node("knowledge", _observed("knowledge", knowledge))
    graph.add_edge(START, "detect_acknowledgement")
    graph.add_edge("detect_acknowledgement", "plan")
    graph.add_conditional_edges("plan", _after_plan)
    graph.add_edge("tool_loop", "respond")
    graph.add_edge("respond", "knowledge")
    graph.add_edge("knowledge", END)
    return graph.compile()


def _observed(name: str, node: Node) -> Node:
    """Returns the node with a span around it and the events of its start, its end, and the plan's state by then."""

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


async def _after_plan(state: TurnState) -> Literal["tool_loop", "respond"]:
    # Async, since LangGraph would hand a plain function to a thread.
    return "tool_loop" if state.get("answer") is None else "respond"
