"""Asks the model for a plan, for a changed plan, and how a reply to one is to be read. It only proposes."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import orjson
from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ValidationError

from segue.agent import prompts
from segue.agent.context import TurnContext
from segue.agent.state import TurnState
from segue.db.redis import plan_cache_key, plans_of_owner_key
from segue.domain.plan import Plan, Step
from segue.domain.tool import Tool
from segue.plans.plan_parser import objects_in, read_draft
from segue.tools.availability import ToolGuard
from segue.tools.health import is_blocked
from segue.tools.normalize import clean

CACHE_TTL_S = 600

Reading = Literal["confirm", "reject", "amend", "question", "none"]


class _Reading(BaseModel):
    verdict: Reading


async def make_plan(context: TurnContext, state: TurnState) -> tuple[Step, ...]:
    """No steps where the model sees no need for any or writes nothing usable. Identical requests are asked once."""
    plannable = _plannable(context.guard)
    note = prompts.planner_note(tool.spec for tool in plannable.values())
    conversation = prompts.assemble(state, note=note)
    key = plan_cache_key(context.owner, _digest(context.model.name, conversation))
    text = await context.cache.get_json(key)
    if not isinstance(text, str):
        text = (await context.model.reply(conversation)).text
        await context.cache.set_listed(key, text, listing=plans_of_owner_key(context.owner), ttl_s=CACHE_TTL_S)
    return _storable(read_draft(text, tools=plannable))


async def amend_plan(context: TurnContext, state: TurnState, plan: Plan) -> tuple[Step, ...]:
    """The steps that are still to be done; none where the model writes nothing usable."""
    plannable = _plannable(context.guard)
    note = prompts.amender_note(plan, [tool.spec for tool in plannable.values()])
    reply = await context.model.reply(prompts.assemble(state, note=note))
    return _storable(read_draft(reply.text, tools=plannable, done=len(plan.started_steps)))


async def classify_reply(context: TurnContext, state: TurnState, plan: Plan) -> Reading:
    """How the model reads a message the rules could not. Never enough to approve what changes the world."""
    note = prompts.reader_note(plan)
    reply = await context.model.reply(prompts.assemble(state, note=note))
    for value in objects_in(reply.text):
        try:
            return _Reading.model_validate(value).verdict
        except ValidationError:
            continue
    return "none"


def _storable(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """JSON may spell out what a text may not hold, as in `\\u0000`."""
    return tuple(
        replace(step, description=clean(step.description), args=None if step.args is None else clean(step.args))
        for step in steps
    )


def _plannable(guard: ToolGuard) -> dict[str, Tool]:
    """What leaves a trace and could run by its turn: an earlier step may unlock a tool, none can mend one."""
    tools = {name: tool for name, tool in guard.tools().items() if not tool.spec.ephemeral}
    states = guard.states(tools.values())
    return {name: tool for name, tool in tools.items() if not is_blocked(states[name])}


def _digest(model: str, conversation: Sequence[BaseMessage]) -> str:
    said = [model, *([message.type, message.text] for message in conversation)]
    return hashlib.sha256(orjson.dumps(said)).hexdigest()
