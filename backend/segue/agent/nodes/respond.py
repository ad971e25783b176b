"""Writes the answer: the loop's own, or beyond its bounds what there is."""

from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts
from segue.agent.context import TurnContext
from segue.agent.llm.reply import Reply
from segue.agent.state import TurnState, Update, language_of
from segue.agent.stream_reply import StartedMessage, emit_message, stream_reply
from segue.plans.policy import without_forbidden
from segue.tools.normalize import clean


async def respond(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    context = runtime.context
    answer, started = state["answer"], state.get("started")
    touched = state["touched_plan"]
    if answer is None:
        reply, started = await _last_words(context, state, prompts.OUT_OF_ROUNDS)
        answer = reply.text or prompts.NO_ANSWER
    postscript, beside = state.get("postscript"), state.get("beside")
    if beside is not None and touched is not None and touched.plan.id != beside.plan.id:
        postscript = plan_messages.superseded(beside.plan, language_of(state))
    answer = clean(f"{answer}\n\n{postscript}" if postscript else answer)
    return {"answer": answer, "answer_id": emit_message(context, answer, started)}


async def _last_words(context: TurnContext, state: TurnState, instruction: str) -> tuple[Reply, StartedMessage | None]:
    """Returns a reply without calls. Shows the tools all the same: the request begins as those before it."""
    tools = context.guard.offered(without_forbidden(context.guard.tools(), state["search"]))
    conversation = prompts.with_instruction(state["conversation"], instruction)
    return await stream_reply(context, conversation, tools, tool_choice="none")
