"""Writes the session's short-term memory, before the turn ends."""

from langgraph.runtime import Runtime

from segue.agent.context import TurnContext
from segue.agent.state import TurnState, Update
from segue.memory import short_term
from segue.memory.short_term import ShortTermMemory


async def knowledge(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    context = runtime.context
    memory = ShortTermMemory(
        session_id=context.turn.session_id,
        turn_id=context.turn.turn_id,
        last_user_message=state["message"],
        last_assistant_message=state["answer"],
        message_count=state["message_count"] + 1,
        tool_results=short_term.merge_results(state["earlier_results"], state.get("references", [])),
    )
    await short_term.write(context.cache, memory, ttl_s=context.limits.memory_ttl_s)
    return {}
