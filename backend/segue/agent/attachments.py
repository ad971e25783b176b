"""What a message's files say, as the results of calls that the engine makes: the model is shown how each begins, and
loads more of it as of any result.
"""

from collections.abc import Mapping

from langchain_core.messages import BaseMessage

from segue.agent.tool_executor import SettledCall, record_known
from segue.agent.turn_calls import TurnCalls
from segue.domain.attachment import READ_ATTACHMENT
from segue.domain.ids import new_id
from segue.domain.session import RequestedCall
from segue.tools.outcome import CallOutcome


async def show_attachments(
    turn: TurnCalls, attachments: Mapping[str, CallOutcome], conversation: list[BaseMessage]
) -> None:
    """`attachments` are by their ids what reading them comes to. Calls of an attempt that was cut off stand."""
    if not attachments:
        return
    read = {
        str(call.args["attachment_id"]): RequestedCall(call.tool_call_id, call.tool_name, call.args)
        for call in turn.recorded
        if call.tool_name == READ_ATTACHMENT
    }
    for attachment_id, request in read.items():
        if attachment_id in attachments:
            turn.keep_images(request, attachments[attachment_id])
    now = turn.context.clock()
    calls = [
        SettledCall(RequestedCall(new_id("call", now), READ_ATTACHMENT, {"attachment_id": each}), None, outcome)
        for each, outcome in attachments.items()
        if each not in read
    ]
    if calls:
        conversation += await record_known(turn, calls)
    conversation += turn.new_images()
