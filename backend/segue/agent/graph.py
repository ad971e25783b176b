"""The graph of a turn, readable as a picture, and its smaller nodes:

START → detect_acknowledgement → plan ─┬→ tool_loop ─┬→ respond → knowledge → END
                                       └─────────────┘  if the plan node has answered already
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from operator import or_
from typing import Annotated, Any, Literal, Protocol, TypedDict, cast

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts
from segue.agent.false_claims import without_false_claims
from segue.agent.plan_node import plan
from segue.agent.state import StartedMessage, TurnContext, TurnState, Update, carries_files, language_of
from segue.agent.stream_reply import emit_message, stream_reply, structured_answer
from segue.agent.tool_loop import tool_loop
from segue.agent.turn_reports import held_of
from segue.domain.errors import AppError
from segue.domain.events import EffectsListed, PlanChanged, StepFinished, StepStarted
from segue.domain.session import with_held
from segue.log import log
from segue.memory import short_term
from segue.models.chat_model import MAX_EMPTY_ANSWERS
from segue.models.refusals import gave_no_answer, may_answer_otherwise, unavailable
from segue.plans.acknowledgement import Acknowledgement, classify
from segue.plans.asked_words import joined, question_in, question_of
from segue.plans.policy import should_search_web, without_forbidden
from segue.tools.normalize import clean


async def detect_acknowledgement(state: TurnState, runtime: Runtime[TurnContext]) -> Update:  # noqa: ARG001 (a node's)
    """Reads the message as a yes, a no or something else, and decides whether to search the web."""
    if state["amends"]:
        acknowledgement = Acknowledgement("amend", "button")
    else:
        # What the message may answer: the steps that wait, or the offer that the last answer ends with.
        steps = state["open_plan"].plan.waiting_steps if state["open_plan"] else ()
        questions = [question_of(step.tool, step.description, step.args) for step in steps]
        question = joined(questions) if questions else question_in(state["answered"])
        acknowledgement = classify(state["message"], question=question)
        if acknowledgement.verdict == "confirm" and carries_files(state):
            acknowledgement = replace(acknowledgement, verdict="amend", rule="attachment", strength=None)
        if state["files"] and carries_files(state):
            acknowledgement = replace(acknowledgement, carries_yes=False)
    search = should_search_web(state["message"], force=state["force_web_search"], verdict=acknowledgement.verdict)
    return {"acknowledgement": acknowledgement, "search": search}


async def respond(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Emits the answer: the loop's, the model's last words, or the service's account. JSON is checked before that."""
    context, touched = runtime.context, state["touched_plan"]
    answer, started, problem = state["answer"], state.get("started"), state.get("problem")
    if answer is None:
        answer, started, problem = await _last_words(context, state)
    is_asking = touched is not None and touched.plan.status == "waiting"
    if context.options.output_schema is not None and problem is None and not is_asking:
        answer, problem = await _as_json(context, state, answer)
        if problem is None:
            return {"answer": answer, "answer_id": emit_message(context, answer, started), "is_structured": True}
    postscript, left_waiting = state.get("postscript"), state.get("left_waiting")
    if left_waiting is not None and touched is not None and touched.plan.id != left_waiting.plan.id:
        kept = [(step.tool, step.args) for step in touched.plan.steps]
        is_kept = all((step.tool, step.args) in kept for step in left_waiting.plan.waiting_steps)
        postscript = None if is_kept else plan_messages.superseded(left_waiting.plan, language_of(state))
    if problem is None and not is_asking:
        was_heard = started is not None and started.chars > 0
        answer, corrections = await without_false_claims(context, state, answer, was_heard=was_heard)
        postscript = "\n\n".join(filter(None, [postscript, *corrections]))
    answer = clean(f"{answer}\n\n{postscript}" if postscript else answer)
    if problem is not None:
        log.warning("answered_by_service", code=problem.code, reason=problem.detail)
    return {"answer": answer, "answer_id": emit_message(context, answer, started), "problem": problem}


