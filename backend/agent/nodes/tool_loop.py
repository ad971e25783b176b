"""The model and its tools in turn, until the model answers or the turn's bounds are reached."""

from collections.abc import Mapping

from langgraph.runtime import Runtime

from backend.agent import prompts
from backend.agent.calls import TurnCalls, run_round
from backend.agent.context import TurnContext
from backend.agent.model import ModelCall, Reply
from backend.agent.state import TurnState, Update
from backend.domain.tool import Tool

WEB_SEARCH = "web_search"
MAX_QUERY_CHARS = 400


async def tool_loop(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Leaves `answer` at None where the bounds ended the loop; `respond` then answers from what there is."""
    context = runtime.context
    tools = context.catalog.tools()
    specs = [tool.spec for tool in tools.values()]
    conversation = prompts.assemble(state["history"], state["memory"], state["acknowledgement"])
    done = TurnCalls()
    if _search_is_forced(state, tools):
        conversation += await run_round(context, _search_call(state["message"]), tools, done)
    answer, llm_calls, input_tokens, output_tokens = None, 0, 0, 0
    while llm_calls < context.limits.max_rounds and done.count < context.limits.max_calls:
        reply = await context.model.reply(conversation, specs)
        llm_calls += 1
        input_tokens += reply.input_tokens
        output_tokens += reply.output_tokens
        if not reply.calls:
            answer = reply.text
            break
        conversation += await run_round(context, reply, tools, done)
    return {
        "conversation": conversation,
        "answer": answer,
        "tool_calls": done.ledger,
        "references": done.references,
        "message_count": state["message_count"] + done.stored_messages,
        "llm_calls": llm_calls,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }


def _search_is_forced(state: TurnState, tools: Mapping[str, Tool]) -> bool:
    return state["force_web_search"] and state["search"].search and WEB_SEARCH in tools


def _search_call(message: str) -> Reply:
    """The search the user switched on, as an ordinary call ahead of the model's own."""
    return Reply("", (ModelCall(WEB_SEARCH, {"query": message[:MAX_QUERY_CHARS]}),), 0, 0)
