"""The answer: the loop's own; for a plan one synthesis of what its steps gave; beyond the bounds what there is."""

import structlog
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts
from segue.agent.context import TurnContext
from segue.agent.state import TurnState, Update
from segue.agent.stream_reply import Spoken, ask, tell
from segue.domain.errors import AppError
from segue.domain.plan import Plan
from segue.tools.normalize import clean

log = structlog.get_logger()


async def respond(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    context = runtime.context
    answer, spoken = state["answer"], state.get("spoken")
    touched = state["touched_plan"]
    if answer is None and touched is not None and state["plan_runs"]:
        answer, spoken = await _synthesis(context, state, touched.plan)
    elif answer is None:
        reply, spoken = await ask(context, prompts.with_note(state["conversation"], prompts.OUT_OF_ROUNDS))
        answer = reply.text or prompts.NO_ANSWER
    postscript = state.get("postscript")
    answer = clean(f"{answer}\n\n{postscript}" if postscript else answer)
    return {"answer": answer, "answer_id": tell(context, answer, spoken)}


async def _synthesis(context: TurnContext, state: TurnState, plan: Plan) -> tuple[str, Spoken | None]:
    """What the steps did is done, whether or not the model can still be reached to say it well."""
    try:
        reply, spoken = await ask(context, prompts.with_note(state["conversation"], prompts.ended_note(plan)))
    except AppError as error:
        log.warning("synthesis_failed", code=error.code, plan_id=plan.id)
        return plan_messages.ended(plan), None
    return reply.text or plan_messages.ended(plan), spoken
