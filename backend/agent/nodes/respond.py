"""The answer: the loop's own, or one more call without tools where the loop ran into its bounds."""

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from backend.agent import prompts
from backend.agent.context import TurnContext
from backend.agent.state import TurnState, Update


async def respond(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    conversation = [*state["conversation"], HumanMessage(prompts.OUT_OF_ROUNDS)]
    reply = await runtime.context.model.reply(conversation)
    return {
        "answer": reply.text or prompts.NO_ANSWER,
        "llm_calls": state["llm_calls"] + 1,
        "input_tokens": state["input_tokens"] + reply.input_tokens,
        "output_tokens": state["output_tokens"] + reply.output_tokens,
    }
