"""The graph of a turn, readable as a picture, and its smaller nodes:

START → detect_acknowledgement → plan ─┬→ tool_loop ─┬→ respond → knowledge → END
                                       └─────────────┘  if the plan node has answered already
"""

from dataclasses import replace
from functools import cache
from typing import Literal, Protocol

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts
from segue.agent.context import TurnContext
from segue.agent.plan_node import plan
from segue.agent.state import TurnInput, TurnState, Update, language_of
from segue.agent.stream_reply import emit_message, stream_reply
from segue.agent.structured_answer import structured_answer
from segue.agent.tool_loop import tool_loop
from segue.domain.events import PlanChanged, StepFinished, StepStarted
from segue.memory import short_term
from segue.memory.short_term import ShortTermMemory
from segue.plans.acknowledgement import Acknowledgement, classify
from segue.plans.policy import should_search_web, without_forbidden
from segue.plans.question import Question, joined, question_in, question_of
from segue.tools.normalize import clean


async def detect_acknowledgement(state: TurnState, runtime: Runtime[TurnContext]) -> Update:  # noqa: ARG001 (a node's)
    """Reads the message as a yes, a no or something else, and decides whether to search the web."""
    if state["amends"]:
        acknowledgement = Acknowledgement("amend", "button")
    else:
        acknowledgement = classify(state["message"], question=_question(state))
        if acknowledgement.verdict == "confirm" and state["carries_files"]:
            acknowledgement = replace(acknowledgement, verdict="amend", rule="attachment", strength=None)
        if state["carries_files"]:
            acknowledgement = replace(acknowledgement, carries_yes=False)
    search = should_search_web(state["message"], force=state["force_web_search"], verdict=acknowledgement.verdict)
    return {"acknowledgement": acknowledgement, "search": search}


def _question(state: TurnState) -> Question | None:
    """Returns what the message may answer: the steps that wait, or the offer that the last answer ends with."""
    stored = state["open_plan"]
    if stored is not None and (steps := stored.plan.waiting_steps):
        return joined([question_of(step.tool, step.description, step.args) for step in steps])
    return question_in(state["answered"])


async def respond(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Emits the answer: the loop's own or, if the loop reached a bound, the model's last words without calls. One that
    is asked for as JSON is checked before anybody hears it.
    """
    context, touched = runtime.context, state["touched_plan"]
    answer, started = state["answer"], state.get("started")
    if answer is None:
        # With the tools all the same: the request begins as those before it.
        tools = context.guard.offered(without_forbidden(context.guard.tools(), state["search"]))
        asked = prompts.with_instruction(state["conversation"], prompts.OUT_OF_ROUNDS)
        reply, started = await stream_reply(context, asked, tools, tool_choice="none")
        answer = reply.text or prompts.NO_ANSWER
    if context.options.output_schema is not None and (touched is None or touched.plan.status != "waiting"):
        answer = await structured_answer(context, state, answer)
        return {"answer": answer, "answer_id": emit_message(context, answer, started), "is_structured": True}
    postscript, left_waiting = state.get("postscript"), state.get("left_waiting")
    if left_waiting is not None and touched is not None and touched.plan.id != left_waiting.plan.id:
        postscript = plan_messages.superseded(left_waiting.plan, language_of(state))
    answer = clean(f"{answer}\n\n{postscript}" if postscript else answer)
    return {"answer": answer, "answer_id": emit_message(context, answer, started)}


async def knowledge(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Writes the session's short-term memory, before the turn ends."""
    context = runtime.context
    memory = ShortTermMemory(
        session_id=context.turn.session_id,
        turn_id=context.turn.turn_id,
        last_user_message=state["message"],
        last_assistant_message=state["answer"],
        message_count=state["message_count"] + 1,
        tool_results=short_term.merge_results(state["earlier_results"], state.get("references", [])),
    )
    await short_term.write(context.cache, memory, ttl_s=context.settings.short_term_memory_ttl)
    return {}


Graph = CompiledStateGraph[TurnState, TurnContext, TurnInput, TurnState]


class Node(Protocol):
    """A node as LangGraph calls it. It returns the keys of the state that it changes."""

    __name__: str

    async def __call__(self, state: TurnState, runtime: Runtime[TurnContext]) -> Update: ...


@cache  # it holds no state, and to compile it takes milliseconds
def build_graph() -> Graph:
    # No checkpointer: what outlives a turn is rows, and a user's reply to a plan is a new turn.
    graph = StateGraph(TurnState, context_schema=TurnContext, input_schema=TurnInput)
    nodes: tuple[Node, ...] = (detect_acknowledgement, plan, tool_loop, respond, knowledge)
    for node in nodes:
        graph.add_node(node.__name__, _observed(node))
    graph.add_edge(START, "detect_acknowledgement")
    graph.add_edge("detect_acknowledgement", "plan")
    graph.add_conditional_edges("plan", _after_plan)
    graph.add_edge("tool_loop", "respond")
    graph.add_edge("respond", "knowledge")
    graph.add_edge("knowledge", END)
    return graph.compile()


def _observed(node: Node) -> Node:
    """Returns the node with a span around it and the events of its start, its end, and the plan's state by then."""
    name = node.__name__

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
