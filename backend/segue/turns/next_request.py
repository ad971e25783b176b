"""What the next message of a session will ask of the model, made by the code that a turn asks with. Only reads."""

from collections.abc import Collection

from segue.agent.nodes.tool_loop import plain_request
from segue.agent.render_messages import request_parts
from segue.agent.tool_choice.choice import ToolChooser
from segue.domain.session import Message, PromptReport
from segue.domain.tool import ToolChoice
from segue.tools.availability import ToolGuard
from segue.turns.claims import claim_of_next
from segue.turns.context import load_context, who_answers
from segue.turns.deps import TurnDeps


async def next_request(deps: TurnDeps, owner: str, session_id: str, groups: Collection[str]) -> PromptReport:
    """Returns the parts of the request as far as they are known before the message: without it, the facts that it will
    call up, and what a plan that waits adds to its notes. The owner is in `groups`. Raises NotFound.
    """
    async with deps.database.read_only() as connection:
        claim = await claim_of_next(connection, owner, session_id)
    speaker = deps.agents.speaker(claim.agent, owner, groups)
    guard = ToolGuard(
        deps.tools,
        claim.key,
        claim.tool_states,
        holds=claim.tool_holds,
        agent=speaker.agent,
        agent_id=speaker.id,
        owner=owner,
    )
    chooser = ToolChooser(
        deps.tool_search, guard, deps.limits.choice, stored=claim.tool_choice, seq=claim.key.turn_seq, save=_forget
    )
    await guard.load_global_state()
    now = deps.clock()
    start = await load_context(
        deps.database,
        deps.cache,
        deps.long_term,
        claim,
        limits=deps.limits.context,
        answering=who_answers(speaker, guard, chooser, claim),
        now=now,
        coming=Message("", claim.key.turn_seq, claim.key.turn_id, "user", "", now),
    )
    messages, offered = plain_request(guard, guard.tools(), start["prompt"])
    limits = deps.limits
    return request_parts(start["prompt_parts"], messages, limits.choice.size(offered), limits.context.count)


async def _forget(_: ToolChoice) -> None:
    """Stores nothing: the turn chooses itself."""
