"""Writes the answer: the loop's own, or for a plan a synthesis of its steps, or beyond the bounds what there is."""

import structlog
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts
from segue.agent.context import TurnContext
from segue.agent.llm.reply import Reply
from segue.agent.state import TurnState, Update, language_of
from segue.agent.stream_reply import StartedMessage, emit_message, stream_reply
from segue.domain.errors import AppError
from segue.domain.plan import Plan
from segue.plans.policy import without_forbidden
from segue.tools.normalize import clean

log = structlog.get_logger()


async def respond(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    context = runtime.context
    answer, started = state["answer"], state.get("started")
    touched = state["touched_plan"]
    if answer is None and touched is not None and state["plan_runs"]:
        answer, started = await _synthesis(context, state, touched.plan)
    elif answer is None:
        reply, started = await _last_words(context, state, prompts.OUT_OF_ROUNDS)
        answer = reply.text or prompts.NO_ANSWER
    postscript, beside = state.get("postscript"), state.get("beside")
    if beside is not None and touched is not None and touched.plan.id != beside.plan.id:
        postscript = plan_messages.superseded(beside.plan, language_of(state))
    answer = clean(f"{answer}\n\n{postscript}" if postscript else answer)
    return {"answer": answer, "answer_id": emit_message(context, answer, started)}


async def _synthesis(context: TurnContext, state: TurnState, plan: Plan) -> tuple[str, StartedMessage | None]:
    try:
        reply, started = await _last_words(context, state, prompts.synthesis_note(plan))
    except AppError as error:  # the steps have had their effects: the turn must not look as if they had not
        log.warning("synthesis_failed", code=error.code, plan_id=plan.id)
        return plan_messages.ended(plan, language_of(state)), None
    return reply.text or plan_messages.ended(plan, language_of(state)), started


async def _last_words(context: TurnContext, state: TurnState, instruction: str) -> tuple[Reply, StartedMessage | None]:
    """Returns a reply without calls. Shows the tools all the same: the request begins as those before it."""
    tools = context.guard.offered(without_forbidden(context.guard.tools(), state["search"]))
    conversation = prompts.with_instruction(state["conversation"], instruction)
    return await stream_reply(context, conversation, tools, tool_choice="none")