async def _last_words(context: TurnContext, state: TurnState) -> tuple[str, StartedMessage | None, AppError | None]:
    """Asks for words without calls. Returns the service's account and the error if a turn that acted gets none."""
    problem, tools = state.get("problem"), without_forbidden(context.guard.tools(), state["search"])
    if problem is None or may_answer_otherwise(problem):
        instruction, tries = ("in_words", 1) if problem else ("out_of_rounds", MAX_EMPTY_ANSWERS)
        messages = prompts.with_instruction(state["conversation"], prompts.TEXTS[instruction])
        try:
            offered = context.guard.offered(tools)  # with the tools: the request begins as those before it
            reply, started = await stream_reply(context, messages, offered, tool_choice="none", empty_tries=tries)
        except AppError as error:
            if not gave_no_answer(error) or not (problem or state.get("tool_calls")):
                raise
            problem = error
        else:
            if reply.text:
                return reply.text, started, None
            problem = problem or unavailable("It called tools when it was asked for words.")
    return plan_messages.account(state, tools), None, problem


async def _as_json(context: TurnContext, state: TurnState, answer: str) -> tuple[str, AppError | None]:
    """Returns the answer in the client's schema; the service's account and the error if a turn that acted has none."""
    tools = without_forbidden(context.guard.tools(), state["search"])
    messages = state.get("conversation") or state["prompt"]
    try:
        return await structured_answer(context, messages, context.guard.offered(tools), answer), None
    except AppError as error:
        if not gave_no_answer(error) or not state.get("tool_calls"):
            raise
        return plan_messages.account(state, tools), error


async def knowledge(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Emits what the turn changed, and writes the session's short-term memory, before the turn ends."""
    context = runtime.context
    if changed := with_held(state.get("effects", ()), held_of(state, context.guard.tools())):
        context.emit(EffectsListed(changed))
    memory = short_term.ShortTermMemory(
        session_id=context.turn.session_id,
        turn_id=context.turn.turn_id,
        last_user_message=state["message"],
        last_assistant_message=state["answer"],
        message_count=state["message_count"] + 1,
        tool_results=short_term.merge_results(state["earlier_results"], state.get("references", [])),
    )
    await short_term.write(context.cache, memory, ttl_s=context.settings.short_term_memory_ttl)
    return {}


class GraphState(TypedDict):
    """What a turn knows, in one channel: LangGraph looks at every channel several times a node."""

    turn: Annotated[dict[str, Any], or_]


Graph = CompiledStateGraph[GraphState, TurnContext, GraphState, GraphState]


class GraphNode(Protocol):
    async def __call__(self, state: GraphState, runtime: Runtime[TurnContext]) -> GraphState: ...


@cache  # it holds no state, and to compile it takes milliseconds
def build_graph() -> Graph:
    # No checkpointer: what outlives a turn is rows, and a user's reply to a plan is a new turn.
    graph = StateGraph(GraphState, context_schema=TurnContext)
    for node in (detect_acknowledgement, plan, tool_loop, respond, knowledge):
        graph.add_node(node.__name__, _observed(node.__name__, node))
    graph.add_edge(START, "detect_acknowledgement")
    graph.add_edge("detect_acknowledgement", "plan")
    graph.add_conditional_edges("plan", _after_plan)
    graph.add_edge("tool_loop", "respond")
    graph.add_edge("respond", "knowledge")
    graph.add_edge("knowledge", END)
    return graph.compile()


def _observed(name: str, node: Callable[[TurnState, Runtime[TurnContext]], Awaitable[Update]]) -> GraphNode:
    """Returns a node, which returns what it changes of the state, with its span and the events of its start and end."""

    async def run(state: GraphState, runtime: Runtime[TurnContext]) -> GraphState:
        emit = runtime.context.emit
        emit(StepStarted(name))
        with runtime.context.span(name):
            update = await node(cast(TurnState, state["turn"]), runtime)
        if touched := update.get("touched_plan"):
            emit(PlanChanged(touched.plan))
        emit(StepFinished(name))
        return {"turn": update}

    return run


async def _after_plan(state: GraphState) -> Literal["tool_loop", "respond"]:
    # Async, since LangGraph would hand a plain function to a thread.
    return "tool_loop" if state["turn"].get("answer") is None else "respond"
