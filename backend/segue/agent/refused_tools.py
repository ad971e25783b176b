"""Marks the tools that the model's endpoint refuses, so that the session is offered them no more until a reset."""

from collections.abc import Mapping

from segue.agent.turn_calls import TurnCalls
from segue.domain.events import ToolStateChanged


async def mark_refused(turn: TurnCalls, left_out: Mapping[str, str]) -> None:
    """Stores a refusal as the tool's state, with the provider's words by the tool's name."""
    context = turn.context
    for name, said in left_out.items():
        spec = turn.tools[name].spec
        async with context.transaction() as connection:
            changed = await context.guard.mark_refused(connection, spec, said)
        context.guard.marked_refused(spec, changed)
        if changed.moved:
            context.emit(ToolStateChanged(name, context.guard.state(spec)))
