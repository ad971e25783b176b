"""Writes the answer: the loop's own, or for a plan a synthesis of its steps, or beyond the bounds what there is."""

import structlog
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts
from segue.agent.context import TurnContext
from segue.agent.state import TurnState, Update
from segue.agent.stream_reply import StartedMessage, emit_message, stream_reply
from segue.domain.errors import AppError
from segue.domain.plan import Plan
from segue.tools.normalize import clean

log = structlog.get_logger()


async def respond(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    context = runtime.context
    answer, started = state["answer"], state.get("started")
    touched = state["touched_plan"]
    if answer is None and touched is not None and state["plan_runs"]:
        answer, started = await _synthesis(context, state, touched.plan)
    elif answer is None:
        reply, started = await stream_reply(context, prompts.with_note(state["conversation"], prompts.OUT_OF_ROUNDS))
        answer = reply.text or prompts.NO_ANSWER
    postscript, beside = state.get("postscript"), state.get("beside")
    if beside is not None and touched is not None and touched.plan.id != beside.plan.id:
        postscript = plan_messages.superseded(beside.plan, state["language"])
    answer = clean(f"{answer}\n\n{postscript}" if postscript else answer)
    return {"answer": answer, "answer_id": emit_message(context, answer, started)}


async def _synthesis(context: TurnContext, state: TurnState, plan: Plan) -> tuple[str, StartedMessage | None]:
    conversation = prompts.with_note(state["conversation"], prompts.synthesis_note(plan))
    try:
        reply, started = await stream_reply(context, conversation)
    except AppError as error:  # the steps have had their effects: the turn must not look as if they had not
        log.warning("synthesis_failed", code=error.code, plan_id=plan.id)
        return plan_messages.ended(plan, state["language"]), None
    return reply.text or plan_messages.ended(plan, state["language"]), started
