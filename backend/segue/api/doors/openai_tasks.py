"""Titles, tags and the like that a frontend wants of a conversation: one plain call of the small model, no turn."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from segue.api.chat import Asking
from segue.api.doors.client_sessions import find_session
from segue.api.doors.openai_request import TASK_BEGINS, TASK_HEADER, TASK_MODEL, conversation_of, texts
from segue.domain.errors import InvalidRequest
from segue.domain.usage import Charge

INSTRUCTIONS: Final = "You do a small task about a conversation. Answer with what is asked for and nothing else."


def is_task(asking: Asking, messages: Sequence[Mapping[str, Any]], *, model: str) -> bool:
    agents = asking.services.agents.of(asking.caller, asking.origin.groups)
    if asking.http.headers.get(TASK_HEADER) or (model not in agents and model.removesuffix(TASK_MODEL) in agents):
        return True
    users = [message for message in messages if message.get("role") == "user"]
    return len(users) == 1 and texts(users, "user").startswith(TASK_BEGINS)


async def do_task(
    asking: Asking, messages: Sequence[Mapping[str, Any]], *, model: str, body: Mapping[str, Any]
) -> tuple[str, Charge]:
    """Returns the text and what it took, which the caller and the session that the task is about are charged. Raises
    what a call of the model raises, AppError `unknown_agent`.
    """
    services, caller = asking.services, asking.caller
    groups = asking.origin.groups
    agent = model if model in services.agents.of(caller, groups) else model.removesuffix(TASK_MODEL)
    speaker = services.agents.check(agent, caller, groups, status=404)
    client_id, _ = conversation_of(asking.http, body)
    session = await find_session(services, caller, client_id) if client_id else None
    instructions = texts(messages, "system", "developer") or INSTRUCTIONS
    said = texts(messages, "user", "assistant")
    if not said.strip():
        raise InvalidRequest("The task has no message.")
    return await services.turns.complete(caller, speaker, instructions, said, session_id=session.id if session else "")
