"""Whether a call that needs a yes has one already: the user's, for its tool and the rest of the session.

Asked only about calls that would wait otherwise, right before they run: what was revoked meanwhile counts no more.
"""

from segue.agent.argument_sources import find_origins
from segue.agent.turn_calls import TurnCalls
from segue.domain.session import RequestedCall
from segue.domain.tool import Tool
from segue.plans.argument_origins import is_users
from segue.plans.call_policy import Ruling
from segue.plans.grants import is_granted


async def runs_under_grant(turn: TurnCalls, call: RequestedCall, tool: Tool, ruling: Ruling) -> bool:
    """Returns whether the call may run unasked, and then notes that it does so under a grant, and what that covers.

    A grant does not answer what the operator's rule asks, and covers no value that the user did not say, but in a call
    that only reads.
    """
    if ruling != "allow":
        return False
    async with turn.context.transaction() as connection:
        if not await is_granted(connection, turn.context.turn.session_id, tool.spec):
            return False
    origins = await find_origins(turn, call.args, tool.spec.input_schema, every=True)
    if tool.spec.effect != "read_only" and not all(map(is_users, origins.values())):
        return False
    turn.granted[call.id] = origins
    return True
