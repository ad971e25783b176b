"""The answer as JSON that fits the schema of the client: what the model is told of it, a check, and one repair.

A question to the user is no such answer: a turn whose plan waits ends in words. The schema and what is wrong with an
answer are shown to the model as data.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import orjson
import structlog

from segue.agent import prompts
from segue.agent.context import TurnContext
from segue.agent.state import TurnState
from segue.db.rows import UNREADABLE, read_json
from segue.domain import turn_errors
from segue.domain.errors import InvalidRequest
from segue.models.reply import of_client
from segue.plans.plan_parser import find_json
from segue.plans.policy import without_forbidden
from segue.tools.input_schema import UnfitSchema, faults_by

MAX_SCHEMA_BYTES: Final = 32_000
ANY_OBJECT: Final = '{"type":"object"}'
_NO_JSON: Final = ("$: it is no JSON",)

log = structlog.get_logger()


async def schema_text(schema: dict[str, Any]) -> str:
    """Returns a client's schema as TurnOptions have it. Raises AppError `invalid_request` if no answer can be checked
    by it.
    """
    text = orjson.dumps(schema).decode()
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"The schema of the answer has more than {MAX_SCHEMA_BYTES} bytes.")
    try:
        await asyncio.to_thread(faults_by, text, None)
    except UnfitSchema as unfit:
        raise InvalidRequest(f"No answer can be checked by the schema: {unfit}.") from unfit
    return text


async def structured_answer(context: TurnContext, state: TurnState, answer: str) -> str:
    """Returns the answer as JSON text that fits the client's schema; the model has one try to mend it. Raises AppError
    `output_invalid`, and what asking the model raises.
    """
    schema = context.options.output_schema or ANY_OBJECT
    text, faults = await asyncio.to_thread(_read, schema, answer)
    if not faults:
        return text
    log.info("output_mended", faults=len(faults))
    note = prompts.mending_note(schema, answer, faults)
    conversation = prompts.with_instruction(state.get("conversation") or state["prompt"], note)
    offered = context.guard.offered(without_forbidden(context.guard.tools(), state["search"]))
    sampling = context.options.sampling
    reply = await context.model.reply(
        conversation, offered, tool_choice="none", schema=of_client(schema), sampling=sampling
    )
    text, faults = await asyncio.to_thread(_read, schema, reply.text)
    if faults:
        raise turn_errors.output_invalid(faults)
    return text


def _read(schema: str, answer: str) -> tuple[str, Sequence[str]]:
    """Returns the JSON in an answer, and what is wrong with it by the schema."""
    text = answer.strip()
    if (value := read_json(text)) is UNREADABLE:
        value = next(find_json(text), UNREADABLE)
        text = orjson.dumps(value).decode() if isinstance(value, dict) else ""
    return text, faults_by(schema, value) if text else _NO_JSON
